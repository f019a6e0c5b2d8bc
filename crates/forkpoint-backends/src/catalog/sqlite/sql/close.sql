DELETE FROM operation WHERE id = ?1 AND attempt = ?2 AND owner = ?3 RETURNING body
