SELECT agent_state.bytes
FROM snapshot LEFT JOIN agent_state ON agent_state.seq = snapshot.seq
WHERE snapshot.id = ?1
