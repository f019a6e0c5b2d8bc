-- ?1 after, ?2 limit
WITH chosen (seq) AS (
    SELECT seq FROM snapshot WHERE seq > ?1 AND pinned = 0 ORDER BY seq LIMIT ?2
)
