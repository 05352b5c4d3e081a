"""Two GiB for the interpreter that finds this on its path: the benchmark's large agent.

Python imports a module of this name at its start. The memory is touched, in small pages, like a
heap of many objects; a fork copies the tables of all of it.
"""

import contextlib
import mmap

HELD = mmap.mmap(-1, 2 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
with contextlib.suppress(OSError):
    HELD.madvise(mmap.MADV_NOHUGEPAGE)
for page in range(0, len(HELD), mmap.PAGESIZE):
    HELD[page] = 1
