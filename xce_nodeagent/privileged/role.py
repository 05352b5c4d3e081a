"""A role that a helper can have, and how a forked process becomes a helper of that role.

The order matters. Imports come first: afterwards the interpreter's own files may be out of reach.
Then who it is, then what it may call, and only then does it listen.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

from xce_nodeagent.privileged import ops, seccomp
from xce_nodeagent.privileged.capability import Capability
from xce_nodeagent.privileged.channel import Channel
from xce_nodeagent.privileged.credential import Identity, assume, die_with_parent
from xce_nodeagent.privileged.serve import EXIT_CLOSED, Log, Work, log_to_stderr, serve
from xce_nodeagent.privileged.title import set_title

READY = b"1"
"""What a helper writes when it is confined and listens."""


class Role(NamedTuple):
    """What a helper of this role answers, does, is, may, and may not.

    `open` makes its work; it is called in the helper, while that still has every privilege, so it
    imports and reads, and touches nothing else. `descriptors`: one may come with a request.
    `programs`: it forks, and starts programs.
    """

    name: ops.Role
    requests: Any
    open: Callable[[Log], Work]
    refused: frozenset[str]
    identity: Identity | None = None
    keep: frozenset[Capability] = frozenset()
    descriptors: bool = False
    programs: bool = False


def become(role: Role, end: socket.socket, ready: int, parent: int) -> int:
    """Be a helper of this role until the other end is closed; give the exit status.

    `ready` is the write end of a pipe. The caller has closed every other descriptor, and exits
    with the status.
    """
    _ignore_signals()
    name = f"xce-{role.name}"
    set_title(name)
    log = log_to_stderr(name)
    work = role.open(log)
    assume(role.identity, role.keep)
    # Without its supervisor nobody would end it if it hangs, so it does not outlive it.
    die_with_parent(parent, signal.SIGKILL)
    seccomp.install(role.refused, forks=role.programs)
    try:
        os.write(ready, READY)
    except BrokenPipeError:
        return EXIT_CLOSED  # the supervisor is ending
    os.close(ready)
    return serve(Channel(end), role.requests, work, log)


def _ignore_signals() -> None:
    """Leave it to the other end when this one ends.

    Ctrl-C and systemd signal the whole group at once, and what the agent still has to undo then
    needs its helpers.
    """
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
