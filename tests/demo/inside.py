"""The demo's job: a process that tries every node it is told of, whenever it is asked.

It enters its cgroup by itself, as a starter on cgroup v1 would, and then answers each line on its
standard input (any text) with one line of JSON: node to `open`, or the name of the errno.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path


def attempt(path: str) -> str:
    """Open a node for reading and writing, as a GPU library does."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))
    return "open"


def main() -> None:
    """Enter the cgroups named in `DEMO_CGROUPS`, say `ready`, answer until the input ends."""
    for cgroup in filter(None, os.environ.pop("DEMO_CGROUPS", "").split(":")):
        (Path(cgroup) / "cgroup.procs").write_text(str(os.getpid()), "ascii")
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for _ in sys.stdin:
        sys.stdout.write(json.dumps({path: attempt(path) for path in sys.argv[1:]}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
