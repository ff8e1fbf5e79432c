"""How the members of a cluster agree: the configuration log and who may write into it."""
