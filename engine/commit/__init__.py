"""The way of a commit into the log and the overlay."""
