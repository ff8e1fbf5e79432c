"""The commands of `tidelog kv`."""
