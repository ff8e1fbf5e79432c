"""A store that is open: opening it, its checkpoints, its maps, its readers."""
