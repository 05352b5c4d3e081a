"""One resource kind, whole, in one file; siblings do not know each other."""
