DELETE FROM ghost
WHERE id = ?1
  AND NOT EXISTS (SELECT 1 FROM snapshot WHERE snapshot.parent = ?1)
  AND NOT EXISTS (SELECT 1 FROM ghost AS child WHERE child.parent = ?1)
  AND NOT EXISTS (SELECT 1 FROM sandbox WHERE sandbox.head = ?1)
RETURNING parent
