"""From the options of a read to its tasks."""
