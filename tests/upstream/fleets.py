"""Fleets that are not there: n nodes of a few kinds, each with its own UUIDs, made by `report()`.

Of every 40 nodes one has a sick card, one a drained card, one a job whose cards are quarantined,
one is stale (no sign of life), and a quarter have jobs; the rest are idle. The same n gives the
same fleet.
"""

from __future__ import annotations

import functools
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import structs

from xce_nodeagent.discovery import scan
from xce_nodeagent.host import Host
from xce_nodeagent.model.binding import Ask, Binding, State
from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.inventory import Inventory, advance
from xce_nodeagent.model.plan import HoldPort, Plan
from xce_nodeagent.providers import all_providers
from xce_nodeagent.upstream import packing
from xce_nodeagent.upstream.claim import Live
from xce_nodeagent.upstream.fleet import Fleet, Node
from xce_nodeagent.upstream.form import form_of
from xce_nodeagent.upstream.keys import Keys
from xce_nodeagent.upstream.reading import read
from xce_nodeagent.upstream.report import Report, numbered, report
from xce_nodeagent.upstream.shape import Parts, Shape, join, split

PROFILES = ("dgx-h100", "dgx-h100", "dgx-a100-mig", "gb200", "mi300x", "cpu-only")
SPACE = uuid.UUID("5d3b3a52-7d0e-4e57-9a41-4d0a2f8a2f11")
TIME = 1_700_000_000.0


def name(at: int) -> str:
    """Give the name of a node: `r012-n03`, racks of sixteen."""
    return f"r{at // 16:03}-n{at % 16:02}"


def agent(at: int) -> str:
    return str(uuid.uuid5(SPACE, f"agent {at}"))


def boot(at: int) -> str:
    return str(uuid.uuid5(SPACE, f"boot {at}"))


def is_stale(at: int) -> bool:
    """Say whether a node gives no sign of life."""
    return at % 40 == 17


@functools.cache
def _parts(profile: str) -> tuple[Parts, Inventory]:
    with tempfile.TemporaryDirectory() as nothing:
        host = Host(Path(nothing), live=False, simulate=profile, port_range=(20000, 20099))
        found = scan(host, all_providers())
    return split(found), found


def inventory(at: int) -> Inventory:
    """Give what one node has."""
    parts, base = _parts(PROFILES[at // 16 % len(PROFILES)])
    ids = tuple(_identity(at, one) for one in parts.static.ids)
    attributes = {"rack": f"r{at // 16:03}", "switch_block": f"b{at // 64:02}"}
    static = structs.replace(parts.static, ids=ids, attributes=attributes)
    states = {_identity(at, one): state for one, state in parts.states.items()}
    found = join(parts.shape, static, states, base)
    instances = list(found.instances)
    if at % 40 == 5:
        instances[0] = structs.replace(instances[0], healthy=False, reason="XID 79: off the bus")
    if at % 40 == 11:
        instances[-2] = structs.replace(instances[-2], drained=True, reason="to be swapped")
    found = structs.replace(
        found, node=name(at), boot_id=boot(at), instances=tuple(instances), problems=()
    )
    return advance(found, {}, at % 7)[0]


def _identity(at: int, one: str) -> str:
    """Give a UUID of this node's own; a PCI address is the same everywhere."""
    kind = next((kind for kind in ("GPU-", "MIG-") if one.startswith(kind)), None)
    return one if kind is None else f"{kind}{uuid.uuid5(SPACE, f'{at} {one}')}"


def bindings(at: int, found: Inventory) -> Iterator[Binding]:
    """Give the jobs of a node: two on a quarter of them, on one in forty a quarantined one."""
    cards = [one for one in found.instances if one.type == "mig"]
    cards = cards or [one for one in found.instances if one.type == "gpu"]
    if at % 4 == 2 and len(cards) > 3:
        for number, some in enumerate((cards[1:2], cards[2:4])):
            yield binding(f"{1000 + at}.{number}", some, found, port=20000 + number)
    if at % 40 == 23 and cards:
        yield binding(f"{1000 + at}.9", cards[-1:], found, state="quarantined", reason="left-over")


def binding(
    job: str,
    some: list[Instance],
    found: Inventory,
    *,
    port: int | None = None,
    state: State = "bound",
    reason: str = "",
) -> Binding:
    """Give a binding of these instances."""
    ports = () if port is None else (HoldPort("ports", port, "master"),)
    return Binding(
        job=job, attempt="1", state=state, reason=reason, asks=(Ask(uid=1000),),
        instances=tuple(one.id for one in some),
        excluded=tuple(sorted({over for one in some for over in one.overlaps})),
        plan=Plan(ports), generation=found.generation, enforcement="bpf",
        since=TIME, changed=TIME,
    )  # fmt: skip


@functools.cache
def reported(at: int) -> Report:
    """Give the report of one node."""
    found = inventory(at)
    made = report(found, bindings(at, found), agent=agent(at), program="0.1.0")
    return numbered(made, 1 + at % 5, TIME + at)


def nodes(count: int) -> Iterator[Node]:
    """Give what a reader has of each node."""
    shapes = {one.shape: one.shape_data for one in map(reported, range(count))}
    forms = {sha: form_of(packing.unpack(data, Shape)) for sha, data in shapes.items()}
    for at in range(count):
        one = read(name(at), reported(at).entries, forms.__getitem__)
        yield away(one, since=TIME if is_stale(at) else 0.0, available=not is_stale(at))


def away(node: Node, *, since: float = 1.0, available: bool = False) -> Node:
    """Give the node with another liveness, and all else as it is."""
    return structs.replace(node, since=since, available=available)


def fleet(count: int) -> Fleet:
    """Give the fleet as a reader has it that has followed it."""
    made = {one.name: one for one in nodes(count)}
    return Fleet(revision=count, cluster="14841639068965178418", nodes=dict(sorted(made.items())))


def keys(at: int, below: Keys) -> dict[bytes, bytes]:
    """Give a node's keys in the store, its shape's among them, without the sign of life."""
    one = reported(at)
    found = {below.entry(name(at), entry): data for entry, data in one.entries.items()}
    return {below.shape(one.shape): one.shape_data, **found}


def live(at: int, **more: Any) -> bytes:
    """Give a node's sign of life, or another one that it should not give."""
    fields = {"agent": agent(at), "boot_id": boot(at), "node": name(at)}
    return packing.pack(Live(**{**fields, **more}))


def state(count: int, below: Keys) -> dict[bytes, tuple[bytes, int]]:
    """Give what the store has of so many nodes: the value and the lease of each key."""
    found: dict[bytes, tuple[bytes, int]] = {}
    for at in range(count):
        found |= {key: (value, 0) for key, value in keys(at, below).items()}
        if not is_stale(at):
            found[below.live(name(at))] = (live(at), 100 + at)
    return found
