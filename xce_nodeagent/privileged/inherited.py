"""What whoever started us had open: a descriptor is a right, and none of theirs is for us."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection


def close_inherited(keep: Collection[int] = ()) -> None:
    """Close every descriptor above stderr but those in `keep`. For the start of a program only."""
    # close_range(2) came with Linux 5.9, and before it Python would try every possible number.
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number not in keep:
            with contextlib.suppress(OSError):  # the listing's own, which is closed again
                os.close(number)
