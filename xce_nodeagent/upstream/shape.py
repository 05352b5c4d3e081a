"""An inventory in three parts: what hosts of one kind share, what is this host's own, what moves.

    Shape    types, topology, control nodes, and a row for each instance: the same on every host
             that is built and set up alike; kept once for all of them, under its hash
    Static   this host's names for the instances (UUIDs, serial numbers, addresses), in their order
    State    of one instance: health, drain, generation of its last change, and the attributes that
             move; only where that differs from what is usual

`split` and `join` are pure and each other's inverse, whatever the attributes are: the two tables
below only decide how small the parts get. Where a part refers to an instance it says `#3`: the
fourth of `Static.ids`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct, structs

from xce_nodeagent.model.instance import AttributeValue, DeviceNode, Instance, ResourceType
from xce_nodeagent.model.inventory import ControlNode, Inventory

OWN = frozenset({
    "uuid", "serial", "mac", "fabric_cluster", "fabric_clique", "slot_number", "tray_index",
    "host_id", "xgmi_hive", "nvlink_domain",
})  # fmt: skip
"""Attributes that differ between hosts of one kind."""

MOVING = frozenset({
    "state", "carrier", "speed_mbps", "default_route", "bond", "vlans", "vf_count",
    "fabric_state", "nvlink_count", "row_remap_pending", "row_remap_failed", "power_limit_watts",
    "persistence_mode", "compute_mode", "foreign_listeners", "foreign_count",
})  # fmt: skip
"""Attributes that change while the hardware stays what it is."""

_MARK = "#"
_BEYOND = 10**9  # the place of what has more digits: no host has so many instances

Attributes = dict[str, AttributeValue]


class Row(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An instance as all hosts of one shape have it."""

    type: str
    provider: str
    parent: str | None = None
    overlaps: tuple[str, ...] = ()
    attributes: Attributes = {}
    devices: tuple[DeviceNode, ...] = ()


class Shape(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What hosts of one kind share."""

    types: tuple[ResourceType, ...] = ()
    topology: dict[str, Any] = {}
    control: dict[str, tuple[ControlNode, ...]] = {}
    rows: tuple[Row, ...] = ()


class Static(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is a host's own, and seldom changes.

    `shape` is the hash of the shape. `own` has a dict for each instance. `usual` has the moving
    attributes as most instances of a kind have them, by type and model; `base` is the `changed` of
    most of them.
    """

    shape: str = ""
    ids: tuple[str, ...] = ()
    own: tuple[Attributes, ...] = ()
    usual: dict[str, Attributes] = {}
    base: int = 0
    attributes: dict[str, Any] = {}


class State(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How an instance differs from what is usual. `changed` of None is the host's `base`.

    `attributes` are moving ones with another value than usual, `absent` those that it lacks.
    """

    healthy: bool = True
    reason: str = ""
    reserved: str = ""
    drained: bool = False
    changed: int | None = None
    attributes: Attributes = {}
    absent: tuple[str, ...] = ()


USUAL = State()


class Parts(Struct, frozen=True, kw_only=True):
    """An inventory taken apart. `states` has those instances that differ from what is usual."""

    shape: Shape
    static: Static
    states: dict[str, State]


def split(inventory: Inventory) -> Parts:
    """Take an inventory apart. `Static.shape` is left empty: a hash is of bytes."""
    every = inventory.instances
    places = {one.id: f"{_MARK}{at}" for at, one in enumerate(every)}
    usual = _usual(every)
    base = _most((one.changed for one in every), 0)
    return Parts(
        shape=Shape(
            types=inventory.types,
            topology=_refer(inventory.topology, places),
            control=inventory.control,
            rows=tuple(_row(one, places) for one in every),
        ),
        static=Static(
            ids=tuple(one.id for one in every),
            own=tuple(
                _refer({k: v for k, v in one.attributes.items() if k in OWN}, places)
                for one in every
            ),
            usual=usual,
            base=base,
            attributes=inventory.attributes,
        ),
        states={
            one.id: state
            for one in every
            if (state := _state(one, usual.get(_kind(one), {}), base)) != USUAL
        },
    )


def join(shape: Shape, static: Static, states: Mapping[str, State], bare: Inventory) -> Inventory:
    """Put an inventory together; `bare` has what is in none of the parts.

    Raise ValueError where the parts are not of one inventory.
    """
    ids = static.ids
    if not len(shape.rows) == len(ids) == len(static.own):
        raise ValueError(
            f"{len(ids)} ids and {len(static.own)} of their own attributes for"
            f" {len(shape.rows)} rows"
        )
    try:
        topology = _resolve(shape.topology, ids)
        instances = tuple(_instance(row, at, static, states) for at, row in enumerate(shape.rows))
    except (IndexError, TypeError) as error:
        raise ValueError(f"a reference to no instance: {error}") from None
    return structs.replace(
        bare,
        types=shape.types,
        topology=topology,
        control=shape.control,
        attributes=static.attributes,
        instances=instances,
    )


def place(reference: str) -> int | None:
    """Give the place that `#3` refers to; None for a text that is no reference."""
    digits = reference.removeprefix(_MARK)
    if digits == reference or not (digits.isdecimal() and digits.isascii()):
        return None
    return int(digits) if len(digits) < 10 else _BEYOND


def _row(one: Instance, places: Mapping[str, str]) -> Row:
    kept = {k: v for k, v in one.attributes.items() if k not in OWN and k not in MOVING}
    return Row(
        type=one.type,
        provider=one.provider,
        parent=None if one.parent is None else _refer(one.parent, places),
        overlaps=tuple(_refer(other, places) for other in one.overlaps),
        attributes=_refer(kept, places),
        devices=one.devices,
    )


def _instance(row: Row, at: int, static: Static, states: Mapping[str, State]) -> Instance:
    ids = static.ids
    state = states.get(ids[at], USUAL)
    attributes: Attributes = {**_resolve(row.attributes, ids), **_resolve(static.own[at], ids)}
    usual = static.usual.get(_kind_of(row.type, attributes), {})
    attributes |= {key: value for key, value in usual.items() if key not in state.absent}
    attributes |= state.attributes
    return Instance(
        id=ids[at],
        type=row.type,
        provider=row.provider,
        parent=None if row.parent is None else _resolve(row.parent, ids),
        overlaps=tuple(_resolve(other, ids) for other in row.overlaps),
        healthy=state.healthy,
        reason=state.reason,
        reserved=state.reserved,
        drained=state.drained,
        changed=static.base if state.changed is None else state.changed,
        attributes=attributes,
        devices=row.devices,
    )


def _state(one: Instance, usual: Attributes, base: int) -> State:
    moving = {key: value for key, value in one.attributes.items() if key in MOVING}
    return State(
        healthy=one.healthy,
        reason=one.reason,
        reserved=one.reserved,
        drained=one.drained,
        changed=None if one.changed == base else one.changed,
        attributes={k: v for k, v in moving.items() if k not in usual or not _same(usual[k], v)},
        absent=tuple(sorted(usual.keys() - moving.keys())),
    )


def _kind(one: Instance) -> str:
    return _kind_of(one.type, one.attributes)


def _kind_of(kind: str, attributes: Mapping[str, AttributeValue]) -> str:
    return f"{kind} {attributes.get('model', '')}"


def _usual(instances: Sequence[Instance]) -> dict[str, Attributes]:
    kinds: dict[str, list[Instance]] = {}
    for one in instances:
        kinds.setdefault(_kind(one), []).append(one)
    found = {kind: _usual_of(alike) for kind, alike in sorted(kinds.items())}
    return {kind: usual for kind, usual in found.items() if usual}


def _usual_of(alike: Sequence[Instance]) -> Attributes:
    """Give each moving attribute as most of them have it, those that lack it counted, too."""
    usual: Attributes = {}
    for name in sorted({key for one in alike for key in one.attributes} & MOVING):
        told = [msgspec.json.encode(one.attributes.get(name)) for one in alike]
        most = _most(told, b"null")
        if most != b"null":
            usual[name] = msgspec.json.decode(most)
    return usual


def _most(values: Any, default: Any) -> Any:
    """Give the most frequent; of several the least, so that order decides nothing."""
    counted = Counter(values)
    return min(counted, key=lambda value: (-counted[value], value), default=default)


def _same(one: AttributeValue, other: AttributeValue) -> bool:
    """Say whether two values are one in JSON: True is not 1 there."""
    return one == other and type(one) is type(other)


def _refer(value: Any, places: Mapping[str, str]) -> Any:
    """Put a place wherever an instance's id stands, in keys and values."""
    if isinstance(value, str):
        return places.get(value) or (f"{_MARK}{value}" if value.startswith(_MARK) else value)
    if isinstance(value, dict):
        return {_refer(key, places): _refer(inside, places) for key, inside in value.items()}
    if isinstance(value, (list, tuple)):
        return [_refer(inside, places) for inside in value]
    return value


def _resolve(value: Any, ids: Sequence[str]) -> Any:
    """Put the ids back."""
    if isinstance(value, str):
        if not value.startswith(_MARK):
            return value
        at = place(value)
        return value[1:] if at is None else ids[at]
    if isinstance(value, dict):
        return {_resolve(key, ids): _resolve(inside, ids) for key, inside in value.items()}
    if isinstance(value, list):
        return [_resolve(inside, ids) for inside in value]
    return value
