SELECT operation.*
FROM claim JOIN operation ON operation.seq = claim.operation
WHERE claim.resource = ?1 AND (claim.exclusive OR ?2)
ORDER BY operation.seq LIMIT 1
