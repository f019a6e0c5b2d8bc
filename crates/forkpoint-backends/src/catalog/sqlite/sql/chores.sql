SELECT id, driver, task FROM chore ORDER BY id
