-- From the holder to its pieces: the other way round would look at all pieces of the driver.
INSERT OR IGNORE INTO hold (piece, holder)
SELECT hold.piece, ?3
FROM hold CROSS JOIN piece ON piece.seq = hold.piece
WHERE hold.holder = ?2 AND piece.driver = ?1
