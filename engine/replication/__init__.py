"""How the copies of a partition stay equal: what they tell each other, and what a takeover does."""
