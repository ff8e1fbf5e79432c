"""The command `tidelog demo`."""
