"""Times, vectors, pace: what all views need."""
