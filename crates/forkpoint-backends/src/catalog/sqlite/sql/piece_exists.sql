SELECT EXISTS (SELECT 1 FROM piece WHERE driver = ?1 AND name = ?2)
