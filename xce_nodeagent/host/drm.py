"""Device nodes of GPUs and accelerators, by the numbers that sysfs gives.

Sources: kernel Documentation/gpu/drm-uapi.rst (primary and render nodes) and
Documentation/accel/introduction.rst (`/dev/accel/accel*`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from xce_nodeagent.host.machine import Host
from xce_nodeagent.model.instance import DeviceNode
from xce_nodeagent.model.rule import MAJOR_LIMIT, MINOR_LIMIT

_NODE = re.compile(r"(card|renderD)[0-9]{1,7}")
_NUMBERS = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")


def function(address: str) -> str:
    """Give the folder of a PCI function."""
    return f"/sys/bus/pci/devices/{address}"


def nodes(host: Host, device: str) -> Mapping[str, DeviceNode]:
    """Give the DRM nodes of a device by their names, `card0` and `renderD128`.

    `device` is its folder in sysfs. A node whose numbers the kernel does not tell is left out;
    connectors (`card0-DP-1`) are no nodes.
    """
    folder = f"{device}/drm"
    found = {
        name: numbered(host, f"{folder}/{name}", f"/dev/dri/{name}")
        for name in host.names(folder)
        if _NODE.fullmatch(name)
    }
    return {name: node for name, node in found.items() if node}


def numbered(host: Host, folder: str, path: str) -> DeviceNode | None:
    """Give the character node that a folder of sysfs stands for, by its file `dev`."""
    numbers = _NUMBERS.fullmatch(host.read(f"{folder}/dev") or "")
    if not numbers:
        return None
    major, minor = int(numbers[1]), int(numbers[2])
    if not (0 < major < MAJOR_LIMIT and minor < MINOR_LIMIT):
        return None
    return DeviceNode(path, "c", major, minor)


def driver(host: Host, address: str) -> str:
    """Give the name of the driver that a function is bound to; empty where it is bound to none."""
    return (host.real(f"{function(address)}/driver") or "").rpartition("/")[2]


def unbound(host: Host, address: str) -> str:
    """Say why nobody can use a function that its vendor's driver does not have."""
    bound = driver(host, address)
    return f"it is bound to the driver {bound}" if bound else "no driver is bound to it"


def text(host: Host, name: str) -> str:
    """Give a short line that people can read; empty where a file holds anything else."""
    line = host.read(name) or ""
    return line if line.isprintable() and "\ufffd" not in line and len(line) <= 128 else ""


def count(host: Host, name: str, limit: int = 1 << 53) -> int | None:
    """Give a number that is not negative and below a limit; None where there is none.

    Inventories are JSON, whose numbers are exact up to 2**53 (RFC 8259, section 6).
    """
    number = host.number(name)
    return number if number is not None and 0 <= number < limit else None
