"""``tidelog cluster``: a cluster on this machine, to try things with."""
