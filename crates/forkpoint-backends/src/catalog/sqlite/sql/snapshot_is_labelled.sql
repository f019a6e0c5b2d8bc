EXISTS (SELECT 1 FROM snapshot_label AS label WHERE label.seq = snapshot.seq AND label.key = ? AND label.value = ?)
