SELECT * FROM operation ORDER BY seq
