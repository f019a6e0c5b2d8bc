SELECT EXISTS (SELECT 1 FROM committed WHERE operation = ?1)
