UPDATE sandbox SET head = ?2 WHERE id = ?1
