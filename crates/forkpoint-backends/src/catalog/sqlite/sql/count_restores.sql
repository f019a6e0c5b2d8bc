UPDATE snapshot SET restore_count = restore_count + ?2, last_restored = ?3 WHERE id = ?1
