"""Rebuild: what the kernel has of bindings, compared with the ledger; and the kernel wins.

A bound cgroup bears the record of its binding, which no job can forge. So a ledger that was lost,
damaged, or put back from an old copy is made true again: what it does not know is adopted, what it
knows in an older form is replaced, and what was released there is released here. Only where a
record cannot be read, something is in doubt: then what the kernel grants is withheld.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

from msgspec import structs

from xce_nodeagent.binding import record
from xce_nodeagent.binding.composer import Site
from xce_nodeagent.binding.executor import Executor
from xce_nodeagent.binding.ledger import Ledger
from xce_nodeagent.binding.lifecycle import Lifecycle
from xce_nodeagent.model.binding import Adopted, Ask, Binding, Event, Key, Lost, ReleaseIntended
from xce_nodeagent.model.instance import DeviceNode
from xce_nodeagent.model.inventory import Inventory, overlapping
from xce_nodeagent.model.plan import AdoptCgroup, AllowDevice, CgroupRef, MakeCgroup, Plan
from xce_nodeagent.model.rule import Device, Rule
from xce_nodeagent.privileged.ops import Marked

log = logging.getLogger(__name__)

DOUBTFUL = "its record cannot be read: only what its cgroup is granted is known"
"""The reason of a binding that is in doubt."""


UNSEEN = (
    "the ledger was lost, or is the first on this host, and cgroups below cgroup_allowed_roots are"
    " more than are looked into, so somebody may be bound whom nobody knows; no new grants until"
    " all were looked into: remove the cgroups that nobody uses, then run `xce-nodeagent doctor"
    " --repair`, or wait five minutes"
)


async def compare(ledger: Ledger, executor: Executor, site: Site, now: float) -> bool:
    """Make the book true before anything is done by it; say whether it was not.

    For the start, before the hardware is looked at: what jobs were granted stays managed. And
    later, while a ledger is still in doubt because not every cgroup could be looked into. `now` is
    the time of day.
    """
    if not executor.enforces:
        if ledger.doubted:
            ledger.confirm("nothing to compare it with: no job has a fence here")
            return True
        return False
    marked, whole = await executor.marked(deep=True)
    counts: Counter[str] = Counter()
    for one in marked:
        if what := _compare(ledger, one, site.home, now):
            counts[what] += 1
    known = bool(ledger.hardware()[0])  # else it is the first on this host, or was lost
    unseen = "" if whole or (known and not ledger.doubted and not counts) else UNSEEN
    if not unseen and not ledger.doubted and not counts:
        return False
    # It is old, or has holes: what it takes for live may have been released since.
    alive = {_key(one) for one in marked}
    for binding in ledger.book:
        if binding.plan.cgroup is None:
            counts["unchecked, for they have no cgroup"] += 1
        elif binding.key in alive:
            continue
        elif binding.state in ("releasing", "quarantined"):
            counts["to be released, and done so again"] += 1  # whoever is left is looked for then
        elif not whole:
            counts["not found yet"] += 1
        elif not _within(binding.plan.cgroup.cgroup, site):
            # Nobody looks into it, so it may well be there, with all that it was granted. Whoever
            # verifies it is told the reason.
            counts["held, though their cgroups are not below the configured roots any more"] += 1
        else:
            _note(ledger, Lost(job=binding.job, attempt=binding.attempt, reason="ledger-lost"))
            counts["gone"] += 1
    text = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
    text = f"{len(ledger.book.live)} bindings" + (f" ({text})" if text else "")
    log.warning("the ledger was compared with the kernel: %s", text)
    if unseen:
        log.error("%s", unseen)
    ledger.confirm(text, unseen)
    return True


def _within(cgroup: CgroupRef, site: Site) -> bool:
    places = [*site.roots, *([site.home.path] if site.home else [])]
    return any(cgroup.path.startswith(f"{place.rstrip('/')}/") for place in places)


def _compare(ledger: Ledger, one: Marked, home: CgroupRef | None, now: float) -> str:
    """Take in what the kernel has of one binding; say what that was, if it was anything."""
    key = _key(one)
    live = ledger.book.live.get(key)
    try:
        found = record.decode(one.record, one.mark)
    except ValueError as error:
        if live is not None and ledger.boots.get(key) == ledger.boot:
            return _released(ledger, one, live)  # the record is written when it is verified
        log.error("cgroup %s is bound to job %s: %s: %s", one.cgroup.path, key[0], DOUBTFUL, error)
        found = doubtful(one, home, now)
    if live is not None and ledger.boots.get(key) == ledger.boot and found.up <= live.up:
        return _released(ledger, one, live)
    # A release that was answered stands, whatever is still on the cgroup: it may have been released
    # while nothing was enforced. Another job may have what it held by now.
    ended = not found.doubtful and ledger.ended(key, found.up)
    over = one.released or (live is None and (ended or key in ledger.book.over))
    adopted = structs.replace(found, state="releasing" if over else "bound")
    _note(ledger, Adopted(job=key[0], attempt=key[1], binding=adopted))
    return "doubtful" if found.doubtful else "older in the ledger" if live else "adopted"


def _released(ledger: Ledger, one: Marked, live: Binding) -> str:
    if not one.released or live.state not in ("committed", "bound"):
        return ""
    ledger.record(ReleaseIntended(job=live.job, attempt=live.attempt))
    return "released"


def _note(ledger: Ledger, event: Event) -> None:
    ledger.note(event)
    log.warning("job %s: %s", getattr(event, "job", ""), type(event).__name__.lower())


def _key(one: Marked) -> Key:
    job, _, attempt = one.mark.partition("\n")
    return job, attempt


def doubtful(one: Marked, home: CgroupRef | None, now: float) -> Binding:
    """Give a binding of which nothing is known but its cgroup, and what that is granted."""
    job, attempt = _key(one)
    inside = home is not None and one.cgroup.path.startswith(f"{home.path}/job-")
    step = MakeCgroup(one.cgroup) if inside else AdoptCgroup(one.cgroup, populated=True)
    allowed = tuple(AllowDevice(_node(rule), rule.access) for rule in one.grants or ())
    return Binding(
        job=job, attempt=attempt, state="bound", reason=DOUBTFUL, doubtful=True, asks=(Ask(),),
        instances=(), excluded=(), plan=Plan((step, *allowed)), generation="",
        enforcement=one.cgroup.backend, since=now, changed=now,
    )  # fmt: skip


def _node(rule: Rule) -> DeviceNode:
    device = rule.device
    return DeviceNode(str(device), device.type, device.major, device.minor)


def withhold(ledger: Ledger, inventory: Inventory) -> None:
    """Withhold what the doubtful bindings are granted, and what overlaps that.

    For every new inventory: a driver may be late.
    """
    for binding in [b for b in ledger.book if b.doubtful]:
        granted = tuple(_granted(binding.plan.grants, inventory))
        ids = tuple(dict.fromkeys((*binding.instances, *granted)))
        if ids == binding.instances:
            continue
        instances = inventory.by_id()
        near = {other for one in granted for other in overlapping(instances, one)}
        excluded = tuple(sorted({*binding.excluded, *near} - set(ids)))
        known = structs.replace(binding, instances=ids, excluded=excluded)
        ledger.note(Adopted(job=binding.job, attempt=binding.attempt, binding=known))


def _granted(grants: Iterable[Rule], inventory: Inventory) -> Iterable[str]:
    devices = {rule.device for rule in grants}
    for instance in inventory.instances:
        if any(Device.of(node) in devices for node in instance.devices):
            yield instance.id


async def sweep(lifecycle: Lifecycle, executor: Executor, now: float) -> None:
    """Look, while the agent runs, for what the ledger does not know, and for doubts to end.

    A doubtful binding that nobody is in is released: nobody can say who would do it. But where the
    ledger is a later version's, that can: its job may be between two steps.
    """
    ledger, home = lifecycle.ledger, lifecycle.site.home
    if ledger.doubted and await compare(ledger, executor, lifecycle.site, now):
        lifecycle.releases.clean_later()
    for one in (await executor.marked(deep=False))[0]:
        key = _key(one)
        if key not in ledger.book.live:
            async with lifecycle.turns.of(key):
                again, _ = await executor.marked(deep=False)  # it may have been released meanwhile
                for now_there in again:
                    if _key(now_there) == key and key not in ledger.book.live:
                        _compare(ledger, now_there, home, now)
            lifecycle.releases.clean_later()
        elif ledger.book.live[key].doubtful and not one.populated and not ledger.newer:
            await lifecycle.releases.undo(key, only=ledger.book.live[key])
    withhold(ledger, lifecycle.inventory())
    ledger.flush()
