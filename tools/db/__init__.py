"""The commands of `tidelog db`."""
