SELECT id FROM sandbox WHERE driver = ?1 AND name = ?2
