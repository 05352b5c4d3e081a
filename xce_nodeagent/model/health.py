"""What is wrong with a card, from what was heard and measured: pure, from values to values.

A condition begins with an event (an XID) or with a figure, and ends by what its policy says
(`policy.py`). What a figure says is believed only when it has lasted for a while, and a condition
ends by another threshold than it begins by: a card that is on the edge does not come and go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple, get_args

from msgspec import Struct, structs

from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.link import Link
from xce_nodeagent.model.policy import UNKNOWN_LIMIT, Policy, Table, of, remedy

CONDITIONS_LIMIT = 64
"""Of one card. More differ by nothing that anybody would look at."""

REASONS_LIMIT = 3
"""Conditions that are named in the reason of one instance."""

COOLER = 10
"""Degrees Celsius below the slowdown threshold, at which a card is no more too hot."""

CALMER = 4
"""A card has few corrected errors again when what is left of them is this part of the limit."""

Recovery = Literal[
    "none", "reset", "reboot", "drain-p2p", "drain-reset", "imex", "bus-reset", "unknown"
]


class Moment(NamedTuple):
    """Now: seconds since the boot, which nobody steps, and the time of day, for people."""

    up: float
    time: float


class Limits(Struct, frozen=True, kw_only=True):
    """From when on a figure is a condition. Seconds, and corrected errors in an hour (0: never)."""

    thermal_seconds: int = 60
    cool_seconds: int = 300
    lost_seconds: int = 60
    corrected_per_hour: int = 10_000


class Xid(Struct, frozen=True):
    """An XID as NVML tells it; the instances are None where it names none."""

    number: int
    gpu_instance: int | None = None
    compute_instance: int | None = None


class Told(NamedTuple):
    """What cards told while somebody listened, and why no more is told; "" where all is well.

    `events` are XIDs with their cards; the number 0 is none, and says that figures have changed.
    `cut` are the cards whose MIG layout has changed.
    """

    events: tuple[tuple[str, Xid], ...] = ()
    cut: frozenset[str] = frozenset()
    fault: str = ""


class Sample(Struct, frozen=True, kw_only=True):
    """What a card says of itself now. None is what it does not answer.

    Temperatures are in degrees Celsius; memory errors are counted since the driver took the card
    up (NVML: volatile counters). `slowed` is NVML's HwThermalSlowdown. `lost` says why the card
    cannot be asked at all, and is empty where it can.
    """

    lost: str = ""
    temperature: int | None = None
    slowdown_at: int | None = None
    slowed: bool | None = None
    corrected: int | None = None
    uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    retire_pending: bool | None = None
    recovery: Recovery | None = None


class Condition(Struct, frozen=True, kw_only=True):
    """Something that is wrong with a card, or with a GPU instance of it.

    `since` is the time of day of the first one, `up` is when the last one was, in seconds since
    the boot. `asked`: the driver said meanwhile that the card needs recovery.
    """

    cause: str
    gpu_instance: int | None = None
    compute_instance: int | None = None
    since: float
    up: float
    count: int = 1
    asked: bool = False

    @property
    def place(self) -> tuple[str, int | None, int | None]:
        """What tells it from the card's other ones."""
        return self.cause, self.gpu_instance, self.compute_instance


class Card(Struct, frozen=True, omit_defaults=True):
    """All that is remembered of a card.

    `turning` says since when a figure says otherwise than its condition does. `level` is how many
    corrected errors are left of those that came, after what an hour lets pass; `at` is when that
    was, and `corrected` what the counter said then.
    """

    conditions: tuple[Condition, ...] = ()
    turning: dict[str, float] = {}
    level: float = 0.0
    at: float = 0.0
    corrected: int | None = None


SOUND = Card()


# ---- what happens to a card ---------------------------------------------------------------


def heard(card: Card, xid: Xid, now: Moment, table: Table) -> Card:
    """Take in an XID."""
    cause = f"xid-{xid.number}"
    if not 0 < xid.number < UNKNOWN_LIMIT or of(table, cause).verdict == "ignore":
        return card
    place = (cause, xid.gpu_instance, xid.compute_instance)
    return _begin(card, place, now)


def measured(card: Card, sample: Sample, now: Moment, table: Table, limits: Limits) -> Card:
    """Take in a sample."""
    card = _counted(card, sample, now, limits)
    for cause, (says, begins, ends) in _says(card, sample, limits).items():
        card = _turned(card, cause, says, now, begins=begins, ends=ends)
    if sample.recovery == "none":
        # It asked for what these need, and does not any more: it was done.
        return _kept(card, lambda c: not (c.asked and of(table, c.cause).ends in _BY_RESET))
    if sample.recovery is not None:
        asked = (structs.replace(c, asked=True) for c in card.conditions)
        return structs.replace(card, conditions=tuple(asked))
    return card


def renewed(card: Card, table: Table) -> Card:
    """The driver has taken the card up anew."""
    return _kept(card, lambda c: of(table, c.cause).ends not in ("level", *_BY_RESET))


def rebooted(card: Card, now: Moment, table: Table) -> Card:
    """The host has booted since this was remembered: only what outlasts that is left."""
    left = _kept(card, lambda c: of(table, c.cause).ends == "undrain")
    return Card(conditions=tuple(structs.replace(c, up=now.up) for c in left.conditions))


def undrained(card: Card, gpu_instance: int | None = None) -> Card:
    """An administrator says that the card, or one of its GPU instances, is in order."""
    if gpu_instance is None:
        return structs.replace(SOUND, corrected=card.corrected, at=card.at)
    return _kept(card, lambda c: c.gpu_instance != gpu_instance)


def quiet(card: Card, now: Moment, table: Table) -> Card:
    """End what has not come again for as long as its policy says."""
    return _kept(card, lambda c: (end := _end(c, table)) is None or now.up < end)


def due(card: Card, table: Table) -> float | None:
    """Say when `quiet` will end something, in seconds since the boot; None where never."""
    return min((end for c in card.conditions if (end := _end(c, table)) is not None), default=None)


def resumed(card: Card) -> Card:
    """Nobody looked for a while: what a figure was about to say must last anew."""
    return structs.replace(card, turning={}, corrected=None)


_BY_RESET = ("quiet", "reset")


def _end(condition: Condition, table: Table) -> float | None:
    policy = of(table, condition.cause)
    return condition.up + policy.seconds if policy.ends == "quiet" else None


def _kept(card: Card, keep: Callable[[Condition], bool]) -> Card:
    left = tuple(filter(keep, card.conditions))
    return card if len(left) == len(card.conditions) else structs.replace(card, conditions=left)


def _begin(card: Card, place: tuple[str, int | None, int | None], now: Moment) -> Card:
    known = {condition.place: condition for condition in card.conditions}
    if before := known.get(place):
        known[place] = structs.replace(before, up=now.up, count=before.count + 1)
    elif len(known) < CONDITIONS_LIMIT:
        cause, gpu, compute = place
        known[place] = Condition(
            cause=cause, gpu_instance=gpu, compute_instance=compute, since=now.time, up=now.up
        )
    return structs.replace(card, conditions=tuple(known.values()))


def _turned(
    card: Card, cause: str, says: bool | None, now: Moment, *, begins: float, ends: float
) -> Card:
    """Let a figure begin or end its condition when it has said so for long enough.

    Where it says neither (None), what it was about to say must last anew.
    """
    there = next((c for c in card.conditions if c.cause == cause), None)
    if says is None or says == (there is not None):
        if cause not in card.turning:
            return card
        return structs.replace(card, turning=_without(card.turning, cause))
    since = card.turning.get(cause, now.up)
    if now.up - since < (begins if says else ends):
        return structs.replace(card, turning={**card.turning, cause: since})
    card = structs.replace(card, turning=_without(card.turning, cause))
    if says:
        return _begin(card, (cause, None, None), now)
    return _kept(card, lambda c: c.cause != cause)


def _without(turning: Mapping[str, float], cause: str) -> dict[str, float]:
    return {name: since for name, since in turning.items() if name != cause}


def _says(
    card: Card, sample: Sample, limits: Limits
) -> dict[str, tuple[bool | None, float, float]]:
    """Give what a sample says of each condition, and for how long before it begins or ends."""
    found: dict[str, tuple[bool | None, float, float]]
    found = {"lost": (bool(sample.lost), 0.0, limits.lost_seconds)}
    if sample.lost:
        return found  # of all else it says nothing
    found |= {
        "thermal": (_too_hot(sample), limits.thermal_seconds, limits.cool_seconds),
        "remap-pending": (sample.remap_pending, 0.0, 0.0),
        "remap-failed": (sample.remap_failed, 0.0, 0.0),
        "retire-pending": (sample.retire_pending, 0.0, 0.0),
    }
    if sample.uncorrected is not None:
        found["uncorrected"] = (sample.uncorrected > 0, 0.0, 0.0)
    if sample.corrected is not None:
        found["corrected"] = (_too_many(card, limits), 0.0, 0.0)
    if sample.recovery is not None:
        for action in get_args(Recovery):
            if action != "none":
                found[f"recovery-{action}"] = (sample.recovery == action, 0.0, 0.0)
    return found


def _too_hot(sample: Sample) -> bool | None:
    """Say whether a card is too hot; None between the thresholds, and where nobody knows."""
    margin = None
    if sample.temperature is not None and sample.slowdown_at is not None:
        margin = sample.slowdown_at - sample.temperature
    if sample.slowed or (margin is not None and margin <= 0):
        return True
    if sample.slowed is None and margin is None:
        return None
    return False if margin is None or margin >= COOLER else None


def _too_many(card: Card, limits: Limits) -> bool | None:
    if not limits.corrected_per_hour:
        return False
    if card.level >= limits.corrected_per_hour:
        return True
    return False if card.level * CALMER <= limits.corrected_per_hour else None


def _counted(card: Card, sample: Sample, now: Moment, limits: Limits) -> Card:
    """Add the corrected errors that are new, and let pass what the time since then lets pass."""
    if sample.corrected is None:
        return card
    passed = max(0.0, now.up - card.at) * limits.corrected_per_hour / 3600
    before = sample.corrected if card.corrected is None else card.corrected
    # A counter that is lower than before has begun anew.
    new = sample.corrected - before if sample.corrected >= before else sample.corrected
    level = max(0.0, card.level - passed) + new
    return structs.replace(card, level=level, at=now.up, corrected=sample.corrected)


# ---- what that means for instances --------------------------------------------------------


def told(
    instances: Iterable[Instance], links: Iterable[Link], cards: Mapping[str, Card], table: Table
) -> dict[str, str]:
    """Say of each instance that nobody should get why that is so; the others are not named.

    No counts and no times: what is said changes only when the instance's health does.
    """
    every = tuple(instances)
    found: dict[str, list[str]] = {}
    for card, state in sorted(cards.items()):
        for condition in state.conditions:
            policy = of(table, condition.cause)
            if policy.verdict != "unhealthy":
                continue
            for one in _hit(every, links, card, condition, policy):
                found.setdefault(one, []).append(_reason(card, one, condition, policy))
    return {one: _joined(reasons) for one, reasons in found.items()}


def described(condition: Condition, policy: Policy) -> str:
    """Say what is wrong: `XID 48, uncorrectable memory error, in GPU instance 2`."""
    kind, _, number = condition.cause.partition("-")
    text = f"XID {number}, {policy.text}" if kind == "xid" else policy.text
    if condition.gpu_instance is not None:
        text += f", in GPU instance {condition.gpu_instance}"
        if condition.compute_instance is not None:
            text += f", compute instance {condition.compute_instance}"
    return text


def _reason(card: str, one: str, condition: Condition, policy: Policy) -> str:
    of_another = f"{card}: " if one != card and condition.gpu_instance is None else ""
    return f"{of_another}{described(condition, policy)}: {remedy(policy)}"


def _joined(reasons: list[str]) -> str:
    unlike = list(dict.fromkeys(reasons))
    more = len(unlike) - REASONS_LIMIT
    return "; ".join(unlike[:REASONS_LIMIT]) + (f"; and {more} more" if more > 0 else "")


def _hit(
    instances: tuple[Instance, ...],
    links: Iterable[Link],
    card: str,
    condition: Condition,
    policy: Policy,
) -> set[str]:
    """Give the instances that a condition hits.

    A slice takes its card along, for whoever gets the card gets the slice; its siblings stay. A
    slice that there is no more leaves the card: nobody knows where in it the fault is now.
    """
    if policy.hits in ("compute", "slice") and condition.gpu_instance is not None:
        slices = {
            one.id
            for one in instances
            if one.parent == card
            and one.number("gpu_instance") == condition.gpu_instance
            and (
                policy.hits == "slice"
                or condition.compute_instance in (None, one.number("compute_instance"))
            )
        }
        if slices:
            return slices | {card} | {one.id for one in instances if one.parent in slices}
    hit = {card}
    if policy.hits == "peers":
        ends = [(link.one, link.other) for link in links]
        hit |= {other for one, other in ends if one == card}
        hit |= {one for one, other in ends if other == card}
    of_these = (one for one in instances if one.parent in hit or not hit.isdisjoint(one.overlaps))
    return hit | {one.id for one in of_these}
