DELETE FROM sandbox WHERE id = ?1 RETURNING driver, head
