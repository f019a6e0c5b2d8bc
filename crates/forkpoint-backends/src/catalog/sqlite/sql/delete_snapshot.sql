DELETE FROM snapshot WHERE id = ?1 RETURNING driver
