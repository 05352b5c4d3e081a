"""What a recording says of a machine, as values. What it does not say is None or empty.

Readers of recordings (`hwloc.py`, `nccl.py`, `slices.py`) make one; `tree.py` writes it as the
kernel would show it, and `comparison.py` holds it against what discovery made of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Function:
    """A PCI function. `path` leads to it: its host bridge, then the bridges from there down."""

    address: str
    path: tuple[str, ...]
    kind: int | None = None
    """Class and subclass, 16 bits."""
    interface: int | None = None
    """The third byte of the class code; few recordings have it."""
    vendor: int | None = None
    device: int | None = None
    subsystem_vendor: int | None = None
    subsystem_device: int | None = None
    revision: int | None = None
    numa_node: int | None = None
    cpus: frozenset[int] = frozenset()
    below: tuple[int, int] | None = None
    """Of a bridge: the first and the last bus behind it."""
    drm: tuple[str, ...] = ()
    compute_units: int | None = None
    model: str = ""
    """The name, the UUID and the serial number of a card, as its vendor's library tells them."""
    uuid: str = ""
    serial: str = ""
    made_up: bool = False
    """The recording implies that it is there, and says nothing else of it."""


@dataclass(frozen=True, kw_only=True)
class Interface:
    """A network interface, on a function."""

    name: str
    function: str
    mac: str = ""
    port: int | None = None


@dataclass(frozen=True, kw_only=True)
class RdmaPort:
    """A port of an RDMA device, on a function."""

    device: str
    function: str
    port: int
    state: int | None = None
    speed_mbps: int | None = None


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """A CPU of the kernel's, the socket that it is in, and all CPUs of its core.

    A socket of several dies may have cores of one number in each.
    """

    number: int
    package: int | None
    core: int | None = None
    threads: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Node:
    """A NUMA node."""

    number: int
    cpus: frozenset[int]
    distances: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Link:
    """So many links from a card to another, or to a switch; both by PCI address.

    `end` is what is at the other end; a CPU has no address.
    """

    kind: Literal["nvlink", "xgmi"]
    one: str
    other: str
    count: int
    end: Literal["gpu", "switch", "cpu"] = "gpu"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """All of it."""

    functions: tuple[Function, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    rdma: tuple[RdmaPort, ...] = ()
    cpus: tuple[Cpu, ...] = ()
    nodes: tuple[Node, ...] = ()
    links: tuple[Link, ...] = ()


def bits(mask: str) -> frozenset[int]:
    """Read a mask as hwloc and the kernel write them: 32-bit words, the highest first."""
    words = [int(word, 16) if word.strip() else 0 for word in mask.split(",")]
    value = sum(word << 32 * place for place, word in enumerate(reversed(words)))
    return frozenset(bit for bit in range(value.bit_length()) if value >> bit & 1)


def mask(numbers: frozenset[int]) -> str:
    """Write numbers as the kernel does."""
    value = sum(1 << number for number in numbers)
    number = max((value.bit_length() + 31) // 32, 1)
    words = [f"{value >> 32 * place & 0xFFFFFFFF:08x}" for place in range(number)]
    return ",".join(reversed(words))


def listed(numbers: frozenset[int]) -> str:
    """Write numbers as a CPU list: `0-3,8`."""
    parts: list[str] = []
    first = last = -1
    for number in sorted(numbers):
        if number != last + 1 or first < 0:
            if first >= 0:
                parts.append(f"{first}-{last}" if last > first else f"{first}")
            first = number
        last = number
    if first >= 0:
        parts.append(f"{first}-{last}" if last > first else f"{first}")
    return ",".join(parts)
