"""A binding and its life: states, events, and one table that says which event may follow which.

    (none) ──Committed──▶ committed ──Bound──▶ bound ──ReleaseIntended──▶ releasing ──Released──▶ (ended)
                           │  ▲                 │                           │
                           │  └────Changed──────┘                           └─Released, not clean─▶ quarantined ──Cleaned──▶ (ended)
                           └──Failed──▶ (ended)

    (none) ──Withheld──▶ quarantined: it was clean when it was released, and then somebody was found
                         who still has one of its devices open.

`Lost` (the host rebooted, the cgroup vanished) ends a binding in every state, and `Adopted` (the
kernel has one that the ledger lost) replaces it. Everything that moves a binding is here: the
ledger stores these events, and the state is their fold.
"""  # noqa: E501  # the picture is one line

from __future__ import annotations

from typing import Literal

from msgspec import Struct, structs

from xce_nodeagent.model.plan import Plan
from xce_nodeagent.model.wire import LeftOver, PortAsk

Key = tuple[str, str]
"""A job and its attempt; the attempt is empty where the caller gave none."""

Kill = Literal["none", "term-then-kill"]
"""What a release does to processes that are left in the job's cgroup."""

State = Literal["committed", "bound", "releasing", "quarantined", "ended"]


class Ask(Struct, frozen=True, kw_only=True):
    """What the caller asked for: the same ask again gets the same answer."""

    uid: int | None = None
    instances: tuple[str, ...] = ()
    request: str = ""
    ports: tuple[PortAsk, ...] = ()
    cgroup: str = ""


class Committed(Struct, frozen=True, kw_only=True, tag="committed"):
    """The point of no return: from here on the binding can be finished, or undone."""

    job: str
    attempt: str
    ask: Ask
    instances: tuple[str, ...]
    excluded: tuple[str, ...]
    plan: Plan
    generation: str
    enforcement: str


class Changed(Struct, frozen=True, kw_only=True, tag="changed"):
    """A binding grows or shrinks, or a growth that failed is taken back: the whole new content."""

    job: str
    attempt: str
    asks: tuple[Ask, ...]
    instances: tuple[str, ...]
    excluded: tuple[str, ...]
    plan: Plan
    generation: str
    leaving: tuple[str, ...] = ()
    """What the binding gives up: nobody else gets it before the kernel has taken it back."""


class Bound(Struct, frozen=True, kw_only=True, tag="bound"):
    """The plan is carried out."""

    job: str
    attempt: str


class Failed(Struct, frozen=True, kw_only=True, tag="failed"):
    """The plan could not be carried out and was undone; the caller was told why."""

    job: str
    attempt: str
    code: str
    message: str


class ReleaseIntended(Struct, frozen=True, kw_only=True, tag="release_intended"):
    """The caller wants it gone: whatever happens now, it will be undone.

    `kill` says what becomes of processes that are still in its cgroup then.
    """

    job: str
    attempt: str
    kill: Kill = "none"


class Released(Struct, frozen=True, kw_only=True, tag="released"):
    """It is undone. What `left` shows is still there, so `quarantined` is not free yet."""

    job: str
    attempt: str
    left: tuple[LeftOver, ...] = ()
    quarantined: tuple[str, ...] = ()


class Withheld(Struct, frozen=True, kw_only=True, tag="withheld"):
    """Somebody still has released devices open, and nobody has got these instances meanwhile.

    The plan is nothing but the devices to look for. `since` and `born` are when the binding was
    made; `excluded` is as in that.
    """

    job: str
    attempt: str
    uid: int | None = None
    instances: tuple[str, ...]
    excluded: tuple[str, ...] = ()
    plan: Plan
    left: tuple[LeftOver, ...]
    generation: str
    enforcement: str
    since: float
    born: float = 0.0


class Cleaned(Struct, frozen=True, kw_only=True, tag="cleaned"):
    """What was left over is gone."""

    job: str
    attempt: str


class Lost(Struct, frozen=True, kw_only=True, tag="lost"):
    """It ended by itself: `lost-reboot`, `cgroup-vanished`."""

    job: str
    attempt: str
    reason: str


class Ended(Struct, frozen=True, kw_only=True, tag="ended"):
    """An attempt was released: all that is left to know when a ledger is written anew."""

    job: str
    attempt: str


class Drained(Struct, frozen=True, kw_only=True, tag="drained"):
    """An admin keeps an instance from being granted."""

    id: str
    reason: str


class Undrained(Struct, frozen=True, kw_only=True, tag="undrained"):
    """An admin lets it be granted again."""

    id: str


class Binding(Struct, frozen=True, kw_only=True):
    """A binding as it is now.

    `excluded` holds what overlapped its instances when it was made; `leaving` what it gave up,
    until that is carried out. `since` and `changed` are seconds since the epoch: the commit, and
    the last event. `up` is when its content was decided, in seconds since the boot: of two records
    of a binding, the one with the greater is the newer; 0 where an older agent wrote it. `born` is
    the commit on that clock, which nobody steps. Of one that is `doubtful` only the cgroup is
    known, and what that is granted.
    """

    job: str
    attempt: str
    state: State
    reason: str = ""
    asks: tuple[Ask, ...]
    instances: tuple[str, ...]
    excluded: tuple[str, ...]
    plan: Plan
    generation: str
    enforcement: str
    since: float
    changed: float
    left: tuple[LeftOver, ...] = ()
    leaving: tuple[str, ...] = ()
    up: float = 0.0
    born: float = 0.0
    doubtful: bool = False
    kill: Kill = "none"

    @property
    def key(self) -> Key:
        """The job and the attempt."""
        return (self.job, self.attempt)

    @property
    def uid(self) -> int | None:
        """The job's user, where the caller said it."""
        return self.asks[0].uid

    @property
    def mark(self) -> str:
        """What the binding's cgroup bears, so that it is told from any other's."""
        return f"{self.job}\n{self.attempt}"

    def is_same(self, other: Binding) -> bool:
        """Say whether these are one binding at two times, and not two runs under one name."""
        return (self.since, self.born) == (other.since, other.born)

    def is_older(self, other: Binding) -> bool:
        """Say whether another was decided later: what both say they hold is the other's."""
        if self.up and other.up:
            return self.up < other.up
        return self.since < other.since


class Adopted(Struct, frozen=True, kw_only=True, tag="adopted"):
    """The ledger has lost it, or has an older one; this is what the kernel, or memory, has."""

    job: str
    attempt: str
    binding: Binding


BindingEvent = (
    Committed
    | Changed
    | Bound
    | Failed
    | ReleaseIntended
    | Released
    | Withheld
    | Cleaned
    | Lost
    | Ended
    | Adopted
)
Event = BindingEvent | Drained | Undrained

STILL_OPEN = "still-open"
"""The reason of a binding that `Withheld` made."""

TABLE: dict[State | None, dict[type[Event], State]] = {
    None: {Committed: "committed", Adopted: "bound", Withheld: "quarantined"},
    "committed": {
        Bound: "bound", Failed: "ended", Changed: "committed",
        ReleaseIntended: "releasing", Lost: "ended", Adopted: "bound",
    },
    "bound": {
        Changed: "committed", ReleaseIntended: "releasing", Lost: "ended", Adopted: "bound",
    },
    "releasing": {
        ReleaseIntended: "releasing", Released: "ended", Lost: "ended", Adopted: "bound",
    },
    "quarantined": {
        ReleaseIntended: "quarantined", Withheld: "quarantined", Cleaned: "ended", Lost: "ended",
        Adopted: "bound",
    },
}  # fmt: skip
"""Which event may come in which state, and where it leads. There is nothing else.

`Adopted` leads to the state that it says, and `Ended` is of no binding at all.
"""


class InvalidTransition(Exception):
    """An event that cannot follow: a bug, or a ledger that something else wrote."""


def follow(
    binding: Binding | None, event: BindingEvent, now: float, up: float | None = None
) -> Binding:
    """Give the binding after an event. Raise InvalidTransition where the table has no entry.

    `now` is the time of day, `up` the seconds since the boot, where that is known.
    """
    state = binding.state if binding else None
    row = TABLE.get(state, {})
    if type(event) not in row:
        raise InvalidTransition(
            f"{event.job!r} attempt {event.attempt!r}: {type(event).__name__} cannot follow"
            f" in state {state or 'none'}"
        )
    after = row[type(event)]
    if isinstance(event, Committed):
        return Binding(
            job=event.job, attempt=event.attempt, state=after, asks=(event.ask,),
            instances=event.instances, excluded=event.excluded, plan=event.plan,
            generation=event.generation, enforcement=event.enforcement, since=now, changed=now,
            up=up or 0.0, born=up or 0.0,
        )  # fmt: skip
    if isinstance(event, Adopted):
        return event.binding
    if binding is None and isinstance(event, Withheld):
        return Binding(
            job=event.job, attempt=event.attempt, state=after, asks=(Ask(uid=event.uid),),
            instances=event.instances, excluded=event.excluded, plan=event.plan, left=event.left,
            generation=event.generation, enforcement=event.enforcement, since=event.since,
            changed=now, reason=STILL_OPEN, born=event.born,
        )  # fmt: skip
    if binding is None:  # the table has no other event for it; this tells the type checker
        raise InvalidTransition(event.job)
    match event:
        case Changed():
            return structs.replace(
                binding, state=after, changed=now, instances=event.instances,
                excluded=event.excluded, plan=event.plan, generation=event.generation,
                asks=event.asks, leaving=tuple(sorted({*binding.leaving, *event.leaving})),
                up=up or 0.0,
            )  # fmt: skip
        case Bound():
            return structs.replace(binding, state=after, changed=now, leaving=())
        case Released(left=left, quarantined=quarantined) if left:
            return structs.replace(
                binding, state="quarantined", changed=now, instances=quarantined, left=left,
                reason="left-over",
            )  # fmt: skip
        case ReleaseIntended(kill=kill):
            kill = kill if kill != "none" else binding.kill  # what was asked for once, stays
            return structs.replace(binding, state=after, changed=now, kill=kill)
        case Withheld():
            return structs.replace(
                binding, state=after, changed=now, instances=event.instances,
                excluded=event.excluded, plan=event.plan, left=event.left, reason=STILL_OPEN,
            )  # fmt: skip
        case Lost(reason=reason):
            return structs.replace(binding, state=after, changed=now, reason=reason)
        case Failed(code=code):
            return structs.replace(binding, state=after, changed=now, reason=code)
        case _:
            return structs.replace(binding, state=after, changed=now)
