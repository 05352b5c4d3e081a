"""The command line: ask and show."""
