"""Device nodes as they are on disk: a rule is made from numbers, and a job opens a path.

Where both differ, a job would be refused its own device, or be let to somebody else's.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from xce_nodeagent.errors import exhausted
from xce_nodeagent.host.machine import Host
from xce_nodeagent.model.instance import DeviceNode

_NOT_NEEDED = "/dev/dri/"
"""A container may be without these, and who computes can do so, too."""


_MODES = {"c": stat.S_IFCHR, "b": stat.S_IFBLK}


def is_right(host: Host, node: DeviceNode) -> bool:
    """Say whether a node is there, as it should be: the usual case, quickly."""
    found = _look(host, node)
    return (
        found is not None
        and found.st_rdev == os.makedev(node.major, node.minor)
        and stat.S_IFMT(found.st_mode) == _MODES[node.type]
    )


def fault(host: Host, node: DeviceNode) -> str:
    """Say what is wrong with a node that is there; empty where it is right, or is not there."""
    found = _look(host, node)
    return "" if found is None else _wrong(node, found)


def _wrong(node: DeviceNode, found: os.stat_result) -> str:
    kinds = {stat.S_IFCHR: "c", stat.S_IFBLK: "b"}
    kind = kinds.get(stat.S_IFMT(found.st_mode))
    expected = f"{node.type} {node.major}:{node.minor}"
    if kind is None:
        return f"{node.path} is no device node; it should be {expected}: remove it"
    if (kind, os.major(found.st_rdev), os.minor(found.st_rdev)) != (
        node.type,
        node.major,
        node.minor,
    ):
        is_now = f"{kind} {os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
        return f"{node.path} is {is_now}; it should be {expected}: make it anew"
    return ""


def faults(host: Host, nodes: Iterable[DeviceNode]) -> str:
    """Say what is wrong with the first of an instance's own nodes that is wrong, or missing."""
    for node in nodes:
        found = _look(host, node)
        if found is not None:
            if why := _wrong(node, found):
                return why
        elif not node.path.startswith(_NOT_NEEDED):
            return (
                f"{node.path} is not there: udev, or the driver's own program"
                f" (`nvidia-modprobe`), makes it as {node.type} {node.major}:{node.minor}"
            )
    return ""


def _look(host: Host, node: DeviceNode) -> os.stat_result | None:
    try:
        # On a job's path: a Path costs as much as the look.
        return os.lstat(node.path if str(host.root) == "/" else host.path(node.path))
    except OSError as error:
        if exhausted(error):
            raise
        return None
