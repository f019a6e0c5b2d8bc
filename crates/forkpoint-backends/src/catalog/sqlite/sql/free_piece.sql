DELETE FROM piece
WHERE driver = ?1 AND name = ?2
  AND NOT EXISTS (SELECT 1 FROM hold WHERE hold.piece = piece.seq)
  AND NOT EXISTS (SELECT 1 FROM piece AS upper WHERE upper.driver = ?1 AND upper.over = ?2)
RETURNING name, over, bytes
