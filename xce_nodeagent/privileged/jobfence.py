"""The fence of cgroup v2 where the kernel refuses the shared program: a program for each job."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator

from xce_nodeagent.model.rule import Device, Rule, normal
from xce_nodeagent.privileged import attachment, bpf, bpfcall, mask
from xce_nodeagent.privileged.attachment import Programs
from xce_nodeagent.privileged.bpfcall import ProgramInfo
from xce_nodeagent.privileged.cgroup import Cgroup
from xce_nodeagent.privileged.fence import common, each, listed
from xce_nodeagent.privileged.ops import Verified

TAGS_LIMIT = 512
"""Sets of grants whose program's tag is kept."""


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
        self._programs = Programs()
        self._anchor_tag = attachment.anchor_tag()
        self._tags: dict[tuple[Rule, ...], bytes] = {}

    def close(self) -> None:
        """There is nothing to let go of."""

    def managed(self) -> frozenset[Device]:
        """Give the devices that this binder was told: they cannot be read back."""
        return self._devices

    def manage(self, devices: frozenset[Device], bound: Iterable[Cgroup]) -> None:
        """Give every job a new program."""
        self._devices = devices
        self._tags.clear()
        each(bound, lambda cgroup: self._put(cgroup, cgroup.grants()))

    def remember(self, cgroup: Cgroup, *, made: bool) -> None:
        """Note who else judges the cgroup's devices."""
        mask.remember(cgroup, self._programs, self._allows_all, made=made)

    def _allows_all(self, info: ProgramInfo) -> bool:
        return info.tag == self._anchor_tag

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

    def spread(self, cgroup: Cgroup, grants: tuple[Rule, ...]) -> None:
        """Every sub-cgroup is judged by the same program."""

    def granted(self, cgroup: Cgroup) -> tuple[Rule, ...] | None:
        """Give what is recorded."""
        return cgroup.grants()

    def holds(self, cgroup: Cgroup) -> bool:
        """Say whether anything is recorded as granted."""
        return bool(cgroup.grants())

    def verify(self, cgroup: Cgroup, grants: tuple[Rule, ...]) -> Verified:
        """Compare the tag of what is attached with that of a copy, and the record."""
        tag = self._tag(cgroup, grants)
        fault = attachment.fault(cgroup, lambda info: info.tag == tag, self._programs)
        if not fault and (recorded := cgroup.grants()) != normal(grants):
            fault = (
                f"its grants are recorded as {listed(recorded)}; they should be {listed(grants)}"
            )
        masks = mask.masks(
            cgroup, self._programs, lambda info: self._allows_all(info) or info.tag == tag
        )
        return Verified("differs" if fault else "ok", fault, masks)

    def _tag(self, cgroup: Cgroup, grants: tuple[Rule, ...]) -> bytes:
        """Give the tag of the program for these grants; a load costs more than the rest."""
        known = self._tags.get(grants)
        if known is None:
            with self._load(cgroup, grants) as (_, known):
                if len(self._tags) >= TAGS_LIMIT:
                    self._tags.clear()
                self._tags[grants] = known
        return known

    def verify_home(self, home: Cgroup | None) -> str:  # noqa: ARG002  # Fence's signature
        """Programs share nothing."""
        return ""

    def repair_home(self, home: Cgroup | None) -> None:
        """Programs share nothing."""
