SELECT sandbox FROM sandbox_usage WHERE sandbox BETWEEN ?1 AND ?2 ORDER BY sandbox LIMIT 3
