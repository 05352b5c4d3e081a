"""Programs of others that judge a job's devices beside ours.

The kernel asks every device program from the root to a cgroup, and one that refuses is enough. So
others can take away what we granted, and never give more. What a program of another's does cannot
be known; that it is there can (BPF_F_QUERY_EFFECTIVE), also when it hangs on a cgroup far above.

Those that were there when a cgroup was bound belong to the place that was chosen: a slice with a
DeviceAllow=, a container. They are remembered on the cgroup, by the tags of their code, because
systemd attaches the same rules anew as other programs. One that came later may take from the job
what it was told that it has.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection

from xce_nodeagent.errors import exhausted
from xce_nodeagent.privileged import bpfcall
from xce_nodeagent.privileged.attachment import FENCES, Programs
from xce_nodeagent.privileged.bpfcall import ProgramInfo
from xce_nodeagent.privileged.cgroup import OTHERS, Cgroup
from xce_nodeagent.privileged.ops import Mask

_TAG_SIZE = 8

Ours = Callable[[ProgramInfo], bool]
"""Says whether a program is one of ours that is in its place, or one that allows everything."""


def remember(cgroup: Cgroup, programs: Programs, ours: Ours, *, made: bool) -> None:
    """Note on a cgroup who judges it beside us, before it is bound; `made`: it was just made."""
    tags = {info.tag for info in _others(cgroup, programs, ours)}
    if tags:
        os.setxattr(cgroup.fd, OTHERS, b"".join(sorted(tags)))
    elif not made:
        try:
            os.removexattr(cgroup.fd, OTHERS)
        except OSError as error:
            if error.errno != errno.ENODATA:
                raise


def masks(cgroup: Cgroup, programs: Programs, ours: Ours) -> tuple[Mask, ...]:
    """Give the programs of others that judge a cgroup, and where each of them hangs."""
    others = _others(cgroup, programs, ours)
    if not others:
        return ()
    try:
        known = os.getxattr(cgroup.fd, OTHERS)
    except OSError as error:
        if exhausted(error):
            raise
        known = b""
    tags = {known[at : at + _TAG_SIZE] for at in range(0, len(known), _TAG_SIZE)}
    places = _places(cgroup.ref.path, {info.id for info in others})
    return tuple(
        Mask(
            id=info.id,
            name=info.name,
            cgroup=places.get(info.id, ""),
            new=info.tag not in tags,
        )
        for info in others
    )


def _others(cgroup: Cgroup, programs: Programs, ours: Ours) -> tuple[ProgramInfo, ...]:
    found = [programs.info(number) for number in bpfcall.effective(cgroup.fd)]
    others = [info for info in found if info is not None and not ours(info)]
    if not others:
        return ()
    # One with our name in our place is a fence of ours that is not right: that is told elsewhere.
    own = bpfcall.query(cgroup.fd).ids
    return tuple(info for info in others if info.id not in own or info.name not in FENCES)


def _places(path: str, wanted: Collection[int]) -> dict[int, str]:
    """Find the cgroup that each program is attached to, from one cgroup upward."""
    places: dict[int, str] = {}
    while path != "/" and len(places) < len(wanted):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            if exhausted(error):
                raise
            break
        try:
            for number in bpfcall.query(fd).ids:
                if number in wanted:
                    places.setdefault(number, path)
        except OSError:
            break  # above the mount's root there are no cgroups
        finally:
            os.close(fd)
        path = os.path.dirname(path)
    return places
