"""The client of a cluster: the same maps and transactions, over connections to its members."""
