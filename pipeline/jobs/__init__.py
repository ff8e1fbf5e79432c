"""Jobs that run here or in Spark."""
