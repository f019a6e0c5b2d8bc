-- ?2 limit, ?3 now, ?4 where counting in a sandbox may stop, ?5 label to group by, ?6 where counting in a group may stop
SELECT
    one.seq, one.id, one.name, one.sandbox, one.created, one.expires, one.own_bytes, one.pinned,
    (
        SELECT count(*) FROM (
            SELECT 1
            FROM snapshot AS newer INDEXED BY snapshot_by_sandbox
            WHERE newer.sandbox = one.sandbox AND newer.seq > one.seq AND (newer.expires IS NULL OR newer.expires > ?3)
            LIMIT ?4
        )
    ) AS newer_in_sandbox,
    grouped.value IS NOT NULL AS in_group,
    (
        SELECT count(*) FROM (
            SELECT 1
            FROM snapshot_label AS same
            CROSS JOIN snapshot AS newer ON newer.seq = same.seq
            WHERE same.key = ?5 AND same.value = grouped.value AND same.seq > one.seq
              AND (newer.expires IS NULL OR newer.expires > ?3)
            LIMIT ?6
        )
    ) AS newer_in_group
FROM (SELECT seq FROM chosen ORDER BY seq LIMIT ?2) AS page
CROSS JOIN snapshot AS one ON one.seq = page.seq
LEFT JOIN snapshot_label AS grouped ON grouped.seq = one.seq AND grouped.key = ?5
ORDER BY page.seq
