-- From the holder to its pieces: the other way round would look at all pieces of the driver.
SELECT piece.name
FROM hold CROSS JOIN piece ON piece.seq = hold.piece
WHERE hold.holder = ?2 AND piece.driver = ?1
ORDER BY piece.name
