UPDATE piece_usage SET id = id
