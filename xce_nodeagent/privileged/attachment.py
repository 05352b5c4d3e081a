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


class Program(NamedTuple):
    """A program of ours that is attached: a descriptor, and what the kernel says of it."""

    fd: int
    info: ProgramInfo


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
            elif found:
                bpfcall.attach(cgroup.fd, prog_fd, found.pop(0).fd)
            else:
                bpfcall.attach(cgroup.fd, prog_fd)
            for extra in found:
                bpfcall.detach(cgroup.fd, extra.fd)
    except OSError as error:
        raise refused(cgroup, error) from error


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


def fault(cgroup: Cgroup, same: Callable[[ProgramInfo], bool]) -> str:
    """Say what is wrong with the fence on a cgroup; nothing when it is the one right one."""
    with ours(cgroup.fd, FENCES) as found:
        if not found:
            return "its device program is not attached"
        if len(found) > 1:
            return f"{len(found)} device programs of ours are attached, where one should be"
        return "" if same(found[0].info) else "another device program of ours is attached"
