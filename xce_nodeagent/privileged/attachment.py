"""Our device programs on a cgroup: which are there, how the right one gets there, why it cannot.

Never detach-then-attach: a program that is to be changed is swapped (BPF_F_REPLACE), one that is
there already stays, and duplicates go after the right one is in place.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

from xce_nodeagent.errors import AgentError, BadCgroup, Enforcement
from xce_nodeagent.privileged import bpf, bpfcall
from xce_nodeagent.privileged.bpfcall import ProgramInfo
from xce_nodeagent.privileged.cgroup import Cgroup

FENCES = frozenset({bpf.FENCE_NAME, bpf.INLINE_NAME})
ANCHORS = frozenset({bpf.ANCHOR_NAME})

PROGRAMS_LIMIT = 4096
"""Programs that are remembered."""


class Program(NamedTuple):
    """A program of ours that is attached: a descriptor, and what the kernel says of it."""

    fd: int
    info: ProgramInfo


class Programs:
    """What the kernel says of programs, asked once for each: their code never changes.

    An id comes again only after two thousand million others.
    """

    def __init__(self) -> None:
        self._known: dict[int, ProgramInfo] = {}

    def info(self, program_id: int) -> ProgramInfo | None:
        """Describe a program; None when it is gone."""
        known = self._known.get(program_id)
        if known is not None:
            return known
        try:
            fd = bpfcall.prog_open(program_id)
        except FileNotFoundError:
            return None
        try:
            info = bpfcall.prog_info(fd)
        finally:
            os.close(fd)
        if len(self._known) >= PROGRAMS_LIMIT:
            self._known.clear()
        self._known[program_id] = info
        return info


def anchor_tag() -> bytes:
    """Load an anchor to see its tag: how a tag is computed differs between kernels."""
    program = bpfcall.prog_load(bpf.anchor(), bpf.ANCHOR_NAME)
    try:
        return bpfcall.prog_info(program).tag
    finally:
        os.close(program)


@contextlib.contextmanager
def ours(cgroup_fd: int, names: frozenset[str]) -> Iterator[list[Program]]:
    """Open the programs with these names that are attached to a cgroup."""
    with contextlib.ExitStack() as stack:
        found: list[Program] = []
        for program_id in bpfcall.query(cgroup_fd).ids:
            try:
                fd = bpfcall.prog_open(program_id)
            except FileNotFoundError:
                continue  # detached and gone since it was listed
            info = bpfcall.prog_info(fd)
            if info.name in names:
                stack.callback(os.close, fd)
                found.append(Program(fd, info))
            else:
                os.close(fd)
        yield found


def put(cgroup: Cgroup, prog_fd: int, same: Callable[[ProgramInfo], bool]) -> None:
    """Leave exactly one fence of ours on a cgroup, one that is `same`; there is always one."""
    try:
        with ours(cgroup.fd, FENCES) as found:
            right = next((program for program in found if same(program.info)), None)
            if right is not None:
                found.remove(right)
            elif not (found and _swap(cgroup.fd, prog_fd, found)):
                bpfcall.attach(cgroup.fd, prog_fd)
            for extra in found:
                # One that another attached by a link can't be detached; it only refuses more.
                with contextlib.suppress(FileNotFoundError, PermissionError):
                    bpfcall.detach(cgroup.fd, extra.fd)
    except OSError as error:
        raise refused(cgroup, error) from error


def _swap(cgroup_fd: int, prog_fd: int, found: list[Program]) -> bool:
    """Put a program in the place of one of these; False when none of them can be swapped."""
    for old in found:
        try:
            bpfcall.attach(cgroup_fd, prog_fd, old.fd)
        except FileNotFoundError:
            continue  # attached by a link, which only its owner changes; or detached meanwhile
        found.remove(old)
        return True
    return False


def refused(cgroup: Cgroup, error: OSError) -> AgentError:
    """Say why an attachment failed, and what to do."""
    path = cgroup.ref.path
    if error.errno in (errno.ENOENT, errno.ENODEV):
        return BadCgroup(f"cgroup {path} was removed meanwhile", cgroup=path)
    if error.errno == errno.E2BIG:
        return Enforcement(
            f"cgroup {path} has 64 device programs, more than a kernel takes: see which tool"
            " leaves them behind with `bpftool cgroup show`, or use another cgroup",
            cgroup=path,
        )
    if error.errno == errno.EPERM and (culprit := _culprit(path)):
        where, names = culprit
        return Enforcement(
            f"cgroup {path} cannot be fenced: {where} has a device program ({names}) that"
            " was attached without BPF_F_ALLOW_MULTI and so forbids others; have its owner attach"
            " it with that flag, or use a cgroup that is not below it",
            cgroup=path,
            culprit=where,
        )
    return Enforcement(f"cgroup {path} cannot be fenced: {error.strerror}", cgroup=path)


def _culprit(path: str) -> tuple[str, str] | None:
    """Find the cgroup on the path whose programs tolerate no others, and name them."""
    while path != "/":
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                attached = bpfcall.query(fd)
                if attached.ids and not attached.flags & bpfcall.MULTI:
                    return path, ", ".join(_name(number) for number in attached.ids)
            finally:
                os.close(fd)
        path = os.path.dirname(path)
    return None


def _name(program_id: int) -> str:
    try:
        fd = bpfcall.prog_open(program_id)
    except OSError:
        return f"id {program_id}"
    try:
        return f"{bpfcall.prog_info(fd).name or 'without a name'}, id {program_id}"
    finally:
        os.close(fd)


def fault(cgroup: Cgroup, same: Callable[[ProgramInfo], bool], programs: Programs) -> str:
    """Say what is wrong with the fence on a cgroup; nothing when it is the one right one."""
    infos = [programs.info(number) for number in bpfcall.query(cgroup.fd).ids]
    found = [info for info in infos if info is not None and info.name in FENCES]
    if not found:
        return "its device program is not attached"
    if len(found) > 1:
        return f"{len(found)} device programs of ours are attached, where one should be"
    return "" if same(found[0]) else "another device program of ours is attached"
