INSERT OR IGNORE INTO hold (piece, holder) VALUES (?1, ?2)
