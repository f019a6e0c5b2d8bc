SELECT * FROM lineage ORDER BY seq
