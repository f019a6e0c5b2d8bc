INSERT INTO ghost (seq, id, parent, name, sandbox, sandbox_name, kind, trigger, description, own_bytes, created)
SELECT seq, id, parent, name, sandbox, sandbox_name, kind, trigger, description, own_bytes, created
FROM snapshot WHERE id = ?1
