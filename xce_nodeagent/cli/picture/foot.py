"""Above and below a picture: whose it is, what its signs mean, and why things are as they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from xce_nodeagent.cli.picture.caption import FEW, Notes, holders, reason, state, title
from xce_nodeagent.cli.picture.measure import fitted, width, wrapped
from xce_nodeagent.cli.picture.shape import Box, State, Text, Wire
from xce_nodeagent.model.environment import ranges
from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.inventory import Inventory

_MEANING: Mapping[State, str] = {
    "free": "free",
    "held": "held by a job",
    "reserved": "reserved for the host",
    "drained": "drained",
    "unhealthy": "unhealthy",
}
_LINKS = {"pcie": "PCIe", "nvlink": "NVLink", "xgmi": "XGMI", "socket": "between sockets"}
_NAMED = 6
"""So many instances of one reason are named; more are counted."""


class Part(Struct):
    """Texts and boxes one below the other, and how high they are."""

    texts: list[Text]
    boxes: list[Box]
    wires: list[Wire]
    height: float


def numbered(instances: Sequence[Instance]) -> Notes:
    """Number the reasons, each once however many instances have it, in the order of these."""
    notes: Notes = {}
    for one in instances:
        if why := reason(one):
            notes.setdefault((state(one), why), len(notes) + 1)
    return notes


def head(inventory: Inventory, x: float, room: float) -> Part:
    """Say which node this is, and what it is."""
    facts = inventory.attributes
    memory = facts.get("memory_bytes")
    model, cpus = facts.get("cpu_model"), facts.get("cpus")
    kernel = facts.get("kernel")
    about = [
        str(model) if model else "",
        f"{cpus} CPUs" if cpus else "",
        f"{memory / 2**30:.0f} GiB memory" if isinstance(memory, int) else "",
        str(facts.get("operating_system") or ""),
        f"Linux {kernel}" if kernel else "",
    ]
    source = "the agent" if inventory.source == "agent" else "a look without the agent"
    seen = f"as seen by {source}, generation {inventory.generation}"
    part = Part([], [], [], 34)
    name = fitted(inventory.node, 20, room, bold=True)
    part.texts.append(Text(x, 32, name, 20, bold=True))
    for line in [*wrapped(" · ".join(filter(None, about)), 10.5, room), *wrapped(seen, 9.5, room)]:
        part.height += 15
        part.texts.append(Text(x, part.height, line, 10.5, faint=True))
    part.height += 14
    return part


def foot(inventory: Inventory, notes: Notes, kinds: Sequence[str], x: float, room: float) -> Part:
    """Say what the signs mean that are there, and the reasons by their numbers."""
    part = Part([], [], [], 8)
    shown = {state(one) for one in inventory.instances if state(one) != "free" or _asked(one)}
    signs = [
        *(Sign(meaning, sign=sign) for sign, meaning in _MEANING.items() if sign in shown),
        *(Sign(meaning, kind=kind) for kind, meaning in _LINKS.items() if kind in kinds),
    ]
    _legend(part, signs, x, room)
    who: dict[tuple[str, str], list[Instance]] = {}
    for one in inventory.instances:
        if why := reason(one):
            who.setdefault((state(one), why), []).append(one)
    told = [
        f"({number}) {_names(who[sign, why])}: {sign}: {why}"
        for (sign, why), number in notes.items()
    ]
    told += _held_parts(inventory.instances)
    told += [f"{one.provider}: {one.state.replace('_', ' ')}: {one.reason}"
             for one in inventory.problems if one.reason and one.state != "none"]  # fmt: skip
    if inventory.instances and all(one.held_by is None for one in inventory.instances):
        told.append("Who holds what is not shown: only the agent knows.")
    if memory := inventory.topology.get("memory_nodes"):
        # On Grace there are 32 of them, most for parts of cards that nobody has made.
        told.append(f"NUMA nodes without CPUs, for memory: {ranges(memory)}")
    for text in told:
        for line in wrapped(text, 10, room):
            part.texts.append(Text(x, part.height, line))
            part.height += 14
        part.height += 3
    return part


def _asked(instance: Instance) -> bool:
    return instance.held_by is not None


def _names(instances: Sequence[Instance]) -> str:
    """Name instances: cards by the range of their indexes, of many others the first."""
    indexed = [one for one in instances if one.type == "gpu" and one.number("index") >= 0]
    cards = ranges(sorted(one.number("index") for one in indexed))
    named = [f"GPU {cards}"] if cards else []
    others = [
        one.text("pci_address") if one.type == "gpu" else title(one)
        for one in instances
        if one not in indexed
    ]
    named += others[:_NAMED]
    return ", ".join(named) + (f" and {len(others) - _NAMED} more" if others[_NAMED:] else "")


def _held_parts(instances: Sequence[Instance]) -> Iterator[str]:
    """Say who has parts of what has so many that their cells have no room for it."""
    known = {one.id: one for one in instances}
    parts = Counter(one.parent for one in instances)
    held = Counter(
        (one.parent, holders(one))
        for one in instances
        if one.held_by and one.parent in known and parts[one.parent] > FEW
    )
    for (parent, who), count in sorted(held.items()):
        yield f"{title(known[parent])}: {count} of its {parts[parent]} parts are held by {who}"


class Sign(Struct):
    """A sign of the legend: of a state, or of a kind of line."""

    meaning: str
    sign: State = ""
    kind: str = ""


def _legend(part: Part, signs: Sequence[Sign], x: float, room: float) -> None:
    """Put the signs with their meanings one after the other, on a new line where it is full."""
    at, y = x, part.height
    for one in signs:
        wide = 48 + width(one.meaning, 10)
        if at > x and at + wide > x + room:
            at, y = x, y + 20
        if one.sign:
            part.boxes.append(Box(kind="swatch", x=at, y=y, width=22, height=14, state=one.sign))
        else:
            bus = one.kind in ("nvlink", "xgmi")
            part.wires.append(Wire(one.kind, ((at, y + 7), (at + 22, y + 7)), bus=bus))
        part.texts.append(Text(at + 28, y + 11, one.meaning))
        at += wide
    part.height = y + 30


def described(inventory: Inventory) -> str:
    """Say in a sentence what the picture shows, for who cannot see it."""
    counts = Counter(one.type for one in inventory.instances)
    states = Counter(state(one) for one in inventory.instances)
    told: list[Any] = [f"{count} {kind}" for kind, count in counts.items()]
    told += [f"{states[one]} {one}" for one in _MEANING if one != "free"
             if states[one]]  # fmt: skip
    return f"{inventory.node}: " + (", ".join(told) or "no instances")
