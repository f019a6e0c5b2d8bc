EXISTS (SELECT 1 FROM sandbox_label AS label WHERE label.seq = sandbox.seq AND label.key = ? AND label.value = ?)
