INSERT INTO chore (driver, task) VALUES (?1, ?2)
