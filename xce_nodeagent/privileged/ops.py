"""The closed table of what may be asked of a helper: one request type, one answer type, each.

Every message is one SOCK_SEQPACKET packet of msgpack. A helper decodes it as the union of its own
role's requests and of nothing else; what does not decode, or is longer than the limit, is an
attack or a bug, and the helper logs it and exits. What is well-formed but cannot be done (the
cgroup is populated, the kernel refuses) is answered with `Failed`, which names a pinned error.

Roles: the binder changes the kernel's state, the prober asks vendor libraries, the listener hears
what cards tell by themselves, the witness looks who holds what, the runner runs the site's
reporter. The supervisor hands out helpers, and knows nothing else.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from xce_nodeagent.model.plan import Backend, CgroupRef
from xce_nodeagent.model.rule import Device, Rule
from xce_nodeagent.privileged.vendorops import Heard, Listen, Probe, Probed

__all__ = ["Heard", "Listen", "Probe", "Probed"]
"""What comes from elsewhere: the part of the table that is about vendors' libraries."""

MESSAGE_LIMIT = 128 * 1024
"""Bytes of one message. The largest is `Manage` on a host of 8 GPUs with every MIG slice."""

RECORD_LIMIT = 56 * 1024
"""Bytes of a binding's record. With its mark it is one extended attribute, of at most 64 KiB, and a
message has room for two."""

Role = Literal["binder", "prober", "listener", "witness", "runner"]


# ---- the supervisor -------------------------------------------------------------------------


class Next(Struct, frozen=True, tag="next"):
    """Give me a helper of this role. The answer carries one end of its socket as SCM_RIGHTS."""

    role: Role


class Given(Struct, frozen=True, tag="given"):
    """A helper: its pid, for the log. The descriptor comes with the message.

    Answers come as helpers are ready, not in the order of asking, so that a role that is ill
    keeps nobody waiting but its own callers; `Failed` names the role in its details.
    """

    pid: int
    role: Role


# ---- the binder -----------------------------------------------------------------------------


class Take(Struct, frozen=True, tag="take"):
    """Become the live binder: end the one before, take its lock, open the roots, load, recover.

    `known` are the cgroups that the ledger has: the programs and maps of a former binder are
    found again through them when the jobs' home itself is gone. `agent` is the agent's pid, which
    no Join moves into a job's cgroup; 0 is nobody.
    """

    known: tuple[CgroupRef, ...] = ()
    agent: int = 0


class Taken(Struct, frozen=True, tag="taken"):
    """What this binder can enforce. `program`: `shared`, or `per-job` with the reason."""

    pid: int
    home: CgroupRef | None
    backends: tuple[Backend, ...]
    program: str
    recovered: bool
    reason: str = ""


class Manage(Struct, frozen=True, tag="manage"):
    """These, and no others, are the managed devices from now on, for every job that is bound."""

    devices: tuple[Device, ...]


class Bind(Struct, frozen=True, tag="bind"):
    """Fence a cgroup and give it exactly these grants. Idempotent; the last one wins.

    `make`: the cgroup is ours, make it below the home; otherwise it must exist below an allowed
    root. `populated`: processes may be in it already. `mark` is stored as `trusted.xce.binding`
    on the cgroup, with the `record`, from which the agent can tell the whole binding again; a
    cgroup that bears another mark is refused as a conflict, unless it is `stray`: a mark that no
    binding has. So is one whose grants were taken back: a release is never undone. `deep`: also
    give what is granted to every sub-cgroup again, where one may lack it (cgroup v1). `grants` are
    packed by `pack`: the same sets come again and again, and the binder knows them by their bytes.
    """

    mark: str
    cgroup: CgroupRef
    grants: msgspec.Raw
    make: bool
    populated: bool = False
    deep: bool = False
    stray: str = ""
    record: bytes = b""


def pack(grants: tuple[Rule, ...]) -> msgspec.Raw:
    """Pack grants as `Bind` carries them."""
    return msgspec.Raw(_ENCODE(grants))


_ENCODE = msgspec.msgpack.Encoder().encode


class Unbind(Struct, frozen=True, tag="unbind"):
    """Take every grant back, and with `remove` remove the cgroup if nothing is in it.

    Idempotent; a cgroup that is gone is an answer (`gone`), not an error. One that bears another
    mark is left alone and answered as gone, with that mark as `stray`; asked again with it, which
    says that no binding has it, its grants are taken back.
    """

    mark: str
    cgroup: CgroupRef
    remove: bool
    stray: str = ""


class Unbound(Struct, frozen=True, tag="unbound"):
    """What is left. `populated`: somebody is, or may be, still in the cgroup or below it.

    May be: cgroup v1 with more sub-cgroups than are looked into. Neither gone nor populated: it is
    left to its owner, or has more sub-cgroups than are removed at once; no binding has it.

    `pids` names them, 64 at most, as far as they can be named: a process of a pid namespace that
    the binder does not see, or a thread alone in a threaded cgroup, has no pid here.
    """

    gone: bool
    pids: tuple[int, ...] = ()
    populated: bool = False
    stray: str = ""


class Verify(Struct, frozen=True, tag="verify"):
    """Compare a cgroup with what it should be; changes nothing. `grants` are packed by `pack`.

    `record` is the CRC-32 of the record that it should have; None lets that be.
    """

    mark: str
    cgroup: CgroupRef
    grants: msgspec.Raw
    record: int | None = None


class Mask(Struct, frozen=True):
    """A device program of another's that judges a job's devices too. `new`: it came later."""

    id: int
    name: str
    cgroup: str
    new: bool


class Verified(Struct, frozen=True, tag="verified"):
    """`state`: ok, gone, differs (with the fault), or unverifiable (cgroup v1 shows no denies).

    `stray`: the cgroup bears another mark, which `fault` then is. `released`: its grants were taken
    back, and it waits for its processes to end. `masks` are programs of others: what they refuse
    the job cannot open, whatever we granted.
    """

    state: Literal["ok", "gone", "differs", "unverifiable", "stray", "released"]
    fault: str = ""
    masks: tuple[Mask, ...] = ()


class VerifyHome(Struct, frozen=True, tag="verify_home"):
    """Compare what all bindings share, the anchor and the managed devices; changes nothing.

    `Manage` puts it right.
    """


class HomeVerified(Struct, frozen=True, tag="home_verified"):
    """The fault, "" where there is none; and the seconds of CPU that this binder has used."""

    fault: str
    cpu: float


class List(Struct, frozen=True, tag="list"):
    """Give the cgroups that bear a mark, in the order of their names, from behind `after` on.

    Those below the home and those that the ledger or this binder knew; with `deep` also what is
    found below the allowed roots. Without `after` it is looked anew.
    """

    after: CgroupRef | None = None
    deep: bool = False


class Listed(Struct, frozen=True, tag="listed"):
    """As many as a message holds; `more`: ask again, with the last one as `after`.

    `whole` is false when there is more below the roots than is looked into.
    """

    cgroups: tuple[Marked, ...]
    more: bool
    whole: bool


class Marked(Struct, frozen=True):
    """A cgroup that bears a mark, and what the kernel has of it.

    `grants` are those that are in force, None where they cannot be read. `released`: they were
    taken back.
    """

    cgroup: CgroupRef
    mark: str
    record: bytes
    released: bool
    grants: tuple[Rule, ...] | None
    populated: bool


class Join(Struct, frozen=True, tag="join"):
    """Move the process behind the pidfd that comes with this message into a bound cgroup.

    Init, threads of the kernel, the agent and its helpers are refused as a bad request, and so is
    a process that is in another binding's cgroup.
    """

    mark: str
    cgroup: CgroupRef
    pid: int


class Kill(Struct, frozen=True, tag="kill"):
    """Signal every process in a bound cgroup and below it: SIGTERM, or SIGKILL.

    Only a cgroup that bears the mark and was released, and only where the binder's own
    configuration lets processes be ended. Never init, a thread of the kernel, the agent or its
    helpers. It can be repeated, and is, until `Killed` says that nobody is left.
    """

    mark: str
    cgroup: CgroupRef
    signal: Literal["term", "kill"]


class Killed(Struct, frozen=True, tag="killed"):
    """How many were signalled (-1: all at once, by the kernel), and whether somebody may be left.

    `spared` are those in the cgroup that are never signalled.
    """

    signalled: int
    left: bool
    spared: tuple[int, ...] = ()


class Done(Struct, frozen=True, tag="done"):
    """It is done."""


# ---- the witness ----------------------------------------------------------------------------


class Owner(Struct, frozen=True, array_like=True):
    """A job's cgroup, and which of the devices of a `Look` are its own, by their place there."""

    cgroup: str
    devices: tuple[int, ...]


class Look(Struct, frozen=True, tag="look"):
    """Who holds these devices open, or listens on these ports?

    Whoever is in an owner's cgroup, or below it, is not told with that owner's devices. `queues`:
    count the descriptors that lie in sockets' queues as well.
    """

    devices: tuple[Device, ...] = ()
    ports: tuple[int, ...] = ()
    owners: tuple[Owner, ...] = ()
    queues: bool = False


class Seen(Struct, frozen=True):
    """A process that holds something: `what` is a device (`c 195:0`) or a port (`tcp 20001`).

    `how`: `mapped` has no descriptor of the device, and has it in its memory; `path` has a
    descriptor with O_PATH, with which nothing can be done but to open the device anew. `started` is
    in seconds since the boot, 0.0 where nobody knows. `namespace` is the inode of the network
    namespace that the port is in; 0 is our own.
    """

    pid: int
    uid: int
    comm: str
    what: str
    how: Literal["open", "mapped", "path"] = "open"
    started: float = 0.0
    namespace: int = 0


class Looked(Struct, frozen=True, tag="looked"):
    """Everybody that was seen, and how many processes could not be looked into, wholly or in part.

    `unread` names some of these, 256 at most.
    `queued` is how many descriptors were seen in sockets' queues, sent and not received: nobody
    can say of what they are. `cut`: the time was over before everybody was looked at.
    `cpu` is what it cost, in seconds.
    """

    seen: tuple[Seen, ...]
    hidden: int
    queued: int = 0
    cut: bool = False
    cpu: float = 0.0
    unread: tuple[int, ...] = ()


# ---- the runner -----------------------------------------------------------------------------


class Report(Struct, frozen=True, tag="report"):
    """Run the reporter that the configuration names, once. There is nothing to say of it here."""


class Reported(Struct, frozen=True, tag="reported"):
    """What it printed, as it is; or why there is nothing."""

    state: Literal["found", "error"]
    reason: str = ""
    output: bytes = b""


EXHAUSTED = "exhausted"
"""Among the details of a failure: the helper had no descriptors or memory left, so this is no
answer, and another helper is to be asked."""


class Failed(Struct, frozen=True, tag="failed"):
    """It could not be done; `code` is a pinned error's, and nothing was changed."""

    code: str
    message: str
    details: dict[str, Any] = {}


SupervisorAnswer = Given | Failed
BinderRequest = Take | Manage | Bind | Unbind | Verify | VerifyHome | Join | List | Kill
BinderAnswer = Taken | Unbound | Verified | HomeVerified | Killed | Done | Listed | Failed
ProberRequest = Probe
ProberAnswer = Probed | Failed
ListenerRequest = Listen
ListenerAnswer = Heard | Failed
WitnessRequest = Look
WitnessAnswer = Looked | Failed
RunnerRequest = Report
RunnerAnswer = Reported | Failed
