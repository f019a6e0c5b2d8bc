UPDATE operation SET owner = ?3, attempt = attempt + 1 WHERE id = ?1 AND attempt = ?2 RETURNING attempt
