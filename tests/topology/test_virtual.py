"""Switches that a cloud hides: as its file for NCCL tells them, where sysfs has none."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from topology.trees import card, function, machine

from xce_nodeagent.discovery import scan
from xce_nodeagent.host import Host
from xce_nodeagent.host import virtual as file
from xce_nodeagent.model import rail
from xce_nodeagent.model.config import RailsConfig
from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.model.virtual import (
    DEPTH_LIMIT,
    FUNCTIONS_LIMIT,
    SIZE_LIMIT,
    Hidden,
    Virtual,
    applied,
    parse,
)
from xce_nodeagent.providers import all_providers

SHARED = Path(__file__).parents[3] / "shared/machines"

TEXT = """<system version="1">
  <cpu numaid="0" host_hash="0x1">
    <pci busid="FFFF:ff:01.0" class="0x060400">
      <pci busid="0001:00:00.0" class="0x030200"/>
      <pci busid="0101:00:00.0" class="0x020700"/>
    </pci>
  </cpu>
  <cpu numaid="1" host_hash="0x1">
    <pci busid="ffff:ff:02.0"><pci busid="ffff:ff:03.0"><pci busid="0002:00:00.0"/></pci>
      <pci busid="0102:00:00.0"/></pci>
    <pci busid="0003:00:00.0"/>
  </cpu>
  <cpu numaid="0" host_hash="0x2"><pci busid="0009:00:00.0"/></cpu>
</system>"""
TOLD = {
    "0001:00:00.0": Hidden(("ffff:ff:01.0",), 0),
    "0101:00:00.0": Hidden(("ffff:ff:01.0",), 0),
    "0002:00:00.0": Hidden(("ffff:ff:02.0", "ffff:ff:03.0"), 1),
    "0102:00:00.0": Hidden(("ffff:ff:02.0",), 1),
    "0003:00:00.0": Hidden((), 1),
}


def guest(*addresses: str, nodes: Sequence[int] = (0, 1), **above: Any) -> Inventory:
    """Give what a guest sees: each at a host bridge of its own, on no NUMA node."""
    pci = {one: function(f"pci{one[:7]}") for one in addresses} | above
    cards = [
        card(one, "nic" if one.startswith("01") else "gpu", netdev=f"n{one[:4]}", vendor="v",
             **({"rdma_device": f"r{one[:4]}"} if one.startswith("01") else {}))
        for one in pci
    ]  # fmt: skip
    return machine(cards, pci, nodes=nodes, bridges={})


def shown(inventory: Inventory, told: Virtual) -> Inventory:
    instances, topology = applied(inventory.instances, inventory.topology, told)
    return Inventory(source="local", node="n", boot_id="b", instances=instances, topology=topology)


def test_a_file_is_read_as_nccl_reads_it() -> None:
    assert parse(TEXT.encode()) == TOLD


BOMB = (
    '<!DOCTYPE s [<!ENTITY a "aaaaaaaa">'
    + "".join(
        f'<!ENTITY a{n} "{f"&a{n - 1 or chr(0)};".replace(chr(0), "") * 9}">' for n in range(1, 20)
    )
    + "]><system>&a19;</system>"
)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no XML"),
        ("<system>", "no XML"),
        ("\xff\x00", "no XML"),
        ("<graphs/>", "begins with <graphs>"),
        (BOMB, "document type"),
        ("<system>" + "<pci>" * DEPTH_LIMIT, "too deep"),
        ("<system>" + "".join(f'<pci busid="0001:{n >> 5 & 255:02x}:{n & 31:02x}.{n >> 13}"/>'
                              for n in range(FUNCTIONS_LIMIT + 1)), "more than"),
    ],
    ids=["empty", "half", "rubbish", "another", "bomb", "deep", "many"],
)  # fmt: skip
def test_what_is_no_topology_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse(text.encode("latin-1"))


def test_what_names_no_function_is_left_out() -> None:
    text = (
        '<system><cpu numaid="x"><pci/><pci busid="../.."><pci busid="0001:00:00.0"/></pci></cpu>'
    )
    assert parse(f"{text}</system>".encode()) == {}


def test_what_is_hidden_is_there_and_near_to_what_is_below_it() -> None:
    seen = shown(guest(*TOLD), Virtual("/x.xml", TOLD))
    assert seen.topology["virtual"] == "/x.xml"
    by_id, layout = seen.by_id(), seen.layout
    assert by_id["0002:00:00.0"].attributes["pcie_switch"] == "ffff:ff:03.0"
    assert by_id["0002:00:00.0"].attributes["numa_node"] == 1
    assert "pcie_switch" not in by_id["0003:00:00.0"].attributes
    assert layout.between_on_pci("0001:00:00.0", "0101:00:00.0") == "PIX"
    assert layout.between_on_pci("0002:00:00.0", "0102:00:00.0") == "PXB"
    assert layout.between_on_pci("0002:00:00.0", "0003:00:00.0") == "NODE"
    assert layout.between_on_pci("0001:00:00.0", "0102:00:00.0") == "SYS"
    assert layout.site("0002:00:00.0").switches == ("ffff:ff:02.0", "ffff:ff:03.0")


def test_what_sysfs_shows_goes_before_the_file() -> None:
    real = function("pci0001:00", "port", "0000:01:00.0", "down", numa=1)
    before = guest(**{"0001:00:00.0": real})
    assert shown(before, Virtual("/x.xml", TOLD)).topology == before.topology


@pytest.mark.parametrize(
    "told",
    [{}, {"0009:00:00.0": Hidden(("ffff:ff:01.0",), 0)}, {"0001:00:00.0": Hidden((), 7)},
     {"0001:00:00.0": Hidden(("../..",), 0)}, {"0001:00:00.0": Hidden(numa_node=-1)}],
)  # fmt: skip
def test_what_a_file_tells_of_another_machine_changes_nothing(told: dict[str, Hidden]) -> None:
    before = guest("0001:00:00.0", "0101:00:00.0")
    after = shown(before, Virtual("/x.xml", told))
    assert (after.topology, after.instances) == (before.topology, before.instances)


def test_what_is_below_a_bridge_that_the_file_has_is_on_its_node() -> None:
    before = guest(**{"0005:00:00.0": function("pci0003:00", "0003:00:00.0")})
    (after,) = shown(before, Virtual("/x.xml", TOLD)).instances
    assert after.attributes["numa_node"] == 1
    assert "pcie_switch" not in after.attributes


CLOUDS = ["aws/g5.48xl", "aws/p4d-24xl", "aws/p4de-24xl", "azure/ncv4", "azure/ndv2", "azure/ndv4"]


@pytest.mark.needs("recorded")
@pytest.mark.parametrize("name", CLOUDS)
def test_the_files_of_clouds(name: str, compared: Any) -> None:
    name = f"nccl-topo/{name}-topo.xml"
    told = parse((SHARED / name).read_bytes())
    expected = json.loads((SHARED / "expected/from-nccl-xml.json").read_text("utf-8"))[name]
    nodes = sorted({one["numa"] for one in expected})
    inventory = guest(*(one["pci"] for one in expected), nodes=nodes)
    seen = shown(inventory, Virtual(name, told))
    for one in expected:
        site = seen.layout.site(one["pci"])
        assert (list(site.switches), site.numa) == (one["bridges"], one["numa"])
    compared(name, 2 * len(expected))


@pytest.mark.needs("recorded")
def test_each_gpu_of_a_cloud_has_the_rail_of_a_nic_below_its_switch() -> None:
    told = parse((SHARED / "nccl-topo/azure/ndv4-topo.xml").read_bytes())
    seen = shown(guest(*told, nodes=(0, 1, 2, 3)), Virtual("x", told))
    found = rail.decide(seen.instances, seen.layout, RailsConfig())
    assert sorted(found.nics.values()) == sorted(found.gpus.values()) == list(range(8))
    for gpu, number in found.gpus.items():
        (nic,) = (one for one, other in found.nics.items() if other == number)
        assert seen.layout.between_on_pci(gpu, nic) == "PIX"


# ---- the file, and a record of it ------------------------------------------------------------


def of_root(folder: Path) -> Instance:
    (found,) = scan(Host(folder), all_providers(("nvidia",))).instances
    return found


@pytest.fixture
def one_card(tmp_path: Path) -> Path:
    """A machine with one card at a host bridge of its own."""
    place = tmp_path / "sys/devices/pci0001:00/0001:00:00.0"
    place.mkdir(parents=True)
    for name, text in (("class", "0x030200"), ("vendor", "0x10de"), ("numa_node", "-1")):
        (place / name).write_text(text, "ascii")
    link = tmp_path / "sys/bus/pci/devices/0001:00:00.0"
    link.parent.mkdir(parents=True)
    link.symlink_to("../../../devices/pci0001:00/0001:00:00.0")
    return tmp_path


def test_a_record_has_it(one_card: Path) -> None:
    assert "pcie_switch" not in of_root(one_card).attributes
    told = {"path": "/x", "functions": {"0001:00:00.0": {"switches": ["ffff:ff:01.0"]}}}
    (one_card / "virtual-topology.json").write_text(json.dumps(told), "utf-8")
    assert of_root(one_card).attributes["pcie_switch"] == "ffff:ff:01.0"


def test_a_fault_of_the_file_is_a_problem_and_no_more(one_card: Path) -> None:
    (one_card / "virtual-topology.json").write_text(
        '{"path": "/x", "fault": "/x: no XML"}', "ascii"
    )
    seen = scan(Host(one_card), all_providers(("nvidia",)))
    assert ("topology", "error", "/x: no XML") in {
        (one.provider, one.state, one.reason) for one in seen.problems
    }
    assert len(seen.instances) == 1


@pytest.fixture
def etc() -> Iterator[Path]:
    """A folder on whose way nobody but root can write."""
    folder = Path(f"/run/xce-virtual-{os.getpid()}")
    folder.mkdir(mode=0o755)
    try:
        yield folder
    finally:
        for one in folder.iterdir():
            one.unlink()
        folder.rmdir()


@pytest.mark.needs("root")
def test_the_file_is_nccl_s_own_or_what_its_configuration_names(etc: Path) -> None:
    config, default, named = (etc / name for name in ("nccl.conf", "default.xml", "named.xml"))

    def read() -> Virtual:
        return file.read(Host(), str(config), str(default))

    assert read() == Virtual()
    default.write_text(TEXT, "ascii")
    assert read() == Virtual(str(default), TOLD)
    config.write_text(f"# NCCL_TOPO_FILE=/no\nNCCL_DEBUG=WARN\n NCCL_TOPO_FILE = {named} # x\n")
    assert read().fault == f"{named}: it is not there"
    named.write_text("<system/>", "ascii")
    assert read() == Virtual(str(named))
    for spoil, why in (
        (lambda: named.chmod(0o646), "others than root can write"),
        (lambda: os.chown(named, 1, 1), "others than root can write"),
        (lambda: (os.chown(named, 0, 0), named.chmod(0o644),
                  named.write_bytes(b" " * (SIZE_LIMIT + 1))), "at most"),
        (lambda: (named.unlink(), named.symlink_to("/dev/zero")), "it is no file"),
        (lambda: (named.unlink(), named.mkdir(), config.unlink(), named.rmdir(),
                  default.write_text("<a>", "ascii")), "begins with <a>"),
    ):  # fmt: skip
        spoil()
        told = read()
        assert why in told.fault
        assert told.functions == {}
