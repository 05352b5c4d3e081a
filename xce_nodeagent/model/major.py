"""Major numbers of device drivers: those for local use, and those that a host's drivers have."""

from __future__ import annotations

import re

LOCAL_MAJORS = (*range(60, 64), *range(120, 128))
"""Character majors for local and experimental use (kernel: admin-guide/devices.txt): no driver of
the kernel's own has them, so simulated devices do."""


def character_drivers(devices: str) -> dict[int, frozenset[str]]:
    """Read the character half of /proc/devices (proc(5)): which names have each major."""
    found: dict[int, set[str]] = {}
    half, _, _ = devices.partition("Block devices:")
    for line in half.splitlines():
        number, _, name = line.strip().partition(" ")
        if re.fullmatch("[0-9]{1,7}", number):
            found.setdefault(int(number), set()).add(name.strip())
    return {major: frozenset(names) for major, names in found.items()}
