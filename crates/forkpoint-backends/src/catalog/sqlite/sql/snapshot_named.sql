SELECT id FROM snapshot WHERE name = ?1
