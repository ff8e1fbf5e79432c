"""Ids, errors, and the place of a key: what every other layer may rest on."""
