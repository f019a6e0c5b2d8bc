INSERT OR IGNORE INTO claim (resource, operation, exclusive) VALUES (?1, ?2, ?3)
