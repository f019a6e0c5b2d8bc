UPDATE snapshot SET name = ?2, description = ?3, labels = ?4, expires = ?5, pinned = ?6 WHERE id = ?1
