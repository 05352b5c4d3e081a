"""`inventory --matrix`: what it shows, and that it fits."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
from msgspec import to_builtins

from xce_nodeagent.cli import matrix
from xce_nodeagent.discovery import scan
from xce_nodeagent.host import Host
from xce_nodeagent.providers import all_providers

WIDE = 1 << 20


@cache
def machine(profile: str) -> dict[str, Any]:
    host = Host("/nonexistent", simulate=profile, port_range=(20000, 20999))
    found: dict[str, Any] = to_builtins(scan(host, all_providers(("simulated", "ports"))))
    return found


def show(profile: str, room: int = WIDE) -> str:
    found = machine(profile)
    return matrix.matrix(found, matrix.chart(found), room)


def cells(block: str) -> dict[tuple[str, str], str]:
    header, *rows = (line.split() for line in block.splitlines())
    return {
        (row[0], title): word for row in rows for title, word in zip(header, row[1:], strict=True)
    }


def test_it_says_what_nvidia_smi_says_of_a_dgx() -> None:
    block, known, meaning = show("dgx-h100").split("\n\n")
    found = cells(block)
    assert found["GPU0", "GPU0"] == "X"
    assert found["GPU0", "GPU7"] == "NV18"
    assert found["GPU3", "NIC5"] == found["NIC5", "GPU3"] == "PIX"
    assert found["GPU0", "NIC1"] == "NODE"
    assert found["GPU0", "NIC11"] == "SYS"
    assert (found["GPU4", "CPUS"], found["GPU4", "NUMA"]) == ("56-111,168-223", "1")
    assert re.search(
        r"^NIC5 +ff00:5e:00.0 +sim_mlx5_5, simib3, ConnectX-7, rail 3$", known, re.MULTILINE
    )
    assert re.search(r"^GPU3 +GPU-\S+ +NVIDIA H100 80GB HBM3, rail 3$", known, re.MULTILINE)
    assert "NV#   by a bonded set of # NVLinks" in meaning
    assert "XGMI" not in meaning
    assert "PXB" not in meaning


@pytest.mark.parametrize("room", [200, 80, 40])
@pytest.mark.parametrize("profile", ["dgx-h100", "gb200", "mi300x"])
def test_parts_that_fit_say_the_same_as_one_that_does_not(profile: str, room: int) -> None:
    whole, *_ = show(profile).split("\n\n")
    *parts, known, _ = show(profile, room).split("\n\n")
    assert max(len(line.rstrip()) for part in parts for line in part.splitlines()) <= room
    joined: dict[tuple[str, str], str] = {}
    for part in parts:
        joined |= cells(part)
    assert joined == cells(whole)
    ids = matrix.chart(machine(profile))["instances"]
    assert [line.split()[1] for line in known.splitlines() if line[0] != " "] == ids


def test_a_list_of_every_second_cpu_is_cut_off_in_a_terminal_alone() -> None:
    found = machine("gb200")
    even = ",".join(map(str, range(0, 128, 2)))
    odd = {
        **found,
        "instances": [
            {**one, "attributes": {**one["attributes"], "local_cpus": even}}
            for one in found["instances"]
        ],
    }
    assert even in matrix.matrix(odd, matrix.chart(odd), WIDE)
    narrow = matrix.matrix(odd, matrix.chart(odd), 80)
    assert " 0,2,4,6,8,10,12,14,16,18,… " in narrow
    assert max(map(len, narrow.splitlines())) <= 80


def test_slices_and_ports_have_no_line() -> None:
    found = machine("dgx-a100-mig")
    types = {one["id"]: one["type"] for one in found["instances"]}
    chart = matrix.chart(found)
    assert {"mig", "ports"} < set(types.values())
    assert {types[one] for one in chart["instances"]} == {"gpu", "nic"}
    size = len(chart["instances"])
    assert [len(row) for row in chart["distance"]] == [size] * size
    assert [row[at] for at, row in enumerate(chart["distance"])] == ["X"] * size


def test_cards_of_amd_are_linked_by_xgmi() -> None:
    chart = matrix.chart(machine("mi300x"))
    assert chart["distance"][0][:9] == ["X", *["XGMI"] * 7, "PIX"]


def test_a_host_that_has_neither_says_so() -> None:
    bare = {"node": "n", "instances": [], "topology": {}}
    assert matrix.matrix(bare, matrix.chart(bare), WIDE) == "n has no card and no NIC\n"
