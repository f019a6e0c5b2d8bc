SELECT * FROM snapshot WHERE id = ?1
