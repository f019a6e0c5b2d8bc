DELETE FROM hold WHERE holder = ?1
