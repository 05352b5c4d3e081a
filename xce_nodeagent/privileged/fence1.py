"""The fence of cgroup v1: lines written to `devices.deny` and `devices.allow`.

A v1 cgroup either allows everything but its exceptions, or refuses everything but them
(security/device_cgroup.c). In the first kind `devices.list` reads `a *:* rwm` whatever the
exceptions are, so what was denied cannot be read back, only written again.

Denies reach all sub-cgroups by themselves. An allow works where it is written only, and only if
the cgroup above has it; so what is given goes top-down into every sub-cgroup. Bits are exact: to
deny `m` leaves `rw` as it was. So an assertion never closes what is granted, even for a moment,
and never opens what is not: first each managed device loses the bits that are not granted, then
the granted ones are allowed.

A device that is managed no longer stays denied for the jobs that were bound before: to allow it
could widen what an admin narrowed.

cgroupspy knows the files, and reads and parses `devices.list`. Its own writes open and close the
file for every line: 20 µs each, where a write to an open one costs 1.3 µs (measured on a 2-core
machine), and a host with 8 GPUs has 30 lines or more for a job. So the lines go into the file
that it names, opened once.
"""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Iterable
from typing import Literal

from cgroupspy.contenttypes import DeviceAccess
from cgroupspy.controllers import DevicesController
from cgroupspy.nodes import Node

from xce_nodeagent.errors import AgentError, BadCgroup, Enforcement
from xce_nodeagent.model.rule import Access, Device, Rule, closed, normal, opened
from xce_nodeagent.privileged.cgroup import Cgroup
from xce_nodeagent.privileged.fence import beyond, common, each, listed
from xce_nodeagent.privileged.ops import Verified

# The same few hundred lines are written for every job, and an IntFlag is slow to show.
_line = functools.lru_cache(8192)(Rule.line)

_BITS = {
    Access.READ: DeviceAccess.ACCESS_READ,
    Access.WRITE: DeviceAccess.ACCESS_WRITE,
    Access.MKNOD: DeviceAccess.ACCESS_MKNOD,
}


class Fence1:
    """Writes lines; remembers which devices are managed, and which were told to all cgroups."""

    def __init__(self, managed: frozenset[Device] = frozenset()) -> None:
        self._managed = managed
        self._told: frozenset[Device] = frozenset()

    def close(self) -> None:
        """There is nothing to let go of."""

    # ---- Fence ------------------------------------------------------------------------------

    def manage(self, devices: frozenset[Device], bound: Iterable[Cgroup]) -> None:
        """Deny what is new to every bound cgroup, except what is recorded as granted.

        After a restart everything is new, and denied once more: that changes nothing.
        """
        self._managed = devices
        if added := devices - self._told:
            each(bound, lambda cgroup: self._deny(cgroup, added, cgroup.grants()))
        self._told = devices

    def remember(self, cgroup: Cgroup, *, made: bool) -> None:
        """What the cgroups above refuse cannot be allowed here, and so is seen at once."""

    def forget(self, cgroup: Cgroup) -> None:
        """The record went with the mark."""

    def bind(self, cgroup: Cgroup, grants: tuple[Rule, ...], *, made: bool) -> None:
        """Take what is not granted, then give what is; see `Cgroup.record` for the order."""
        before = () if made else cgroup.grants()
        cgroup.record(common(before, grants))
        self._deny(cgroup, self._managed, grants)
        _write(cgroup, "allow", self._lines(grants))
        if not made and (added := beyond(grants, before)):
            more = self._lines(added)
            each(cgroup.descendants(), lambda below: _write(below, "allow", more))
        self._check_wildcards(cgroup, grants)
        cgroup.record(normal(grants))

    def spread(self, cgroup: Cgroup, grants: tuple[Rule, ...]) -> None:
        """Allow it in every sub-cgroup: a deny reached them all, and an allow reaches none."""
        lines = self._lines(grants)
        each(cgroup.descendants(), lambda below: _write(below, "allow", lines))

    def holds(self, cgroup: Cgroup) -> bool:
        """Say whether anything is recorded as granted."""
        return bool(cgroup.grants())

    def verify_home(self, home: Cgroup | None) -> str:  # noqa: ARG002  # Fence's signature
        """Bindings share nothing in this hierarchy."""
        return ""

    def repair_home(self, home: Cgroup | None) -> None:
        """Bindings share nothing in this hierarchy."""

    def verify(self, cgroup: Cgroup, grants: tuple[Rule, ...]) -> Verified:
        """Compare as far as the kernel shows: wholly where the cgroup refuses by default."""
        if (recorded := cgroup.grants()) != normal(grants):
            return Verified(
                "differs",
                f"its grants are recorded as {listed(recorded)};"
                f" they should be {listed(normal(grants))}",
            )
        shown = self._shown(cgroup)
        if shown is None:
            return Verified(
                "unverifiable",
                "the cgroup allows by default, and cgroup v1 does not show what it denies",
            )
        if fault := self._open_fault(shown, grants):
            return Verified("differs", fault)
        for rule in normal(grants):
            missing = rule.access & ~_covered(shown, rule.device)
            if rule.device in self._managed and missing:
                return Verified("differs", f"{Rule(rule.device, missing).line()} is not allowed")
        return Verified("ok")

    def granted(self, cgroup: Cgroup) -> tuple[Rule, ...] | None:
        """Give what is recorded."""
        return cgroup.grants()

    # ---- acting -----------------------------------------------------------------------------

    @staticmethod
    def _deny(cgroup: Cgroup, devices: Iterable[Device], grants: Iterable[Rule]) -> None:
        _write(cgroup, "deny", map(_line, closed(devices, grants)))

    def _lines(self, grants: Iterable[Rule]) -> list[str]:
        return [_line(rule) for rule in opened(self._managed, grants)]

    # ---- looking ----------------------------------------------------------------------------

    def _check_wildcards(self, cgroup: Cgroup, grants: tuple[Rule, ...]) -> None:
        """Refuse a cgroup that allows whole majors: v1 cannot take one minor out of them."""
        shown = self._shown(cgroup)
        if shown is not None and (fault := self._open_fault(shown, grants)):
            raise Enforcement(
                f"cgroup {cgroup.ref.path} cannot be fenced: {fault}; have its owner list single"
                " devices, or use a cgroup that allows by default",
                cgroup=cgroup.ref.path,
            )

    @staticmethod
    def _shown(cgroup: Cgroup) -> list[DeviceAccess] | None:
        """Give what a cgroup allows that refuses by default; None for the other kind."""
        shown: list[DeviceAccess] = _controller(cgroup).list
        # An all-wildcard entry is shown for the other kind only: to allow `a` switches the kind.
        if any(entry.major == "*" and entry.dev_type not in ("b", "c") for entry in shown):
            return None
        return shown

    def _open_fault(self, shown: list[DeviceAccess], grants: Iterable[Rule]) -> str:
        granted = {rule.device: rule.access for rule in normal(grants)}
        for device in sorted(self._managed):
            if more := _covered(shown, device) & ~granted.get(device, 0):
                return f"{Rule(device, more).line()} is open to it without a grant"
        return ""


def _controller(cgroup: Cgroup) -> DevicesController:
    # By descriptor, so that nothing can change what the path means; and one node only, because
    # cgroupspy's Tree walks the whole hierarchy.
    return DevicesController(Node(f"/proc/self/fd/{cgroup.fd}"))


def _write(cgroup: Cgroup, verb: Literal["allow", "deny"], lines: Iterable[str]) -> None:
    controller = _controller(cgroup)
    path = controller.filepath(controller.get_interface(verb).filename)
    line = ""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            for line in lines:
                os.write(fd, line.encode())  # the kernel takes one rule in each write
        finally:
            os.close(fd)
    except OSError as error:
        raise _refused(cgroup, verb, line, error) from error


def _covered(shown: list[DeviceAccess], device: Device) -> int:
    bits = 0
    for entry in shown:
        if (
            entry.dev_type == device.type
            and entry.major in ("*", device.major)
            and entry.minor in ("*", device.minor)
        ):
            for bit, theirs in _BITS.items():
                bits |= bit if entry.access & theirs else 0
    return bits


def _refused(cgroup: Cgroup, verb: str, line: str, error: OSError) -> AgentError:
    path = cgroup.ref.path
    if error.errno in (errno.ENOENT, errno.ENODEV):
        return BadCgroup(f"cgroup {path} was removed meanwhile", cgroup=path)
    why = error.strerror
    if error.errno == errno.EPERM and verb == "allow":
        why = "the cgroup above does not allow it; have its owner allow it there"
    return Enforcement(f"cgroup {path}: devices.{verb} {line!r}: {why}", cgroup=path)
