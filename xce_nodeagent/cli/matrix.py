"""The distance of each card and NIC from each other, as `nvidia-smi topo -m` lays it out.

What a card is cut into, and virtual functions, are where their card is, and have no line. A
terminal that is too narrow for all columns gets them in parts, one below the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import convert
from rich.text import Text

from xce_nodeagent.cli.table import GAP, Row, in_columns, rendered, whole
from xce_nodeagent.model.distance import Layout
from xce_nodeagent.model.instance import Instance

_LEGEND = (
    ("X", "itself"),
    ("SYS", "across NUMA nodes"),
    ("NODE", "across PCIe host bridges of one NUMA node"),
    ("PHB", "across a PCIe host bridge"),
    ("PXB", "across several PCIe bridges, but no host bridge"),
    ("PIX", "across at most one PCIe bridge"),
    ("NV#", "by a bonded set of # NVLinks"),
    ("XGMI#", "by # XGMI links"),
)
_AFFINITY = ("CPUS", "NUMA")


def chart(inventory: dict[str, Any]) -> dict[str, Any]:
    """Give the matrix for programs: `instances`, their ids in order, and `distance`, its rows."""
    every = {one["id"]: convert(one, Instance) for one in inventory["instances"]}
    layout = Layout(inventory["topology"], every)
    ids = [one.id for one in sorted(_shown(every), key=lambda one: one.type == "nic")]
    return {
        "instances": ids,
        "distance": [[layout.between(one, other) for other in ids] for one in ids],
    }


def matrix(inventory: dict[str, Any], chart: dict[str, Any], room: int) -> str:
    """Show the matrix, what its names stand for, and what its words mean, in so many columns."""
    instances = {one["id"]: one for one in inventory["instances"]}
    shown = [instances[one] for one in chart["instances"]]
    if not shown:
        return f"{inventory['node']} has no card and no NIC\n"
    names = _names(shown)
    heads = [Text(name, style="bold") for name in names]
    cells = [
        [*(Text(word, style=_style(word)) for word in words), *_affinity(one, max(20, room // 3))]
        for one, words in zip(shown, chart["distance"], strict=True)
    ]
    parts = [
        whole(in_columns(header, rows))
        for header, rows in _parts([*names, *_AFFINITY], heads, cells, room)
    ]
    ids = [[head, Text(one["id"])] for head, one in zip(heads, shown, strict=True)]
    about = _about(inventory, shown)
    cards = len([one for one in shown if one["type"] != "nic"])
    known = [
        whole(_known(ids[part], about[part], room))
        for part in (slice(cards), slice(cards, None))
        if ids[part]
    ]
    said = {word.rstrip("0123456789") for words in chart["distance"] for word in words}
    meaning = [Text(f"{word:6}{text}") for word, text in _LEGEND if word.rstrip("#") in said]
    return "\n".join([*parts, "".join(known), rendered(*meaning)])


def _shown(instances: dict[str, Instance]) -> Iterator[Instance]:
    for one in instances.values():
        part = one.parent in instances or "physical_function" in one.attributes
        if not part and ("pci_address" in one.attributes or one.type in ("gpu", "nic")):
            yield one


def _names(instances: Sequence[dict[str, Any]]) -> list[str]:
    """Number each type: GPU0, NIC0, ...; GPUs by their index, where no two have one."""
    counts: dict[str, int] = {}
    indexes = [one["attributes"].get("index") for one in instances if one["type"] == "gpu"]
    unique = None not in indexes and len(set(indexes)) == len(indexes)
    names = []
    for one in instances:
        kind = one["type"]
        number = counts[kind] = counts.get(kind, -1) + 1
        if kind == "gpu" and unique:
            number = one["attributes"]["index"]
        names.append(f"{kind.upper()}{number}")
    return names


def _affinity(one: dict[str, Any], room: int) -> list[Text]:
    """Give CPUs and NUMA node; a list of every second CPU is too long for any terminal."""
    facts = one["attributes"]
    cpus = str(facts.get("local_cpus", "N/A"))
    if len(cpus) > room:
        cpus = f"{cpus[: room - 1].rpartition(',')[0]},…"
    return [Text(cpus), Text(str(facts.get("numa_node", "N/A")))]


def _about(inventory: dict[str, Any], shown: Sequence[dict[str, Any]]) -> list[str]:
    rails = inventory["topology"].get("rails", {}).get("gpus", {})
    found = []
    for one in shown:
        facts = one["attributes"]
        rail = facts.get("rail", rails.get(one["id"]))
        words = [facts.get("rdma_device"), facts.get("netdev"), facts.get("model")]
        words.append(None if rail is None else f"rail {rail}")
        found.append(", ".join(str(word) for word in words if word))
    return found


def _known(ids: Sequence[Row], about: Sequence[str], room: int) -> Text:
    """Say what each is: all of it, else without the vendor's name, else below each."""
    short = [what.removeprefix("NVIDIA ") for what in about]
    for told in (about, short):
        rows = [[*row, Text(what)] for row, what in zip(ids, told, strict=True)]
        grid = in_columns(["", "ID", "WHAT"], rows)
        if max(line.cell_len for line in grid.split()) <= room + len(GAP):
            return grid
    return in_columns(["", "ID"], ids, [[Text(what)] if what else [] for what in about])


def _style(word: str) -> str:
    if word == "X":
        return "dim"
    return "green" if word.startswith(("NV", "XGMI", "P")) else ""


def _parts(
    titles: Sequence[str], heads: Sequence[Text], rows: Sequence[Row], room: int
) -> Iterator[tuple[Sequence[str], list[Row]]]:
    """Cut the columns into as many parts as the room needs; each has the names in front.

    The affinities stay together.
    """
    widths = [
        max(len(title), *(cell.cell_len for cell in column))
        for title, column in zip(titles, zip(*rows, strict=True), strict=True)
    ]
    first = max(head.cell_len for head in heads)
    last = len(widths) - len(_AFFINITY)
    start, used = 0, first
    for at, end in [*((at, at + 1) for at in range(last)), (last, len(widths))]:
        width = sum(widths[at:end]) + len(GAP) * (end - at)
        if used + width > room and at > start:
            yield _part(titles, heads, rows, slice(start, at))
            start, used = at, first
        used += width
    yield _part(titles, heads, rows, slice(start, len(widths)))


def _part(
    titles: Sequence[str], heads: Sequence[Text], rows: Sequence[Row], columns: slice
) -> tuple[Sequence[str], list[Row]]:
    cells: list[Row] = [[head, *row[columns]] for head, row in zip(heads, rows, strict=True)]
    return ["", *titles[columns]], cells
