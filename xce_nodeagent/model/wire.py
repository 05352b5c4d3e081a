"""The messages of the socket: parameters and replies of `io.xce.NodeAgent`.

The interface description beside this package (`io.xce.NodeAgent.varlink`) says the same in
Varlink's own language; a test holds the two together.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

INTERFACE = "io.xce.NodeAgent"
MESSAGE_LIMIT = 256 * 1024
"""Bytes of one call. A client that sends more without a NUL is told so and cut off."""


Uid = Annotated[int, Meta(ge=0, le=2**32 - 2)]
"""A user id; 2**32 - 1 means "no user" to the kernel (setresuid(2))."""

Pid = Annotated[int, Meta(ge=1, le=2**22)]
"""A process id: at most PID_MAX_LIMIT of a 64-bit kernel (proc(5), pid_max)."""


class PortAsk(
    Struct, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Ports that a job wants: `count` of the agent's choice, or one `port` of the caller's."""

    name: str | None = None
    count: int | None = None
    port: int | None = None


class Prepare(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Bind instances, named or counted, to a job."""

    job: str
    attempt: str | None = None
    uid: Uid | None = None
    instances: tuple[str, ...] | None = None
    request: str | None = None
    ports: tuple[PortAsk, ...] | None = None
    cgroup: str | None = None
    pid: Pid | None = None
    adopt: bool | None = None
    add: bool | None = None
    generation: str | None = None


class PortHeld(Struct, frozen=True, gc=False):
    """A port that a job holds."""

    port: int
    name: str = ""


class Prepared(Struct, frozen=True, kw_only=True):
    """The answer to Prepare: what the job holds, and what its processes need."""

    job: str
    attempt: str
    instances: tuple[str, ...]
    env: dict[str, str]
    cgroup: dict[str, str]
    generation: str
    enforcement: str
    ports: tuple[PortHeld, ...] = ()


class Release(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Release a job's binding; without an attempt, every binding of the job.

    With `instances`, only those: the binding shrinks. `kill` says what becomes of processes that
    are left in the job's cgroup; without it, the configuration does. What the configuration does
    not allow is not done, and does not hinder the release.
    """

    job: str
    attempt: str | None = None
    instances: tuple[str, ...] | None = None
    kill: Literal["none", "term-then-kill"] | None = None


class LeftOver(Struct, frozen=True, gc=False):
    """A process that outlived its job: it is still in the job's cgroup, or holds what it had."""

    pid: int
    what: str
    comm: str = ""
    uid: int = -1


class Released(Struct, frozen=True, kw_only=True):
    """The answer to Release. `known`: there was such a binding. `recorded`: it is on disk.

    `ports`: those that are held back. `killing`: what is left in the job's cgroup is being ended;
    `not_killed`: why it is not, though that was asked for.
    """

    released: bool
    clean: bool
    known: bool = True
    recorded: bool = True
    holders: tuple[LeftOver, ...] = ()
    quarantined: tuple[str, ...] = ()
    killing: bool = False
    ports: tuple[int, ...] = ()
    not_killed: str = ""


class JobRef(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A job and one run of it."""

    job: str
    attempt: str | None = None


class Join(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Move a process into a job's cgroup; without a pid, the caller itself."""

    job: str
    attempt: str | None = None
    pid: Pid | None = None


class Joined(Struct, frozen=True, kw_only=True):
    """The answer to Join."""

    cgroup: dict[str, str]
    env: dict[str, str]


class Reconcile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A worker's whole truth after its restart: what it does not name is released."""

    jobs: tuple[JobRef, ...]


class Reconciled(Struct, frozen=True, kw_only=True):
    """What became of it. `unknown`: named, but not held here."""

    kept: tuple[JobRef, ...]
    released: tuple[JobRef, ...]
    unknown: tuple[JobRef, ...]
    unclean: tuple[JobRef, ...] = ()


class Nothing(Struct, frozen=True, forbid_unknown_fields=True):
    """No parameters, or none in the reply."""


class BindingView(Struct, frozen=True, kw_only=True):
    """A binding as `jobs` and `job` show it. Times are seconds since the epoch.

    `healthy` is false while the kernel is not as the binding says and that cannot be put right;
    `fault` says why.
    `holders` are processes outside of the job that have something open which it holds, or held.
    """

    job: str
    attempt: str
    uid: int | None
    state: str
    reason: str
    instances: tuple[str, ...]
    ports: tuple[PortHeld, ...]
    cgroup: dict[str, str]
    enforcement: str
    since: float
    last_seen: float
    populated: bool | None
    holders: tuple[LeftOver, ...] = ()
    env: dict[str, str] = {}
    healthy: bool = True
    fault: str = ""


class Bindings(Struct, frozen=True, kw_only=True):
    """The answer to ListBindings."""

    bindings: tuple[BindingView, ...]


class OneBinding(Struct, frozen=True, kw_only=True):
    """The answer to GetBinding."""

    binding: BindingView


class Drain(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keep an instance from being granted; who holds it keeps it."""

    id: str
    reason: str


class Undrain(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Let an instance be granted again."""

    id: str


class Doctor(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Look at everything; with `repair`, also put every fence right."""

    repair: bool | None = None


class Check(Struct, frozen=True, kw_only=True):
    """One thing that `doctor` looked at. `state`: ok, note, warning or fault."""

    name: str
    state: str
    text: str
    remedy: str = ""


class Checks(Struct, frozen=True, kw_only=True):
    """The answer to Doctor."""

    checks: tuple[Check, ...]


class Call(Struct, frozen=True):
    """A Varlink call as it comes in; `parameters` are decoded once the method is known."""

    method: str
    parameters: Any = None
    more: bool = False
    oneway: bool = False
    upgrade: bool = False
