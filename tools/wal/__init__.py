"""The commands of `tidelog wal`."""
