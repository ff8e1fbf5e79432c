"""What all commands share: options, errors, signals, the terminal."""
