SELECT
    (SELECT count(*) FROM sandbox),
    (SELECT min(created) FROM snapshot),
    (SELECT max(created) FROM snapshot),
    stored_high,
    stored_low
FROM piece_usage
