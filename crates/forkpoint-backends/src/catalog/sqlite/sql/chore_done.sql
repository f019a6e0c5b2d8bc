DELETE FROM chore WHERE id = ?1
