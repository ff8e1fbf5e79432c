"""The data source, sessions and submission: all that knows Spark."""
