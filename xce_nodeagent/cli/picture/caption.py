"""What is written in the box of an instance, and which state it shows."""

from __future__ import annotations

from collections.abc import Iterable

from xce_nodeagent.cli.picture.measure import fitted, width
from xce_nodeagent.cli.picture.shape import Box, Kind, State, Text
from xce_nodeagent.model.instance import Holder, Instance

WIDE = 140
"""The width of a box."""
_LEFT, _RIGHT = 13, 6  # of the text; the state's stripe is left of it
_TITLE, _SIZE, _LINE = 11.5, 9.5, 12.5
_CELL, FEW, _ACROSS = 15, 8, 4
"""Height of a cell; up to so many stand below each other, more in so many columns."""

Notes = dict[tuple[str, str], int]
"""The number of each reason, by state and text, as the picture's foot tells them."""


def state(instance: Instance) -> State:
    """Say what an instance shows: what keeps it from a job goes before who has it."""
    if not instance.healthy:
        return "unhealthy"
    if instance.drained:
        return "drained"
    if instance.held_by:
        return "held"
    if instance.reserved:
        return "reserved"
    return "free"


def reason(instance: Instance) -> str:
    """Say why an instance is in its state; empty where that needs no word."""
    shown = state(instance)
    if shown in ("unhealthy", "drained"):
        return instance.reason
    return instance.reserved if shown == "reserved" else ""


def holders(instance: Instance) -> str:
    """Say who has it, in a few letters."""
    held = instance.held_by or ()
    if len(held) == 1:
        return _run(held[0])
    return f"{len(held)} jobs" if held else ""


def holders_in_full(instance: Instance) -> str:
    """Say who has it, all of them."""
    return ", ".join(map(_run, instance.held_by or ()))


def summary(instance: Instance) -> str:
    """Say in a line what it is."""
    return " · ".join(filter(None, _about(instance)))


def _run(holder: Holder) -> str:
    return f"{holder.job}:{holder.attempt}" if holder.attempt else holder.job


def device(instance: Instance, parts: Iterable[Instance], notes: Notes, rail: int = -1) -> Box:
    """Make the box of an instance, at the origin, with cells for what it is cut into.

    `rail` is that of a card, which does not tell it of itself.
    """
    room = WIDE - _LEFT - _RIGHT
    texts = []
    name = title(instance)
    rail = instance.number("rail", rail)
    mark = f"rail {rail}" if rail >= 0 else ""
    left = room - (width(mark, _SIZE) + 6 if mark else 0)
    y = 15.0
    texts.append(Text(_LEFT, y, fitted(name, _TITLE, left, bold=True), _TITLE, bold=True))
    if mark:
        texts.append(Text(WIDE - _RIGHT, y, mark, _SIZE, end=True))
    for line in filter(None, (*_facts(instance), _standing(instance, notes))):
        y += _LINE
        texts.append(Text(_LEFT, y, fitted(line, _SIZE, room), _SIZE))
    cells, below = _cells(list(parts), notes, y + 6)
    return Box(
        kind=_kind(instance),
        x=0,
        y=0,
        width=WIDE,
        height=below + (2 if cells else 0),
        state=state(instance),
        texts=tuple(texts),
        cells=cells,
        title=detail(instance),
        instance=instance.id,
    )


def _kind(instance: Instance) -> Kind:
    if instance.type in ("gpu", "nic"):
        return "gpu" if instance.type == "gpu" else "nic"
    return "other"


def title(instance: Instance) -> str:
    """Name an instance as people do: the card by its index, the NIC by its RDMA device."""
    if instance.type == "gpu":
        index = instance.number("index")
        return f"GPU {index}" if index >= 0 else "GPU"
    if instance.type == "nic":
        return instance.text("rdma_device") or instance.text("netdev") or instance.id
    return instance.id if instance.type == instance.id else f"{instance.type} {instance.id}"


def _facts(instance: Instance) -> Iterable[str]:
    yield from _about(instance, WIDE - _LEFT - _RIGHT)
    yield instance.text("pci_address")


def _about(instance: Instance, room: float = 1e9) -> Iterable[str]:
    model = instance.text("model").removeprefix("NVIDIA ").removeprefix("AMD Instinct ")
    memory = instance.number("memory_bytes")
    told = f"{model} · {memory / 2**30:.0f} GiB" if model and memory > 0 else model
    yield told if width(told, _SIZE) <= room else model
    speed = instance.number("speed_mbps")
    if instance.type == "nic":
        netdev = instance.text("netdev")
        words = (
            netdev if netdev and netdev != title(instance) else "",
            f"{speed / 1000:g}G" if speed > 0 else "",
            {"infiniband": "IB", "ethernet": "Eth"}.get(instance.text("link_layer"), ""),
            instance.text("state"),
        )
        yield " ".join(filter(None, words))
    yield instance.text("mig_profile")
    yield instance.text("port_range")


def _standing(instance: Instance, notes: Notes) -> str:
    shown = state(instance)
    if shown == "held":
        return f"held by {holders(instance)}"
    if shown == "free":
        return "free" if instance.held_by is not None else ""
    number = notes.get((shown, reason(instance)))
    return f"{shown} ({number})" if number else shown


def _cells(parts: list[Instance], notes: Notes, top: float) -> tuple[tuple[Box, ...], float]:
    """Give the cells of what an instance is cut into, and where they end."""
    if not parts:
        return (), top
    across = 1 if len(parts) <= FEW else _ACROSS
    wide = (WIDE - _LEFT - _RIGHT + 4) / across
    found = []
    for place, part in enumerate(parts):
        label = _cell_title(part, short=across > 1)
        if across == 1 and (more := holders(part) or _standing(part, notes)):
            label = f"{label} {more}"
        text = fitted(label, 8.5, wide - 11)
        found.append(
            Box(
                kind="cell",
                x=_LEFT - 4 + place % across * wide,
                y=top + place // across * _CELL,
                width=wide,
                height=_CELL,
                state=state(part),
                texts=(Text(8, 11, text, 8.5),) if text else (),
                title=detail(part),
                instance=part.id,
            )
        )
    rows = -(-len(parts) // across)
    return tuple(found), top + rows * _CELL + 4


def _cell_title(part: Instance, *, short: bool) -> str:
    if part.type == "nic":
        address = part.text("pci_address") or part.id
        tail = address.rpartition(":")[2]
        return tail if short else f"{tail} {part.text('netdev')}".strip()
    if part.type == "mps":
        return f"{part.text('mps_percent')}%"
    return part.text("mig_profile") or part.type


def detail(instance: Instance) -> str:
    """Say everything of an instance, a line for each."""
    lines = [instance.id, f"type: {instance.type}"]
    shown = state(instance)
    why = reason(instance)
    if shown != "free" or instance.held_by is not None:
        lines.append(f"state: {shown}" + (f": {why}" if why else ""))
    if instance.held_by:
        lines.append(f"held by: {holders_in_full(instance)}")
    lines += [f"{name}: {value}" for name, value in sorted(instance.attributes.items())]
    lines += [f"node: {node.path} {node.major}:{node.minor}" for node in instance.devices[:4]]
    return "\n".join(lines)
