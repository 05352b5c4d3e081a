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
from collections.abc import Iterable, Iterator
from typing import Self

from xce_nodeagent.errors import Enforcement
from xce_nodeagent.model.rule import Device, Rule, normal
from xce_nodeagent.privileged import attachment, bpf, bpfcall
from xce_nodeagent.privileged.bpfcall import ProgramInfo
from xce_nodeagent.privileged.cgroup import Cgroup
from xce_nodeagent.privileged.fence import common, each, listed
from xce_nodeagent.privileged.ops import Verified

_OK = Verified("ok")
_YES = struct.pack("=I", 1)  # the value of a managed device: there are no others

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
                fence.note = fence._anchor(home)
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
        wanted = {bpfcall.map_info(fd).id for fd in (self._managed, self._grants)}
        with attachment.ours(home.fd, attachment.ANCHORS) as found:
            right = next((p for p in found if wanted <= set(p.info.map_ids)), None)
            if right is None:
                program = bpfcall.prog_load(bpf.anchor(), bpf.ANCHOR_NAME)
                try:
                    bpfcall.bind_map(program, self._managed)
                    bpfcall.bind_map(program, self._grants)
                    bpfcall.attach(home.fd, program)
                except OSError as error:
                    if error.errno == errno.EPERM:
                        raise attachment.refused(home, error) from error
                    return (
                        f"no anchor ({error.strerror}): after a restart the fence is found again"
                        " through its jobs only"
                    )
                finally:
                    os.close(program)
            for extra in found:
                if extra is not right:
                    bpfcall.detach(home.fd, extra.fd)
        return ""

    # ---- Fence ------------------------------------------------------------------------------

    def managed(self) -> frozenset[Device]:
        """Read the managed devices back."""
        return frozenset(
            bpf.decode_device(key) for key in bpfcall.map_keys(self._managed, bpf.KEY_SIZE)
        )

    def manage(self, devices: frozenset[Device], _bound: Iterable[Cgroup]) -> None:
        """Write the shared map: that rules every job at once. Additions come first."""
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
        """The same code on the same maps. The tag leaves out which maps, so they are compared."""
        return (info.tag, set(info.map_ids)) == (self._info.tag, set(self._info.map_ids))

    def verify(self, cgroup: Cgroup, grants: tuple[Rule, ...]) -> Verified:
        """Look for exactly one fence of ours, the right one, with these grants."""
        if fault := attachment.fault(cgroup, self._same):
            return Verified("differs", fault)
        key = struct.pack("=Q", cgroup.id)
        value = bpfcall.map_lookup(self._grants, key, bpf.grants_size(self._slots))
        if value == bpf.encode_grants(grants, self._slots):
            return _OK
        return Verified("differs", _grants_fault(value, grants))


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
    for map_id in info.map_ids:
        try:
            fd = bpfcall.map_open(map_id)
        except FileNotFoundError:
            continue
        found = bpfcall.map_info(fd)
        shape = (found.name, found.type, found.key_size)
        if shape == (bpf.MANAGED_NAME, bpfcall.HASH, bpf.KEY_SIZE) and managed < 0:
            managed = fd
        elif shape == (bpf.GRANTS_NAME, bpfcall.CGROUP_STORAGE, bpf.CGROUP_KEY_SIZE) and grants < 0:
            grants = fd
        else:
            os.close(fd)
    if managed >= 0 and grants >= 0:
        return managed, grants
    for fd in (managed, grants):
        if fd >= 0:
            os.close(fd)
    return None


class JobFence:
    """A program for each job, its rules in the instructions: where the shared one is refused.

    It costs a load for each change (0.3 ms with 40 managed devices), and one for each job when a
    device is plugged in. What a job was granted is recorded on its cgroup, because instructions
    cannot be read back.
    """

    kind = "per-job"
    recovered = False

    def __init__(self, note: str) -> None:
        """Load a program without rules, to see that the kernel takes it; raise OSError if not."""
        self.note = note
        self._devices: frozenset[Device] = frozenset()
        os.close(bpfcall.prog_load(bpf.inline_fence((), ()), bpf.INLINE_NAME))

    def close(self) -> None:
        """There is nothing to let go of."""

    def managed(self) -> frozenset[Device]:
        """Give the devices that this binder was told: they cannot be read back."""
        return self._devices

    def manage(self, devices: frozenset[Device], bound: Iterable[Cgroup]) -> None:
        """Give every job a new program."""
        self._devices = devices
        each(bound, lambda cgroup: self._put(cgroup, cgroup.grants()))

    def forget(self, cgroup: Cgroup) -> None:
        """The record went with the mark."""

    def bind(self, cgroup: Cgroup, grants: tuple[Rule, ...], *, made: bool) -> None:
        """Swap the program; see `Cgroup.record` for the order."""
        if not made:
            cgroup.record(common(cgroup.grants(), grants))
        self._put(cgroup, grants)
        cgroup.record(normal(grants))

    def _put(self, cgroup: Cgroup, grants: tuple[Rule, ...]) -> None:
        with self._load(cgroup, grants) as (fd, tag):
            attachment.put(cgroup, fd, lambda info: info.tag == tag)

    @contextlib.contextmanager
    def _load(self, cgroup: Cgroup, grants: tuple[Rule, ...]) -> Iterator[tuple[int, bytes]]:
        try:
            fd = bpfcall.prog_load(bpf.inline_fence(self._devices, grants), bpf.INLINE_NAME)
        except OSError as error:
            raise attachment.refused(cgroup, error) from error
        try:
            yield fd, bpfcall.prog_info(fd).tag
        finally:
            os.close(fd)

    def verify(self, cgroup: Cgroup, grants: tuple[Rule, ...]) -> Verified:
        """Compare the tag of what is attached with that of a copy loaded for it."""
        with self._load(cgroup, grants) as (_, tag):
            fault = attachment.fault(cgroup, lambda info: info.tag == tag)
        return Verified("differs", fault) if fault else _OK


def take(
    home: Cgroup | None, known: Iterable[Cgroup], *, shared: bool = True
) -> SharedFence | JobFence:
    """Find out by loading what this kernel takes, and take over what an earlier binder left.

    `shared=False` goes without the shared program, as on a kernel that refuses it. Raises OSError
    when the kernel takes neither, Enforcement when the home does not tolerate a program.
    """
    if not shared:
        return JobFence("the shared program is switched off")
    try:
        return SharedFence.take(home, known)
    except OSError as error:
        why = f"the kernel refuses the shared program: {error.strerror}"
        if error.errno == errno.EPERM:
            why += " (before Linux 5.11 it counts as locked memory: set LimitMEMLOCK=infinity)"
        return JobFence(why)


def drop_anchor(home: Cgroup) -> None:
    """Let the maps go, once no cgroup is bound."""
    with contextlib.suppress(OSError), attachment.ours(home.fd, attachment.ANCHORS) as found:
        for program in found:
            bpfcall.detach(home.fd, program.fd)
