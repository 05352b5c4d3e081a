"""The report upstream, and the reader of a fleet's reports (docs/upstream.md)."""
