SELECT snapshot.*, labelled.seq AS place
FROM snapshot_label AS labelled
CROSS JOIN snapshot ON snapshot.seq = labelled.seq
WHERE labelled.key = ? AND labelled.value = ? AND labelled.seq < ?
