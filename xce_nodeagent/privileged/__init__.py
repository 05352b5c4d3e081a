"""Closed operations that need privilege: what may be asked, who acts, in which process."""
