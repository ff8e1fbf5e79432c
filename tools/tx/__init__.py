"""``tidelog tx``: transactions of several partitions of a cluster."""
