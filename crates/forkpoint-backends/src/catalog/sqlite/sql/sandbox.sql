SELECT * FROM sandbox WHERE id = ?1
