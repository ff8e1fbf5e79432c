"""The handles that users of threads get."""
