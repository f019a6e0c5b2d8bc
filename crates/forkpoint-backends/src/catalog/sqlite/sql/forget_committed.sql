DELETE FROM committed WHERE seq <= ?1
