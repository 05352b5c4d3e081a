"""The report upstream, and the reader of a fleet's reports (docs/upstream.md).

The names here are the door for a scheduler. Each is imported when it is asked for: an agent without
a store loads nothing of the network.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xce_nodeagent.upstream.assignment import Assignment, Fits, assign, fits
    from xce_nodeagent.upstream.etcd import Client
    from xce_nodeagent.upstream.etcdstore import client
    from xce_nodeagent.upstream.fleet import Count, Fleet, Node
    from xce_nodeagent.upstream.keys import Keys
    from xce_nodeagent.upstream.watcher import State, Watcher

__all__ = [
    "Assignment",
    "Client",
    "Count",
    "Fits",
    "Fleet",
    "Keys",
    "Node",
    "State",
    "Watcher",
    "assign",
    "client",
    "fits",
]

_MODULES = {
    "assignment": ("Assignment", "Fits", "assign", "fits"),
    "etcd": ("Client",),
    "etcdstore": ("client",),
    "fleet": ("Count", "Fleet", "Node"),
    "keys": ("Keys",),
    "watcher": ("State", "Watcher"),
}
_WHERE = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
