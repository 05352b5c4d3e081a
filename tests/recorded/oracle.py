"""What hwloc's lstopo makes of a tree: another program's reading of the same files."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

from recorded import hwloc
from recorded.machine import Machine
from recorded.tree import folder_of


def lstopo(root: Path) -> Machine:
    """Let lstopo read a recorded machine (hwloc's HWLOC_FSROOT), and read what it writes.

    It gives a place to each function, also where the kernel tells none: in a machine of one NUMA
    node that says nothing of `numa_node`. And it takes the way to a function from the configuration
    space of the bridges: where a recording lacks them, it has host bridges that are not there.
    """
    done = subprocess.run(
        # A recorded control group rules what its process may use, not what there is.
        ["lstopo-no-graphics", "--disallowed", "--filter", "all:all", "--of", "xml", "-"],
        env={
            **os.environ,
            "HWLOC_FSROOT": str(root),
            "HWLOC_COMPONENTS": "linux,stop",
            # The memory of cards of NVIDIA on POWER9; the kernel shows it, and so does the product.
            "HWLOC_KEEP_NVIDIA_GPU_NUMA_NODES": "1",
        },
        check=True,
        capture_output=True,
        text=True,
    )
    seen = hwloc.read(done.stdout)
    if not (root / "sys/devices/system/node").is_dir():
        seen = replace(seen, nodes=())
    functions = seen.functions
    if len(seen.nodes) <= 1:
        functions = tuple(replace(one, numa_node=None) for one in functions)
    if not all((root / folder_of(one)).is_dir() for one in functions):
        functions = tuple(replace(one, path=()) for one in functions)
    return replace(seen, functions=functions)
