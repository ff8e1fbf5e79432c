"""What lies in the directory of a store beside the data file: manifest and log."""
