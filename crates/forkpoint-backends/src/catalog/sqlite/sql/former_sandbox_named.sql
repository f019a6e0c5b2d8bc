SELECT sandbox FROM snapshot WHERE driver = ?1 AND sandbox_name = ?2 ORDER BY seq DESC LIMIT 1
