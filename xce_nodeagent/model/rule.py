"""The rule algebra: which accesses to which device nodes.

Both back ends take their rules from here, so that they cannot differ: cgroup v1 as lines for
`devices.deny` and `devices.allow`, cgroup v2 as entries of two BPF maps.

The judgement, for an access `a` to a device `d` by a job that was given `grants`:

    d not managed            → allowed, as far as the parent cgroups allow it
    d managed                → allowed when the grants for d, united, cover every bit of a

There are no wildcards: cgroup v1 takes an exception away only by an exact match, so a denied
whole major could not be opened again for one minor (security/device_cgroup.c,
dev_exception_rm). A device that is plugged in is one more entry.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import IntFlag
from typing import Literal

from msgspec import Struct

from xce_nodeagent.model.instance import DeviceNode


class Access(IntFlag):
    """The bits that the kernel passes to a device program (linux/bpf.h, BPF_DEVCG_ACC_*)."""

    NONE = 0
    MKNOD = 1
    READ = 2
    WRITE = 4

    def __str__(self) -> str:
        return "".join(letter for letter, bit in _LETTERS.items() if self & bit)


_LETTERS = {"r": Access.READ, "w": Access.WRITE, "m": Access.MKNOD}
READ_WRITE = Access.READ | Access.WRITE
ALL = READ_WRITE | Access.MKNOD

MAJOR_LIMIT = 1 << 12  # MAJOR() has 12 bits in the kernel (linux/kdev_t.h)
MINOR_LIMIT = 1 << 20


class Device(Struct, frozen=True, gc=False, order=True):
    """A device as rules name it."""

    type: Literal["c", "b"]
    major: int
    minor: int

    @classmethod
    def of(cls, node: DeviceNode) -> Device:
        """Give the device behind a node."""
        return cls(node.type, node.major, node.minor)

    def __str__(self) -> str:
        return f"{self.type} {self.major}:{self.minor}"


class Rule(Struct, frozen=True, gc=False, order=True):
    """A device and the accesses to it. `access` is a sum of `Access` bits, never 0."""

    device: Device
    access: int

    def line(self) -> str:
        """Give the rule as cgroup v1 writes it (kernel: admin-guide/cgroup-v1/devices.rst)."""
        return f"{self.device} {Access(self.access)}"


def normal(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Unite the rules for each device; the result is sorted and names no device twice."""
    bits: dict[Device, int] = {}
    for rule in rules:
        bits[rule.device] = bits.get(rule.device, 0) | rule.access
    return tuple(Rule(device, bits[device]) for device in sorted(bits))


def allows(
    managed: Collection[Device], grants: Iterable[Rule], device: Device, access: Access
) -> bool:
    """Judge one access: the specification that both back ends are tested against."""
    if device not in managed:
        return True
    granted = 0
    for rule in grants:
        if rule.device == device:
            granted |= rule.access
    return not access & ~granted


def closed(devices: Iterable[Device], grants: Iterable[Rule]) -> tuple[Rule, ...]:
    """Give what is to be denied: of each device, the bits that are not granted; sorted.

    Exact bits, so that to assert it again closes nothing that is granted, even for a moment.
    """
    granted = {rule.device: rule.access for rule in normal(grants)}
    left = ((device, int(ALL) & ~granted.get(device, 0)) for device in sorted(devices))
    return tuple(Rule(device, bits) for device, bits in left if bits)


def opened(managed: Collection[Device], grants: Iterable[Rule]) -> tuple[Rule, ...]:
    """Give what is to be allowed, sorted.

    A grant of an unmanaged device is left out: under v2 it has no effect either, and on v1 it
    could widen what an admin narrowed.
    """
    return tuple(rule for rule in normal(grants) if rule.device in managed)
