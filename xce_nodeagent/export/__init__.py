"""The inventory in the words of other programs: a format a module, each pure."""
