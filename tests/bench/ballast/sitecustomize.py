"""Two GiB for the agent that is started with this folder on its path.

Python imports a module of this name at its start. The memory is touched, in small pages, like a
heap of many objects. The agent's helpers, which inherit the path, do without.
"""

import contextlib
import mmap
import sys

if "run" in sys.orig_argv:
    HELD = mmap.mmap(-1, 2 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):
        HELD.madvise(mmap.MADV_NOHUGEPAGE)
    for page in range(0, len(HELD), mmap.PAGESIZE):
        HELD[page] = 1
