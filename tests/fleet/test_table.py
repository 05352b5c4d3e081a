"""The table of a fleet: it fits a terminal, and a large fleet fits a screen."""

from __future__ import annotations

import re

import fleets
import pytest
from msgspec import structs
from rich.cells import cell_len

from xce_nodeagent.cli.fleet.grid import plain as text_of
from xce_nodeagent.cli.fleet.order import Wanted, chosen, ordered
from xce_nodeagent.cli.fleet.reason import age, detail, why
from xce_nodeagent.cli.fleet.table import ENDLESS, Page, table, written
from xce_nodeagent.cli.fleet.view import FleetView, Tally

NOW = fleets.TIME + 4000


def page(columns: int = ENDLESS, lines: int | None = None, **more: bool) -> Page:
    return Page(columns=columns, lines=lines, now=NOW, **more)


def plain(view: FleetView, page: Page) -> list[str]:
    return list(map(text_of, table(view, view.nodes, page)))


@pytest.mark.parametrize("columns", [60, 80, 132])
@pytest.mark.parametrize(("which", "lines"), [("small", 60), ("view", 24), ("large", 40)])
def test_rows_fit_the_terminal(which: str, request, columns: int, lines: int) -> None:
    found = plain(request.getfixturevalue(which), page(columns, lines))
    grids = [line for line in found if re.match(r"(r\d{3}-|NODE |NODES |BLOCK |\d+ {2,})", line)]
    rows = [line for line in grids if not re.match(r"\S+: ", line)]
    assert len(rows) > 3
    assert max(map(cell_len, rows)) <= columns


@pytest.mark.parametrize(("which", "lines"), [("view", 24), ("view", 60), ("large", 24)])
def test_a_fleet_that_is_larger_than_a_screen_fits_it(which: str, request, lines: int) -> None:
    found = plain(request.getfixturevalue(which), page(100, lines))
    assert len(found) < lines
    text = "\n".join(found)
    assert "8 NVIDIA H100" in text or "8 H100" in text
    assert "stale" in text
    assert "--all shows each" in text


def test_every_node_has_a_row_where_there_is_room_in_a_pipe_and_on_demand(
    small: FleetView, view: FleetView
) -> None:
    for shown, on in (
        (small, page(80, 40)),
        (view, page()),
        (view, page(80, 24, every=True)),
    ):
        lines = plain(shown, on)
        rows = [line for line in lines if re.match(r"r\d{3}-n\d{2} ", line)]
        assert len(rows) == len(shown.nodes)
    assert len({line.index("ok") for line in rows if " ok " in line}) == 1, "columns are columns"


def test_a_row_says_what_is_free_held_and_wrong(small: FleetView) -> None:
    lines = {line.split(" ")[0]: line for line in plain(small, page())}
    assert re.search(r"ok +b00 +5/8 +12/12 +2 +8 NVIDIA H100 80GB HBM3 +66 min ago",
                     lines["r000-n10"])  # fmt: skip
    assert re.search(r"unhealthy +b00 +7/8! ", lines["r000-n05"])
    assert "unhealthy: XID 79: off the bus" in lines["r000-n05:"]
    assert lines["16"] == "16 nodes: 16 available, 1 with unhealthy instances; 8 jobs"


def test_a_narrow_terminal_loses_what_matters_least_first(small: FleetView) -> None:
    def head(columns: int) -> list[str]:
        return next(line for line in plain(small, page(columns, 99)) if "NODE " in line).split()

    assert head(120) == ["NODE", "STATE", "BLOCK", "GPU", "NIC", "JOBS", "WHAT", "CHANGED"]
    assert head(60)[:4] == ["NODE", "STATE", "BLOCK", "GPU"]
    assert head(40) == ["NODE", "STATE", "GPU"] or head(40)[:2] == ["NODE", "STATE"]


def test_a_column_with_something_wrong_stays_longer_than_what_is_well(small: FleetView) -> None:
    def head(nics: int, columns: int) -> list[str]:
        """Give the header where so many NICs of the first node are unhealthy."""
        first, *rest = small.nodes
        tallies = [
            structs.replace(one, free=one.free - nics, unhealthy=nics) if one.type == "nic" else one
            for one in first.instances
        ]
        view = structs.replace(
            small, nodes=(structs.replace(first, instances=tuple(tallies)), *rest)
        )
        return next(line for line in plain(view, page(columns, 99)) if "NODE " in line).split()

    narrow = next(columns for columns in range(120, 20, -1) if "NIC" not in head(0, columns))
    assert "NIC" in head(1, narrow)
    assert "CHANGED" not in head(1, narrow)


def test_a_view_that_is_out_of_date_says_so_first(small: FleetView) -> None:
    late = structs.replace(small, outdated="http://a:2379: connection refused")
    assert plain(late, page())[0] == "OUT OF DATE: http://a:2379: connection refused"


def test_what_was_filtered_is_told_and_nothing_found_is_told(view: FleetView) -> None:
    few = chosen(view.nodes, Wanted(names=("r001-*",)))
    lines = list(map(text_of, table(view, few, page())))
    assert "shown: 16 of 200 nodes" in lines
    assert "no node" in list(map(text_of, table(view, (), page())))


def test_text_of_others_does_not_reach_a_terminal_as_orders(view: FleetView, fleet) -> None:
    assert not set(written(view, view.nodes, page())) & {"\x1b", "\x07"}


def test_reasons_are_few_unless_all_are_asked_for(large: FleetView) -> None:
    ordinary = plain(large, page())
    assert sum("XID 79" in line for line in ordinary) <= 8
    assert any("more: --wide tells of all" in line for line in ordinary)
    wide = plain(large, page(wide=True))
    assert sum("XID 79" in line for line in wide) == 250


def test_a_node_in_full_has_its_jobs_and_faults(view: FleetView) -> None:
    node = next(node for node in view.nodes if node.name == fleets.name(2))
    told = list(map(text_of, detail(structs.replace(node, faults=("something",)), NOW)))
    assert told[0] == f"{node.name}: ok"
    assert "  fault    something" in told
    for job in node.jobs:
        at = told.index(f"  job      {job.job}:{job.attempt}, bound")
        assert told[at + 1 : at + 1 + len(job.instances)] == [
            f"             {one}" for one in job.instances
        ]


@pytest.mark.parametrize(
    ("then", "told"),
    [(None, ""), (NOW, "0 s ago"), (NOW + 999, "0 s ago"), (NOW - 119, "119 s ago"),
     (NOW - 3000, "50 min ago"), (NOW - 10_000, "3 h ago"), (NOW - 1e6, "12 d ago")],
)  # fmt: skip
def test_ages(then: float | None, told: str) -> None:
    assert age(then, NOW) == told


def test_ten_thousand_rows_are_in_their_order(large: FleetView) -> None:
    rows = ordered(large.nodes, "name")
    text = written(large, rows, page())
    found = re.findall(r"^(r\d{3}-n\d{2}-\d{2}) ", text, re.MULTILINE)
    assert found == [node.name for node in rows]


def test_reasons_of_what_was_asked_for_are_all_told(large: FleetView) -> None:
    ill = chosen(large.nodes, Wanted(unhealthy=True))
    told = list(map(text_of, table(large, ill, page(80, 24, every=True))))
    assert sum("XID 79" in line for line in told) == len(ill) == 250


def test_kinds_that_have_no_room_are_counted(view: FleetView) -> None:
    many = tuple(
        structs.replace(node, instances=(Tally(type="gpu", model=f"M{at}", total=1, free=1),))
        for at, node in enumerate(view.nodes)
    )
    lines = list(map(text_of, table(view, many, page(80, 30))))
    (told,) = [line for line in lines if line.endswith(" kinds more")]
    assert len(lines) <= 30
    assert int(told.split()[1]) + sum(line.startswith("1 ") for line in lines) == 200


def test_how_long_a_node_is_gone_is_told_where_it_is_known(view: FleetView) -> None:
    node = next(node for node in view.nodes if node.state == "stale")
    gone = structs.replace(node, since=NOW - 90, reported=NOW - 300)
    assert why(gone, NOW) == "no sign of life for 90 s; changed 5 min ago"
    assert why(structs.replace(gone, since=None), NOW) == "no sign of life; changed 5 min ago"


@pytest.mark.parametrize("columns", [40, 60, 80, 132])
@pytest.mark.parametrize("letter", ["x", "機"])
def test_a_long_name_is_cut_in_its_middle_and_whole_where_there_is_room(
    small: FleetView, columns: int, letter: str
) -> None:
    name = f"rack7-{letter * 200}-node12"
    first, *others = small.nodes
    view = structs.replace(small, nodes=(structs.replace(first, name=name), *others))
    lines = plain(view, page(columns, 40))
    (row,) = [line for line in lines if line.startswith("rack7-")]
    assert cell_len(row) <= columns
    assert re.match(r"rack7-\S*…\S*node12 +ok ", row)
    assert max(cell_len(line) for line in lines if " ok " in line) <= columns
    assert any(line.startswith(f"{name} ") for line in plain(view, page()))
    assert text_of(detail(view.nodes[0], NOW)[0]).startswith(f"{name}: ")
