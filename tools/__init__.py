"""The command line: one module per group of commands, loaded when it is asked for."""
