SELECT * FROM lineage WHERE parent = ?1 ORDER BY seq
