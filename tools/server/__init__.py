"""``tidelog server``: a member of a cluster, as a process."""
