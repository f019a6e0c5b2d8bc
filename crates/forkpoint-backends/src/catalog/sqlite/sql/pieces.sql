SELECT name FROM piece WHERE driver = ?1 ORDER BY name
