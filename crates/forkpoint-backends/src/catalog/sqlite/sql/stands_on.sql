SELECT driver, head FROM sandbox WHERE id = ?1
