"""Sets of CPUs in the spellings of other programs."""

from __future__ import annotations

import re
from collections.abc import Iterable

from xce_nodeagent.model.environment import ranges


def listed(text: str) -> tuple[int, ...]:
    """Read a CPU list of the inventory, such as `0-3,8`."""
    found: list[int] = []
    for match in re.finditer(r"(\d{1,5})(?:-(\d{1,5}))?", text, re.ASCII):
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(found)


def numbers(values: Iterable[int]) -> str:
    """Write numbers as a list with ranges."""
    return ranges(sorted(values))


def mask(cpus: Iterable[int]) -> str:
    """Write CPUs as sysfs writes a mask: words of 32 bits in hexadecimal, the highest first."""
    bits = sum(1 << cpu for cpu in set(cpus))
    words: list[str] = []
    while bits or not words:
        words.append(f"{bits & 0xFFFFFFFF:08x}")
        bits >>= 32
    return ",".join(reversed(words))
