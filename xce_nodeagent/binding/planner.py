"""The planner: from what a caller asks to the event that is to be committed. Pure.

Whatever has to be looked up on the host (ports in use, the kind of a named cgroup) comes in as a
value, so that every decision here can be repeated, and tested, without a host.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import structs

from xce_nodeagent.binding import place
from xce_nodeagent.binding.book import Book
from xce_nodeagent.binding.composer import Composer, Site
from xce_nodeagent.binding.demand import Demand
from xce_nodeagent.errors import (
    BadPort,
    BadRequest,
    Busy,
    Conflict,
    NotReady,
    Stale,
    UnknownInstance,
)
from xce_nodeagent.errors import Drained as DrainedError
from xce_nodeagent.errors import Reserved as ReservedError
from xce_nodeagent.errors import Unhealthy as UnhealthyError
from xce_nodeagent.model import name, wire
from xce_nodeagent.model.binding import Binding, Changed, Committed, Key
from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.inventory import Inventory, overlapping
from xce_nodeagent.model.plan import AdoptCgroup, CgroupRef, HoldPort, MakeCgroup
from xce_nodeagent.provider import Divides


class Selector(Protocol):
    """Who chooses where the caller only counts: placement, given by whoever composes the agent."""

    def instances(
        self, inventory: Inventory, request: str, *, unavailable: set[str], near: set[str]
    ) -> tuple[str, ...]:
        """Give the ids for a request text; raise BadRequest, NoFitNow or NeverFits."""
        ...

    def ports(
        self,
        parts: Sequence[range],
        asks: Sequence[wire.PortAsk],
        *,
        held: Collection[int],
        in_use: Collection[int],
    ) -> tuple[tuple[int, str], ...]:
        """Give each port with its name; raise BadPort, Busy, Unhealthy, NoFitNow or NeverFits."""
        ...


def existing(book: Book, want: Demand, dead_since: float) -> Binding | None:
    """Give the binding that answers this demand already; raise Conflict where it differs.

    None means: there is something to do. A late retry of an attempt that was released after
    `dead_since` is Stale.
    """
    binding = book.live.get((want.job, want.attempt))
    if binding is None:
        if want.add:
            raise Conflict(
                f"{name.run(want.job, want.attempt)} holds nothing:"
                " --add grows a binding; prepare without it first",
                job=want.job,
            )
        ended = book.over.get((want.job, want.attempt))
        if ended is not None and ended > dead_since:
            raise Stale(
                f"{name.run(want.job, want.attempt)} was released: asking again does not help,"
                " prepare with a new attempt, as for a requeued job",
                job=want.job,
                attempt=want.attempt,
            )
        return None
    if binding.state in ("releasing", "quarantined"):
        raise Busy(
            f"{name.run(want.job, want.attempt)} is being released ({binding.state}):"
            " wait until that is done, then use a new attempt",
            holders=[{"job": binding.job, "attempt": binding.attempt}],
        )
    if want.ask in (binding.asks if want.add else binding.asks[:1]):
        return binding
    if want.add:
        return None
    raise Conflict(
        f"{name.run(want.job, want.attempt)} is prepared already, with something else"
        f" ({', '.join(binding.instances) or 'no instances'}): release it first,"
        " use a new attempt, or grow it with --add",
        job=want.job,
        attempt=want.attempt,
        instances=list(binding.instances),
    )


def wants_ports(inventory: Inventory, want: Demand) -> Instance | None:
    """Give the divisible instance whose parts are in use must be looked up; None for no ports."""
    if not want.ask.ports:
        return None
    if (instance := inventory.ports) is not None:
        _fit(inventory, instance)
        return instance
    raise BadPort(
        "this node manages no ports: set `[ports] range` in its configuration, such as"
        " '20000-20999'"
    )


def plan(
    want: Demand,
    *,
    inventory: Inventory,
    book: Book,
    composer: Composer,
    dividing: Mapping[str, Divides],
    selector: Selector,
    site: Site,
    cgroup: CgroupRef | None,
    ports_in_use: frozenset[int] = frozenset(),
) -> Committed | Changed:
    """Decide: give the event to commit, or raise the pinned error that says why not.

    `cgroup` is what the caller named, looked up; None lets the job have one of its own.
    """
    if want.number is not None and want.number > inventory.number:
        raise Stale(
            f"generation {want.number} is not one of this node's, which is at {inventory.number}:"
            " its state was lost; read the inventory again",
            generation=inventory.generation,
        )
    key = (want.job, want.attempt)
    before = book.live.get(key) if want.add else None
    instances = inventory.by_id()
    already = set(before.instances) if before else set()
    if before is not None:
        _present(instances, before, ())
    stranded = book.stranded(instances)
    named = [
        _named(inventory, book, wanted, key, number=want.number, stranded=stranded)
        for wanted in want.ask.instances
    ]
    for instance in named:
        if instance.type in inventory.divisible:
            raise BadPort(f"{instance.id!r} is held in parts: ask with --ports or --port")
    _disjoint(instances, [i.id for i in named if i.id not in already])
    chosen = {instance.id for instance in named} | already
    if want.ask.request:
        taken = book.unavailable(inventory.instances) | stranded.keys() | chosen
        chosen |= set(
            selector.instances(inventory, want.ask.request, unavailable=taken, near=chosen)
        )
    ports = before.plan.ports if before else ()
    if divisible := wants_ports(inventory, want):
        provider = dividing.get(divisible.provider)
        if provider is None:
            raise BadPort(f"{divisible.id} cannot be held in parts")
        _fresh_names(want.ask.ports, ports)
        _ports_free(book, want.ask.ports)
        new = selector.ports(
            provider.parts(divisible), want.ask.ports, held=book.ports_held(), in_use=ports_in_use
        )
        ports += tuple(HoldPort(divisible.id, port, port_name) for port, port_name in new)
    chosen |= {hold.instance for hold in ports}
    order = [instance for instance in inventory.instances if instance.id in chosen]
    if before is not None:
        step: MakeCgroup | AdoptCgroup | None = before.plan.cgroup
        enforcement = before.enforcement
    else:
        step, enforcement = place.choose(book, want, site, cgroup)
    whole = composer.compose(key, order, ports, step, inventory)
    excluded = _excluded(instances, order)
    ids = tuple(instance.id for instance in order)
    if before is not None:
        return Changed(
            job=want.job, attempt=want.attempt, asks=(*before.asks, want.ask), instances=ids,
            excluded=excluded, plan=whole, generation=inventory.generation,
        )  # fmt: skip
    return Committed(
        job=want.job, attempt=want.attempt, ask=want.ask, instances=ids, excluded=excluded,
        plan=whole, generation=inventory.generation, enforcement=enforcement,
    )  # fmt: skip


def shrink(
    binding: Binding,
    away: Iterable[str],
    *,
    inventory: Inventory,
    composer: Composer,
) -> Changed | None:
    """Give the event that takes instances out of a binding; None where it holds none of them.

    What stays is planned anew from the inventory; raise Unhealthy where it is not all there.
    """
    gone = set(away) & set(binding.instances)
    if not gone:
        return None
    # What was asked for is not what it holds any more: to ask for that again is a conflict, and
    # not an answer without the card; to ask for what it holds now is the same again.
    stays = tuple(sorted(i for i in binding.instances if i not in gone and i != "ports"))
    asks = (structs.replace(binding.asks[0], instances=stays, request=""),)
    instances = inventory.by_id()
    _present(instances, binding, gone)
    stay = [instances[i] for i in binding.instances if i not in gone]
    ports = tuple(hold for hold in binding.plan.ports if hold.instance not in gone)
    whole = composer.compose(binding.key, stay, ports, binding.plan.cgroup, inventory)
    return Changed(
        job=binding.job, attempt=binding.attempt, asks=asks, leaving=_overlapped(instances, gone),
        instances=tuple(i for i in binding.instances if i not in gone),
        excluded=_excluded(instances, stay), plan=whole, generation=inventory.generation,
    )  # fmt: skip


def _present(instances: Mapping[str, Instance], binding: Binding, gone: Collection[str]) -> None:
    """Raise Unhealthy where something that the binding is to keep is not in the inventory now.

    Its steps could not be planned anew, so the job would silently lose it.
    """
    for held in binding.instances:
        if held not in instances and held not in gone:
            raise UnhealthyError(
                f"instance {held}, which job {binding.job!r} holds, is not in the inventory now:"
                " the binding can't be changed until it is back, only released whole",
                instance=held,
            )


def _named(
    inventory: Inventory,
    book: Book,
    wanted: str,
    key: Key,
    *,
    number: int | None,
    stranded: Mapping[str, Key],
) -> Instance:
    instances = inventory.by_id()
    instance = instances.get(wanted)
    if instance is None:
        late = next((p for p in inventory.problems if p.state == "not_yet"), None)
        if late is not None:
            raise NotReady(
                f"instance {wanted[:100]!r} is not known yet: {late.provider}: {late.reason};"
                " try again in a moment",
                instance=wanted[:100],
            )
        raise UnknownInstance(
            f"instance {wanted[:100]!r} is not in this host's inventory:"
            " `xce-nodeagent inventory` shows what is",
            instance=wanted[:100],
        )
    if number is not None and instance.changed > number:
        raise Stale(
            f"instance {wanted} changed in generation {instance.changed}, the request was made"
            f" from {number}: read the inventory again",
            instance=wanted,
            changed=instance.changed,
        )
    _not_reserved(instance, book, key)
    if not book.is_free(instance):
        _not_of_others(instances, book, wanted, key)
    if stranded and instance.devices:
        _not_stranded(stranded, wanted, key)
    _fit(inventory, instance)
    return instance


def _not_reserved(instance: Instance, book: Book, key: tuple[str, str]) -> None:
    """Raise Reserved where the host keeps an instance, unless the job had it before that."""
    holds = book.live.get(key)
    if instance.reserved and not (holds and instance.id in holds.instances):
        raise ReservedError(
            f"instance {instance.id} is the host's own, and no job gets it: {instance.reserved};"
            " if jobs are to have it all the same, name it in `[nic] offer` of the configuration",
            instance=instance.id,
            reason=instance.reserved,
        )


def _fit(inventory: Inventory, instance: Instance) -> None:
    """Raise Drained or Unhealthy where an instance is not to be given to anybody.

    NotReady where it comes right by itself, and where whoever found it has not been told all yet,
    as while a vendor's library starts.
    """
    if instance.drained:
        raise DrainedError(
            f"instance {instance.id} is drained: {instance.reason or 'no reason given'}",
            instance=instance.id,
        )
    if instance.healthy:
        return
    late = f"is not ready: {instance.reason}" if instance.waits else ""
    for problem in inventory.problems:
        if problem.state == "not_yet" and problem.provider == instance.provider:
            late = f"is not known to be healthy yet: {problem.provider}: {problem.reason}"
    if late:
        raise NotReady(
            f"instance {instance.id} {late}; try again in a moment", instance=instance.id
        )
    raise UnhealthyError(
        f"instance {instance.id} is unhealthy: {instance.reason or 'no reason known'}",
        instance=instance.id,
        reason=instance.reason,
    )


def _not_of_others(
    instances: Mapping[str, Instance], book: Book, wanted: str, key: tuple[str, str]
) -> None:
    holders = [h for h in book.holders(instances, wanted) if (h.job, h.attempt) != key]
    if holders:
        who = ", ".join(f"{h.job} ({h.attempt or 'no attempt'})" for h in holders)
        raise Busy(
            f"instance {wanted}, or one that overlaps it, is held by {who}:"
            " wait for its release, or choose another",
            instance=wanted,
            holders=[{"job": h.job, "attempt": h.attempt} for h in holders],
        )


def _not_stranded(stranded: Mapping[str, Key], wanted: str, key: Key) -> None:
    job, attempt = stranded.get(wanted, key)
    if (job, attempt) != key:
        raise Busy(
            f"a device of instance {wanted} is held by {name.run(job, attempt)} under an id that is"
            " gone: wait for its release, or choose another",
            instance=wanted,
            holders=[{"job": job, "attempt": attempt}],
        )


def _disjoint(instances: Mapping[str, Instance], named: Sequence[str]) -> None:
    for wanted in named:
        if not instances[wanted].overlaps:
            continue
        both = (overlapping(instances, wanted) - {wanted}) & set(named)
        if both:
            raise BadRequest(
                f"instances {wanted} and {min(both)} overlap: they are one piece of silicon;"
                " name one of them"
            )


def _ports_free(book: Book, asks: Iterable[wire.PortAsk]) -> None:
    """Raise Busy, with who has it, where a port that is named is held."""
    for ask in asks:
        holder = book.ports_held().get(ask.port) if ask.port is not None else None
        if holder is not None:
            state = book.live[holder].state
            waits = state in ("releasing", "quarantined")
            how = f" (released, and not clean yet: {state})" if waits else ""
            job, attempt = holder
            raise Busy(
                f"port {ask.port} is held by {name.run(job, attempt)}{how}:"
                " wait for its release, or choose another",
                port=ask.port,
                holders=[{"job": job, "attempt": attempt}],
            )


def _fresh_names(asks: Iterable[wire.PortAsk], before: Iterable[HoldPort]) -> None:
    used = {hold.name.upper() for hold in before if hold.name}
    for ask in asks:
        if ask.name and ask.name.upper() in used:
            raise BadPort(f"port name {ask.name!r} is held by this binding already", name=ask.name)


def restoring(failed: Binding, before: Binding, instances: Mapping[str, Instance]) -> Changed:
    """Give the event that takes a growth back. What it had added is free once that is done."""
    added = set(failed.instances) - set(before.instances)
    return Changed(
        job=before.job, attempt=before.attempt, asks=before.asks, instances=before.instances,
        excluded=before.excluded, plan=before.plan, generation=before.generation,
        leaving=_overlapped(instances, added),
    )  # fmt: skip


def _overlapped(instances: Mapping[str, Instance], ids: Iterable[str]) -> tuple[str, ...]:
    """Give instances with all that shares their silicon; parts of a range are freed at once."""
    found: set[str] = set()
    for wanted in ids:
        if wanted in instances and instances[wanted].type != "ports":
            found |= overlapping(instances, wanted)
    return tuple(sorted(found))


def _excluded(instances: Mapping[str, Instance], chosen: Iterable[Instance]) -> tuple[str, ...]:
    """Give what nobody else may hold meanwhile. A divisible instance overlaps nothing."""
    ids: set[str] = set()
    for instance in chosen:
        if instance.overlaps:
            ids |= overlapping(instances, instance.id) - {instance.id}
    return tuple(sorted(ids))
