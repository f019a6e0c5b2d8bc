-- Without duplicates, so that a damaged catalog with a circle in it has an end.
WITH RECURSIVE chain (id) AS (
    VALUES (?1)
    UNION
    SELECT snapshot.parent FROM chain JOIN snapshot ON snapshot.id = chain.id WHERE snapshot.parent IS NOT NULL
    UNION
    SELECT ghost.parent FROM chain JOIN ghost ON ghost.id = chain.id WHERE ghost.parent IS NOT NULL
)
SELECT * FROM lineage WHERE id IN (SELECT id FROM chain) ORDER BY seq
