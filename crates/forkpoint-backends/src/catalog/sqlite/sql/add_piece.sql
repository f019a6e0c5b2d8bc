INSERT INTO piece (driver, name, over, bytes) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (driver, name) DO UPDATE SET over = excluded.over
RETURNING seq
