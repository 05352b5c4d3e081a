"""Who a process of ours is: a uid, its groups, and the capabilities that it keeps."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from msgspec import Struct

from xce_nodeagent.privileged import capability
from xce_nodeagent.privileged.capability import Capability
from xce_nodeagent.privileged.syscall import prctl

AGENT_UID, PROBER_UID, WITNESS_UID = 61499, 61498, 61497
"""Uids for a host on which nobody made the accounts; neither a distribution nor systemd gives them
to anybody (systemd.io/UIDS-GIDS)."""

DEVICE_GROUPS = ("video", "render")
DEVICE_NODES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/dri/renderD128")
"""Who may read the nodes that vendor libraries open: these groups, and the nodes' own."""

_PR_SET_DUMPABLE, _PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 4, 1, 38


class Identity(Struct, frozen=True):
    """A uid, a gid, and supplementary groups."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


def account(name: str, uid: int, groups: Iterable[int] = ()) -> Identity:
    """Give the identity of an account; where there is none, the number itself for both ids."""
    gid = uid
    with contextlib.suppress(KeyError):
        entry = pwd.getpwnam(name)
        uid, gid = entry.pw_uid, entry.pw_gid
    return Identity(uid, gid, tuple(sorted(set(groups))))


def person(name: str) -> Identity:
    """Give the identity of an account that is there, with all its groups; raise KeyError."""
    entry = pwd.getpwnam(name)
    groups = os.getgrouplist(name, entry.pw_gid)
    return Identity(entry.pw_uid, entry.pw_gid, tuple(sorted(set(groups))))


def device_groups() -> frozenset[int]:
    """Give the groups that may read vendors' device nodes, without root's."""
    found = set()
    for name in DEVICE_GROUPS:
        with contextlib.suppress(KeyError):
            found.add(grp.getgrnam(name).gr_gid)
    for path in DEVICE_NODES:
        with contextlib.suppress(OSError):
            found.add(os.stat(path).st_gid)
    return frozenset(found - {0})


def assume(identity: Identity | None, keep: AbstractSet[Capability] = frozenset()) -> None:
    """Become this, keep these capabilities and no others, and never gain another privilege.

    `None` stays who it is. Call it before any thread starts: capabilities belong to a thread, and
    only the caller's are changed. Nobody of the same uid can trace the process afterwards.
    """
    capability.seal()
    if identity is not None:
        os.setgroups(identity.groups)
        os.setresgid(identity.gid, identity.gid, identity.gid)
        os.setresuid(identity.uid, identity.uid, identity.uid)
    capability.keep(keep)
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    prctl(_PR_SET_DUMPABLE, 0)


def die_with_parent(parent: int, signal: int) -> None:
    """Be sent a signal when the parent ends; raise ProcessLookupError when it has already.

    Call it after `assume`: the kernel forgets the wish when a process changes its uid.
    """
    prctl(_PR_SET_PDEATHSIG, signal)
    if os.getppid() != parent:
        raise ProcessLookupError(f"the parent, {parent}, has ended")
