INSERT INTO agent_state (seq, bytes) VALUES (?1, ?2)
