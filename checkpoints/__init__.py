"""Checkpoints: what they record, when to take one, and the fold of the log that comes after."""
