SELECT snapshot.*, snapshot.seq AS place
FROM snapshot
WHERE snapshot.seq < ?
