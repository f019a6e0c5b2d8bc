INSERT INTO operation (id, owner, attempt, body) VALUES (?1, ?2, ?3, ?4)
