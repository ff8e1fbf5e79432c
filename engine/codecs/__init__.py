"""From the values of users to the bytes of keys and values, and back."""
