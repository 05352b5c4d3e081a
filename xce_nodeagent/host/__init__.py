"""The machine, as everything above sees it: the one door to each library.

`Host(root)` reads every path below `root`: the machine itself, or a recorded one. What a recorded
machine cannot answer (netlink, NVML) is off there, and says so.
"""

from xce_nodeagent.host.machine import Host

__all__ = ["Host"]
