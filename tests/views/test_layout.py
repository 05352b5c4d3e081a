"""A layout, whatever the machine: nothing overlaps, all is inside, every word fits."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xce_nodeagent.cli.picture.layout import layout
from xce_nodeagent.cli.picture.measure import fitted, width, wrapped
from xce_nodeagent.cli.picture.shape import Box, Picture, Text
from xce_nodeagent.host import Host

HOSTILE = (
    "<script>alert(1)</script>", "]]>", "\x1b[31m", "\u202eabc", "\u6f22\u5b57" * 20, "a" * 300,
    "&amp;", "' onload='x", '"><b>', "\ud800", "", "\0",
)  # fmt: skip
PROFILES = ("cpu-only", "dgx-a100-mig", "dgx-h100", "gb200", "mi300x")

Frame = tuple[float, float, float, float]  # left, top, right, bottom


def frame(box: Box) -> Frame:
    return box.x, box.y, box.x + box.width, box.y + box.height


def of_text(text: Text, x: float = 0, y: float = 0) -> Frame:
    wide = width(text.text, text.size, bold=text.bold)
    left = x + text.x - (wide if text.end else 0)
    return left, y + text.y - text.size * 0.8, left + wide, y + text.y + text.size * 0.22


def meet(one: Frame, other: Frame) -> bool:
    return (
        one[0] < other[2] - 0.01
        and other[0] < one[2] - 0.01
        and one[1] < other[3] - 0.01
        and other[1] < one[3] - 0.01
    )


def inside(one: Frame, outer: Frame) -> bool:
    return (
        one[0] >= outer[0] - 0.01
        and one[1] >= outer[1] - 0.01
        and one[2] <= outer[2] + 0.01
        and one[3] <= outer[3] + 0.01
    )


def check(picture: Picture, instances: list[dict[str, Any]]) -> None:
    canvas = (0.0, 0.0, picture.width, picture.height)
    frames = [(frame(box), box) for box in picture.boxes]
    for here, box in frames:
        assert inside(here, canvas), box
        within(box)
    clashes = [(one, other) for (a, one), (b, other) in combinations(frames, 2) if meet(a, b)]
    assert clashes == []
    words = [(of_text(text), text.text) for text in picture.texts]
    for here, text in words:
        assert inside(here, canvas), text
        assert not any(meet(here, there) for there, _ in frames), text
    assert [(a, b) for (x, a), (y, b) in combinations(words, 2) if meet(x, y)] == []
    for wire in picture.wires:
        for (ax, ay), (bx, by) in pairwise(wire.points):
            assert ax == bx or ay == by, "lines run along or down"
            line = (min(ax, bx), min(ay, by), max(ax, bx) + 0.02, max(ay, by) + 0.02)
            assert inside(line, (0, 0, picture.width + 0.1, picture.height + 0.1)), wire
            assert not any(meet(line, shrunk(there)) for there, _ in frames), wire
            assert not any(meet(line, there) for there, _ in words), wire
    ends = {point for wire in picture.wires for point in wire.points}
    for box in picture.boxes:
        if box.instance:
            at_left = [y for x, y in ends if x == box.x and box.y < y < box.y + box.height]
            assert at_left, f"nothing leads to {box.instance}"
    drawn = Counter(box.instance for box in picture.boxes if box.instance)
    drawn.update(cell.instance for box in picture.boxes for cell in box.cells)
    assert drawn == Counter(one["id"] for one in instances)


def shrunk(one: Frame) -> Frame:
    """Give the inside of a box: a line may end at its edge."""
    return one[0] + 0.5, one[1] + 0.5, one[2] - 0.5, one[3] - 0.5


def within(box: Box) -> None:
    """Check what is in a box: texts beside each other and beside the cells, and all in it."""
    own = (0.0, 0.0, box.width, box.height)
    texts = [of_text(text) for text in box.texts]
    cells = [frame(cell) for cell in box.cells]
    for here in (*texts, *cells):
        assert inside(here, own), box
    for one, other in combinations((*texts, *cells), 2):
        assert not meet(one, other), box
    for cell in box.cells:
        within(cell)


# ---- machines that nobody built ------------------------------------------------------------------


@st.composite
def machines(draw) -> dict[str, Any]:
    nodes = draw(st.integers(0, 6))
    packages = draw(st.integers(1, 3))
    names = draw(st.lists(st.sampled_from(HOSTILE) | st.text(max_size=12), min_size=1, max_size=3))
    count = draw(st.integers(0, 14))
    instances: list[dict[str, Any]] = []
    for number in range(count):
        kind = draw(st.sampled_from(["gpu", "gpu", "nic", "nic", "licence"]))
        attributes: dict[str, Any] = {"index": number, "model": draw(st.sampled_from(names))}
        if kind != "licence":
            root = draw(st.integers(0, 3))
            attributes["pcie_root"] = f"pci0000:{root:02x}"
            attributes["pci_address"] = f"0000:{number + 16:02x}:00.0"
            if draw(st.booleans()):
                attributes["pcie_switch"] = f"0000:{root:02x}:0{draw(st.integers(0, 1))}.0"
        numa = draw(st.integers(-1, nodes))
        if numa >= 0:
            attributes["numa_node"] = numa
        if kind == "nic" and draw(st.booleans()):
            attributes.update(rail=number, netdev=draw(st.sampled_from(names)), speed_mbps=400000)
        if kind == "gpu" and draw(st.booleans()):
            attributes["nvlink_domain"] = draw(st.sampled_from(["a", "b"]))
        instances.append(instance(draw, f"{kind}-{number}", kind, attributes, names=names))
        for part in range(draw(st.sampled_from([0, 0, 0, 1, 7, 9, 64]))):
            name, parent = f"{kind}-{number}/{part}", f"{kind}-{number}"
            instances.append(instance(draw, name, "mig", {}, parent=parent, names=names))
    cards = [one["id"] for one in instances if one["type"] == "gpu"]
    links = []
    for one, other in draw(
        st.lists(st.tuples(*[st.integers(0, 13)] * 2), max_size=12, unique=True)
    ):
        if cards and one < len(cards):
            far = cards[other] if other < len(cards) else f"0000:c{other % 3}:00.0"
            if far != cards[one]:
                kind = draw(st.sampled_from(["nvlink", "xgmi"]))
                count = draw(st.integers(1, 18))
                links.append({"kind": kind, "one": cards[one], "other": far, "count": count})
    topology: dict[str, Any] = {
        "packages": [{"id": one, "cpus": f"{one}"} for one in range(packages)],
        "numa_nodes": [
            {"id": one, "cpus": ",".join(["0-9"] * (1 + 9 * one)), "package": one % packages}
            for one in range(nodes)
        ],
        "memory_nodes": draw(st.sampled_from([[], [7, 8]])),
        "links": links,
    }
    return {
        "source": "agent", "node": draw(st.sampled_from(names)), "boot_id": "b",
        "generation": "b:1", "topology": topology, "instances": instances,
        "attributes": {"cpu_model": draw(st.sampled_from(names)), "cpus": 8},
        "problems": [{"provider": "p", "state": "error", "reason": draw(st.sampled_from(names))}],
    }  # fmt: skip


def instance(draw, name, kind, attributes, *, parent=None, names=HOSTILE) -> dict[str, Any]:
    healthy = draw(st.sampled_from([True, True, False]))
    return {
        "id": name, "type": kind, "provider": "p", "parent": parent, "healthy": healthy,
        "reason": "" if healthy else draw(st.sampled_from(names)),
        "drained": draw(st.sampled_from([False, False, True])),
        "reserved": draw(st.sampled_from(["", "", *names])), "attributes": attributes,
        "held_by": draw(st.sampled_from([None, [], [{"job": names[0], "attempt": names[-1]}]])),
    }  # fmt: skip


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(machines())
def test_any_machine(machine: dict[str, Any]) -> None:
    check(layout(machine), machine["instances"])


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile(simulated, profile: str) -> None:
    machine = simulated(profile)
    check(layout(machine), machine["instances"])


@pytest.mark.needs("recorded")
def test_a_recorded_machine(look, recorded_root: Path) -> None:
    machine = look(Host(recorded_root))
    check(layout(machine), machine["instances"])


def test_this_machine(look) -> None:
    machine = look(Host("/"))
    check(layout(machine), machine["instances"])


# ---- what is drawn, and where --------------------------------------------------------------------


def boxes_of(picture: Picture, kind: str) -> list[Box]:
    return [box for box in picture.boxes if box.kind == kind]


def test_two_sockets_face_each_other(simulated) -> None:
    picture = layout(simulated("dgx-h100"))
    first, second = sorted(boxes_of(picture, "numa"), key=lambda box: box.y)
    (hub,) = boxes_of(picture, "hub")
    for box in boxes_of(picture, "gpu"):
        nearer = first if "numa_node: 0" in box.title else second
        assert abs(box.y - nearer.y) < abs(first.y - second.y) / 2
    assert first.y < hub.y < second.y
    lines = {box.instance for box in boxes_of(picture, "gpu") for wire in picture.wires
             if wire.kind == "nvlink" for x, y in wire.points
             if box.x < x < box.x + box.width and y in (box.y, box.y + box.height)}  # fmt: skip
    assert len(lines) == 8
    assert len(picture.dots) == 8


def test_a_card_is_below_the_switch_of_its_nic(simulated) -> None:
    picture = layout(simulated("dgx-h100"))
    switches = boxes_of(picture, "switch")
    assert len(switches) == 8
    middle = picture.height / 2
    for switch in switches:
        right = switch.x + switch.width
        here = [box.kind for box in picture.boxes if box.instance
                and switch.x <= box.x and box.x + box.width <= right
                and (box.y < middle) == (switch.y < middle)]  # fmt: skip
        assert sorted(here) == ["gpu", "nic"]


def test_slices_are_in_their_card(simulated) -> None:
    machine = simulated("dgx-a100-mig")
    picture = layout(machine)
    cells = {cell.instance: box.instance for box in picture.boxes for cell in box.cells}
    slices = {one["id"]: one["parent"] for one in machine["instances"] if one["type"] == "mig"}
    assert slices
    assert cells == slices


def test_it_is_narrow_enough_for_a_sheet_of_paper(simulated) -> None:
    """On A4 across (277 mm between its margins) words of 9.5 units are 6 points high or more."""
    for profile in PROFILES:
        picture = layout(simulated(profile))
        assert 277 / picture.width * 9.5 / 25.4 * 72 >= 5.5, profile


def linked(simulated, pairs: dict[tuple[int, int], int], other: str = "") -> Picture:
    machine = simulated("dgx-h100")
    ids = [one["id"] for one in machine["instances"] if one["type"] == "gpu"]
    links = [
        {"kind": "nvlink", "one": min(ids[a], ids[b]), "other": max(ids[a], ids[b]), "count": n}
        for (a, b), n in pairs.items()
    ]
    if other:
        links = [{"kind": "nvlink", "one": one, "other": other, "count": 18} for one in ids]
    return layout({**machine, "topology": {**machine["topology"], "links": links}})


def test_a_switch_and_a_full_mesh_are_a_bus(simulated) -> None:
    (hub,) = boxes_of(linked(simulated, {}, "0000:c4:00.0"), "hub")
    assert [text.text for text in hub.texts] == ["NVSwitch", "18 links a card"]
    picture = linked(simulated, dict.fromkeys(combinations(range(8), 2), 4))
    (hub,) = boxes_of(picture, "hub")
    assert [text.text for text in hub.texts] == ["NVLink", "each with each, 4 links"]


def test_a_cube_mesh_is_drawn_pair_by_pair(simulated) -> None:
    """As on a DGX-1: some pairs have two links, some one, some none."""
    pairs = {(0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
             (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1,
             (6, 7): 2}  # fmt: skip
    picture = linked(simulated, pairs)
    told = sorted(text.text for box in boxes_of(picture, "hub") for text in box.texts)
    assert told == ["1 link a pair", "2 links a pair", "NVLink", "NVLink"]
    across = [wire for wire in picture.wires if wire.kind == "nvlink" and wire.title]
    assert Counter(wire.weight for wire in across) == {1: 8, 2: 8}


def test_reasons_are_numbered_once(simulated) -> None:
    machine = simulated("dgx-h100")
    for one in machine["instances"][:3]:
        one.update(healthy=False, reason="XID 79: it has fallen off the bus")
    machine["instances"][3].update(drained=True, reason="ticket 4711")
    picture = layout(machine)
    told = [text.text for text in picture.texts]
    assert "(1) GPU 0-2: unhealthy: XID 79: it has fallen off the bus" in told
    assert "(2) GPU 3: drained: ticket 4711" in told
    shown = [text.text for box in boxes_of(picture, "gpu") for text in box.texts]
    assert shown.count("unhealthy (1)") == 3
    assert shown.count("drained (2)") == 1


def test_nodes_without_cpus_are_told_in_ranges(simulated) -> None:
    """Grace has 32 of them."""
    machine = simulated("gb200")
    machine["topology"]["memory_nodes"] = list(range(2, 34))
    told = [text.text for text in layout(machine).texts]
    assert "NUMA nodes without CPUs, for memory: 2-33" in told


# ---- words ---------------------------------------------------------------------------------------


@given(st.text(max_size=60), st.floats(6, 20), st.floats(0, 200), st.booleans())
def test_a_fitted_text_fits(text: str, size: float, room: float, bold: bool) -> None:
    short = fitted(text, size, room, bold=bold)
    assert width(short, size, bold=bold) <= room or short == ""
    assert short == text or "…" in short or short == ""


@given(st.text(alphabet="ab <漢", max_size=80), st.floats(20, 200))
def test_wrapped_lines_fit_and_lose_no_short_word(text: str, room: float) -> None:
    lines = wrapped(text, 10, room)
    assert all(width(line, 10) <= room for line in lines)
    if all(width(word, 10) <= room for word in text.split()):
        assert " ".join(lines).split() == text.split()
