WITH RECURSIVE chain (id, parent) AS (
    SELECT id, parent FROM snapshot WHERE id = ?1
    UNION
    SELECT id, parent FROM ghost WHERE id = ?1
    UNION
    SELECT snapshot.id, snapshot.parent FROM chain JOIN snapshot ON snapshot.id = chain.parent
    UNION
    SELECT ghost.id, ghost.parent FROM chain JOIN ghost ON ghost.id = chain.parent
),
tree (id) AS (
    SELECT id FROM chain WHERE parent IS NULL
    UNION
    SELECT snapshot.id FROM tree JOIN snapshot ON snapshot.parent = tree.id
    UNION
    SELECT ghost.id FROM tree JOIN ghost ON ghost.parent = tree.id
)
SELECT * FROM lineage WHERE id IN (SELECT id FROM tree) ORDER BY seq
