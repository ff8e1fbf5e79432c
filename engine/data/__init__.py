"""What a store holds in memory and in its data file, as values and layouts."""
