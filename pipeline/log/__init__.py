"""Cuts of a log and the changes between them."""
