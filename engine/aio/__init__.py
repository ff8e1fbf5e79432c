"""The handles that users of Trio get."""
