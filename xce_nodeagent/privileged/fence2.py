"""The fence of cgroup v2: device programs attached to job cgroups. `bpf.py` has the programs.

Attachments need no process: PROG_ATTACH lasts as long as the cgroup, and is undone by nothing but
its removal or a detach. There are no links and no pins. The anchor at the jobs' home keeps the maps
and shows the next binder where they are; where the home is gone, any bound cgroup does.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from collections.abc import Iterable
from typing import Self

from xce_nodeagent.errors import Enforcement, exhausted
from xce_nodeagent.model.rule import Device, Rule, normal
from xce_nodeagent.privileged import attachment, bpf, bpfcall, mask
from xce_nodeagent.privileged.attachment import Programs
from xce_nodeagent.privileged.bpfcall import ProgramInfo
from xce_nodeagent.privileged.cgroup import Cgroup
from xce_nodeagent.privileged.fence import listed
from xce_nodeagent.privileged.jobfence import JobFence
from xce_nodeagent.privileged.ops import Verified

_OK = Verified("ok")
_YES = struct.pack("=I", 1)  # the value of a managed device: there are no others

_MANAGED = (bpf.MANAGED_NAME, bpfcall.HASH, bpf.KEY_SIZE)
_GRANTS = (bpf.GRANTS_NAME, bpfcall.CGROUP_STORAGE, bpf.CGROUP_KEY_SIZE)

VALUES_LIMIT = 512
"""Encoded sets of grants that are kept: encoding 26 rules takes as long as making the cgroup."""


class SharedFence:
    """One program for all jobs; each job's grants in the storage of its cgroup.

    `recovered`: the maps are those of an earlier binder, with all that they hold. `note` says what
    is lacking, if anything is.
    """

    kind = "shared"

    def __init__(self, managed_fd: int, grants_fd: int, *, recovered: bool) -> None:
        """Load the program on these maps, which the fence then owns."""
        self.recovered = recovered
        self.note = ""
        self._managed = managed_fd
        self._grants = grants_fd
        self._values: dict[int, tuple[tuple[Rule, ...], bytes]] = {}
        self._slots = bpf.slots_of(bpfcall.map_info(grants_fd).value_size)
        # The verifier's milliseconds are paid here, once. The tag of a program that runs already is
        # compared with this copy's: how it is computed differs between kernels.
        self._program = bpfcall.prog_load(
            bpf.fence(managed_fd, grants_fd, self._slots), bpf.FENCE_NAME
        )
        self._info = bpfcall.prog_info(self._program)
        self._told: frozenset[Device] | None = None
        self._programs = Programs()
        self._anchor_tag = attachment.anchor_tag()

    @classmethod
    def take(cls, home: Cgroup | None, known: Iterable[Cgroup]) -> Self:
        """Find the maps of an earlier binder, or make new ones; raise OSError if it cannot be."""
        with contextlib.ExitStack() as stack:
            maps = _recover(home, known)
            recovered = maps is not None
            if maps is None:
                managed = bpfcall.map_create(
                    bpfcall.HASH,
                    bpf.MANAGED_NAME,
                    key_size=bpf.KEY_SIZE,
                    value_size=len(_YES),
                    max_entries=bpf.MANAGED_LIMIT,
                    flags=bpfcall.NO_PREALLOC,
                )
                stack.callback(os.close, managed)
                grants = bpfcall.map_create(
                    bpfcall.CGROUP_STORAGE,
                    bpf.GRANTS_NAME,
                    key_size=bpf.CGROUP_KEY_SIZE,
                    value_size=bpf.grants_size(bpf.SLOTS),
                    max_entries=0,  # the kernel wants 0: there are as many values as cgroups
                )
                stack.callback(os.close, grants)
            else:
                managed, grants = maps
                stack.callback(os.close, managed)
                stack.callback(os.close, grants)
            fence = cls(managed, grants, recovered=recovered)
            stack.pop_all()
        try:
            if home is not None:
                fence.repair_home(home)
        except BaseException:
            fence.close()
            raise
        return fence

    def close(self) -> None:
        """Let go of the program and the maps; what is attached keeps them."""
        for fd in (self._program, self._managed, self._grants):
            os.close(fd)

    def _anchor(self, home: Cgroup) -> str:
        """Have one anchor at the home, bound to our maps; say why, when that cannot be."""
        with attachment.ours(home.fd, attachment.ANCHORS) as found:
            right = next((p for p in found if self._is_anchor(p.info)), None)
            if right is None:
                program = bpfcall.prog_load(bpf.anchor(), bpf.ANCHOR_NAME)
                try:
                    bpfcall.bind_map(program, self._managed)
                    bpfcall.bind_map(program, self._grants)
                    bpfcall.attach(home.fd, program)
                except OSError as error:
                    if error.errno == errno.EPERM:
                        raise attachment.refused(home, error) from error
                    if exhausted(error):
                        raise  # another binder has the room, and then the fence its anchor
                    return (
                        f"no anchor ({error.strerror}): after a restart the fence is found again"
                        " through its jobs only"
                    )
                finally:
                    os.close(program)
            for extra in found:
                if extra is not right:
                    with contextlib.suppress(FileNotFoundError, PermissionError):  # a link's
                        bpfcall.detach(home.fd, extra.fd)
        return ""

    def _is_anchor(self, info: ProgramInfo) -> bool:
        return info.tag == self._anchor_tag and set(self._info.map_ids) <= set(info.map_ids)

    # ---- Fence ------------------------------------------------------------------------------

    def managed(self) -> frozenset[Device]:
        """Read the managed devices back."""
        return frozenset(
            bpf.decode_device(key) for key in bpfcall.map_keys(self._managed, bpf.KEY_SIZE)
        )

    def manage(self, devices: frozenset[Device], _bound: Iterable[Cgroup]) -> None:
        """Write the shared map: that rules every job at once. Additions come first."""
        for key in list(bpfcall.map_keys(self._managed, bpf.KEY_SIZE)):
            if not _readable(key):  # nothing of ours: another's hand
                bpfcall.map_delete(self._managed, key)
        before = self.managed()
        if len(before | devices) > bpf.MANAGED_LIMIT:
            raise Enforcement(
                f"{len(before | devices)} managed devices, but the kernel's map was made for"
                f" {bpf.MANAGED_LIMIT}: see which provider reports so many",
                devices=len(devices),
            )
        for device in sorted(devices - before):
            bpfcall.map_update(self._managed, bpf.encode_device(device), _YES)
        for device in sorted(before - devices):
            bpfcall.map_delete(self._managed, bpf.encode_device(device))
        self._told = devices

    def remember(self, cgroup: Cgroup, *, made: bool) -> None:
        """Note who else judges the cgroup's devices."""
        mask.remember(cgroup, self._programs, self._ours, made=made)

    def forget(self, cgroup: Cgroup) -> None:
        """Empty a storage that is left: it outlives a detach, and comes back with an attach."""
        with contextlib.suppress(FileNotFoundError):  # it was never attached here
            self._write(cgroup, ())

    def bind(self, cgroup: Cgroup, grants: tuple[Rule, ...], *, made: bool) -> None:
        """Attach, which closes every managed device, then write the grants in one update."""
        value = self._value(grants)  # before anything is changed
        if made:
            try:
                bpfcall.attach(cgroup.fd, self._program)
            except OSError as error:
                raise attachment.refused(cgroup, error) from error
        else:
            attachment.put(cgroup, self._program, self._same)
        try:
            bpfcall.map_update(self._grants, struct.pack("=Q", cgroup.id), value)
        except OSError as error:
            raise attachment.refused(cgroup, error) from error

    def _value(self, grants: tuple[Rule, ...]) -> bytes:
        """Encode grants; the same object again (the binder keeps them) is known."""
        known = self._values.get(id(grants))
        if known is not None:
            return known[1]
        value = bpf.encode_grants(grants, self._slots)
        if len(self._values) >= VALUES_LIMIT:
            self._values.clear()
        self._values[id(grants)] = (grants, value)  # held, so that its id stays its own
        return value

    def _write(self, cgroup: Cgroup, grants: tuple[Rule, ...]) -> None:
        value = bpf.encode_grants(grants, self._slots)
        bpfcall.map_update(self._grants, struct.pack("=Q", cgroup.id), value, bpfcall.EXIST)

    def _same(self, info: ProgramInfo) -> bool:
        """The same code on the same maps. The tag leaves out which maps, so they are compared.

        Anybody with the right may bind more maps to a program, which change nothing.
        """
        return info.id == self._info.id or (
            info.tag == self._info.tag and set(self._info.map_ids) <= set(info.map_ids)
        )

    def _ours(self, info: ProgramInfo) -> bool:
        return info.tag == self._anchor_tag or self._same(info)

    def spread(self, cgroup: Cgroup, grants: tuple[Rule, ...]) -> None:
        """Every sub-cgroup is judged by the same program and the same grants."""

    def holds(self, cgroup: Cgroup) -> bool:
        """Say whether its storage has a grant, which outlives a program that was taken away."""
        key = struct.pack("=Q", cgroup.id)
        value = bpfcall.map_lookup(self._grants, key, bpf.grants_size(self._slots))
        return value is not None and any(value)

    def verify(self, cgroup: Cgroup, grants: tuple[Rule, ...]) -> Verified:
        """Look for exactly one fence of ours, the right one, with these grants."""
        fault = attachment.fault(cgroup, self._same, self._programs)
        if not fault:
            value = self._stored(cgroup)
            if value != self._value(grants):
                fault = _grants_fault(value, grants)
        masks = mask.masks(cgroup, self._programs, self._ours)
        if not fault and not masks:
            return _OK
        return Verified("differs" if fault else "ok", fault, masks)

    def _stored(self, cgroup: Cgroup) -> bytes | None:
        key = struct.pack("=Q", cgroup.id)
        return bpfcall.map_lookup(self._grants, key, bpf.grants_size(self._slots))

    def granted(self, cgroup: Cgroup) -> tuple[Rule, ...] | None:
        """Read the storage of the cgroup."""
        value = self._stored(cgroup)
        with contextlib.suppress(ValueError):
            return () if value is None else bpf.decode_grants(value)
        return None

    def verify_home(self, home: Cgroup | None) -> str:
        """Look for our anchor, and for exactly the devices that were last managed."""
        faults = []
        if home is not None:
            with attachment.ours(home.fd, attachment.ANCHORS) as found:
                if not found and not self.note:
                    faults.append("the anchor at the jobs' home is not attached")
                elif [self._is_anchor(program.info) for program in found] not in ([True], []):
                    faults.append("the anchor at the jobs' home is not the one that it should be")
        try:
            present: frozenset[Device] | None = self.managed()
        except ValueError:
            present = None
        if self._told is not None and present != self._told:
            faults.append("the kernel's map of managed devices was changed")
        return "; ".join(faults)

    def repair_home(self, home: Cgroup | None) -> None:
        """Have one anchor at the home."""
        if home is not None:
            self.note = self._anchor(home)


def _readable(key: bytes) -> bool:
    try:
        bpf.decode_device(key)
    except ValueError:
        return False
    return True


def _grants_fault(value: bytes | None, grants: Iterable[Rule]) -> str:
    try:
        found = listed(bpf.decode_grants(value)) if value is not None else "absent"
    except ValueError as error:
        found = f"unreadable ({error})"
    return f"its grants are {found}; they should be {listed(normal(grants))}"


def _recover(home: Cgroup | None, known: Iterable[Cgroup]) -> tuple[int, int] | None:
    """Find the maps through the anchor, else through a bound cgroup; the caller closes them."""
    if home is not None:
        with attachment.ours(home.fd, attachment.ANCHORS) as found:
            for program in found:
                if maps := _maps(program.info):
                    return maps
    for cgroup in known:
        with attachment.ours(cgroup.fd, attachment.FENCES) as found:
            for program in found:
                if maps := _maps(program.info):
                    return maps
    return None


def _maps(info: ProgramInfo) -> tuple[int, int] | None:
    """Open a program's two maps; None unless both are what we would make."""
    managed = grants = -1
    with contextlib.ExitStack() as kept:
        for map_id in info.map_ids:
            with contextlib.ExitStack() as this:
                try:
                    fd = bpfcall.map_open(map_id)
                except FileNotFoundError:
                    continue
                this.callback(os.close, fd)
                found = bpfcall.map_info(fd)
                shape = (found.name, found.type, found.key_size)
                if shape == _MANAGED and managed < 0:
                    managed = fd
                elif shape == _GRANTS and grants < 0:
                    grants = fd
                else:
                    continue
                kept.push(this.pop_all())
        if managed >= 0 and grants >= 0:
            kept.pop_all()
            return managed, grants
    return None


def take(
    home: Cgroup | None, known: Iterable[Cgroup], *, shared: bool = True
) -> SharedFence | JobFence:
    """Find out by loading what this kernel takes, and take over what an earlier binder left.

    `shared=False` goes without the shared program, as on a kernel that refuses it. Raises OSError
    when the kernel takes neither or there is no room to find out, Enforcement when the home does
    not tolerate a program.
    """
    if not shared:
        return JobFence("the shared program is switched off")
    try:
        return SharedFence.take(home, known)
    except OSError as error:
        if exhausted(error):
            raise  # this is no word on what the kernel takes
        why = f"the kernel refuses the shared program: {error.strerror}"
        if error.errno == errno.EPERM:
            why += " (before Linux 5.11 it counts as locked memory: set LimitMEMLOCK=infinity)"
        return JobFence(why)


def drop_anchor(home: Cgroup) -> None:
    """Let the maps go, once no cgroup is bound."""
    with contextlib.suppress(OSError), attachment.ours(home.fd, attachment.ANCHORS) as found:
        for program in found:
            bpfcall.detach(home.fd, program.fd)
