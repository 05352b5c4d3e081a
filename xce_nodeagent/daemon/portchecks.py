"""What doctor says of the port range: whether the kernel itself may give its ports to others.

Sources: kernel, Documentation/networking/ip-sysctl.rst: `ip_local_port_range` is what the kernel
chooses from for whoever connects, or binds to port 0, with IPv6, too; `ip_local_reserved_ports` are
kept out of that, and can be bound by name; ports below `ip_unprivileged_port_start` are for root.
All three are of the network namespace.
"""

from __future__ import annotations

import re

from xce_nodeagent.host import Host
from xce_nodeagent.model import environment
from xce_nodeagent.model.wire import Check

_SYSCTL = "/proc/sys/net/ipv4/"
_LAST = 65_535


def checks(host: Host) -> list[Check]:
    """Look at the range that is configured, in the network namespace of the agent."""
    if host.port_range is None:
        return []
    first, last = host.port_range
    managed = frozenset(range(first, last + 1))
    text = f"{first}-{last}"
    closed = [port for port in managed if port < _unprivileged(host)]
    if closed:
        return [
            Check(
                name="ports",
                state="warning",
                text=f"{text}: jobs that are not root's cannot bind {environment.ranges(closed)}",
                remedy="set [ports] range above net.ipv4.ip_unprivileged_port_start",
            )
        ]
    open_ = managed & _chosen(host) - _reserved(host)
    if open_:
        shared = environment.ranges(open_)
        return [
            Check(
                name="ports",
                state="warning",
                text=f"{text}: the kernel gives {shared} to whoever connects, so a job may find a"
                " port of its own in use",
                remedy=f"`sysctl -w net.ipv4.ip_local_reserved_ports={_with(host, shared)}`, in a"
                " file of /etc/sysctl.d to stay; or set [ports] range outside of"
                " net.ipv4.ip_local_port_range",
            )
        ]
    return [Check(name="ports", state="ok", text=f"{text}: the kernel gives none to others")]


def _unprivileged(host: Host) -> int:
    found = _numbers(host.read(f"{_SYSCTL}ip_unprivileged_port_start"))
    return found[0] if found else 0


def _chosen(host: Host) -> frozenset[int]:
    found = _numbers(host.read(f"{_SYSCTL}ip_local_port_range"))
    return frozenset(range(found[0], found[1] + 1)) if len(found) == 2 else frozenset()


def _reserved(host: Host) -> frozenset[int]:
    text = host.read(f"{_SYSCTL}ip_local_reserved_ports") or ""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        ends = _numbers(part.replace("-", " "))
        if ends:
            found.update(range(ends[0], ends[-1] + 1))
    return frozenset(found)


def _with(host: Host, more: str) -> str:
    """Give the list with more in it: whoever writes it writes all of it."""
    text = (host.read(f"{_SYSCTL}ip_local_reserved_ports") or "").strip()
    return f"{text},{more}" if text else more


def _numbers(text: str | None) -> list[int]:
    found = [int(word) for word in re.findall(r"\d{1,5}", text or "", re.ASCII)]
    return [number for number in found if number <= _LAST]
