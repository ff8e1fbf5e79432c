"""What takes rows: sinks and bulk loads."""
