"""A member of a cluster: what it writes, serves and agrees to."""
