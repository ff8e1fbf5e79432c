"""The commands of `tidelog spark`."""
