SELECT driver, snapshots, pinned, own_high, own_low, total_high, total_low FROM driver_usage ORDER BY driver
