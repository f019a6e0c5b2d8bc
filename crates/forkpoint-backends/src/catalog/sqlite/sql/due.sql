-- ?1 after, ?2 limit, ?3 now, ?7 cutoff, ?8 most in a sandbox, ?9 label to group by, ?10 most in a group.
-- A rule that the policy lacks is NULL here and chooses nothing. Each rule names its index, because
-- the order asked for tempts the planner to walk through all snapshots instead.
WITH
-- Sandboxes and groups with too many, and the oldest in each that stays. Computed once for each,
-- and not once for each snapshot in it.
full_sandbox (sandbox, oldest_kept) AS MATERIALIZED (
    SELECT counted.sandbox, (
        SELECT kept.seq
        FROM snapshot AS kept INDEXED BY snapshot_by_sandbox
        WHERE kept.sandbox = counted.sandbox AND (kept.expires IS NULL OR kept.expires > ?3)
        ORDER BY kept.seq DESC LIMIT 1 OFFSET coalesce(?8, 1) - 1
    )
    FROM sandbox_usage AS counted
    WHERE counted.snapshots > ?8
),
full_group (key, value, oldest_kept) AS MATERIALIZED (
    SELECT counted.key, counted.value, (
        SELECT same.seq
        FROM snapshot_label AS same
        CROSS JOIN snapshot AS kept ON kept.seq = same.seq
        WHERE same.key = counted.key AND same.value = counted.value AND (kept.expires IS NULL OR kept.expires > ?3)
        ORDER BY same.seq DESC LIMIT 1 OFFSET coalesce(?10, 1) - 1
    )
    FROM label_usage AS counted
    WHERE counted.key = ?9 AND counted.snapshots > ?10
),
chosen (seq) AS (
    SELECT * FROM (
        SELECT seq FROM snapshot INDEXED BY snapshot_by_expiry
        WHERE expires <= ?3 AND pinned = 0 AND +seq > ?1
        ORDER BY +seq LIMIT ?2
    )
    UNION
    SELECT * FROM (
        SELECT seq FROM snapshot INDEXED BY snapshot_by_age
        WHERE created < ?7 AND pinned = 0 AND +seq > ?1
        ORDER BY +seq LIMIT ?2
    )
    UNION
    SELECT * FROM (
        SELECT older.seq
        FROM full_sandbox
        CROSS JOIN snapshot AS older INDEXED BY snapshot_by_sandbox ON older.sandbox = full_sandbox.sandbox
        WHERE older.seq > ?1 AND older.seq < full_sandbox.oldest_kept AND older.pinned = 0
        ORDER BY older.seq LIMIT ?2
    )
    UNION
    SELECT * FROM (
        SELECT labelled.seq
        FROM full_group
        CROSS JOIN snapshot_label AS labelled INDEXED BY snapshot_label_by_value
            ON labelled.key = full_group.key AND labelled.value = full_group.value
        CROSS JOIN snapshot AS older ON older.seq = labelled.seq
        WHERE labelled.seq > ?1 AND labelled.seq < full_group.oldest_kept AND older.pinned = 0
        ORDER BY labelled.seq LIMIT ?2
    )
)
