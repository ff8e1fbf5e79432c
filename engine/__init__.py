"""The store that runs: commits, checkpoints, recovery, maps and transactions."""
