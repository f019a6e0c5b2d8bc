INSERT INTO piece (driver, name, over) VALUES (?1, ?2, ?3)
ON CONFLICT (driver, name) DO UPDATE SET over = excluded.over
RETURNING seq
