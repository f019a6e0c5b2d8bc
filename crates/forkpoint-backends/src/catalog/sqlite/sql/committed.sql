INSERT INTO committed (operation) VALUES (?1) RETURNING seq
