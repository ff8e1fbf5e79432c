"""The outside world as ports, and the real ones: clock, chance, disk, LMDB, threads."""
