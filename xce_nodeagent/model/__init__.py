"""Frozen types and pure functions: no I/O, no clock, no third party but msgspec."""
