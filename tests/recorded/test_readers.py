"""The readers of recordings themselves, on small texts of this project's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import hwloc, nccl, slices, ttar, udevdump, umockdev
from recorded.machine import bits, listed, mask

from xce_nodeagent.host import cpulist


@given(st.frozensets(st.integers(0, 300)))
def test_masks_and_lists_come_back(numbers: frozenset[int]) -> None:
    assert bits(mask(numbers)) == numbers
    assert cpulist.read(listed(numbers)) == tuple(sorted(numbers))


NCCL = """
<system version="2">
  <cpu host_hash="0x1" numaid="3" affinity="0000000f,00000000">
    <pci busid="0000:10:00.0" class="0x060400" vendor="0x1000" device="0xc030">
      <pci busid="0000:12:00.0" class="0x030200" vendor="0x10de" device="0x2901">
        <gpu dev="0" sm="100"><nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/></gpu>
        <gpu dev="0" sm="100"><nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/></gpu>
      </pci>
      <pci busid="0000:13:00.0" class="0x020700">
        <nic>
          <net name="mlx5_0" port="1" speed="400000"/>
          <net name="mlx5_1" port="1" speed="400000"/>
        </nic>
      </pci>
    </pci>
    <nic><net name="eth0" port="0" speed="10000"/></nic>
  </cpu>
  <cpu host_hash="0x2" numaid="0"><pci busid="0000:99:00.0" class="0x030200"/></cpu>
</system>
"""


def test_nccl_leaves_ports_and_switches_out() -> None:
    machine = nccl.read(NCCL)
    told = {one.address: one for one in machine.functions if not one.made_up}
    assert set(told) == {"0000:10:00.0", "0000:12:00.0", "0000:13:00.0"}
    root_port, switch, port = told["0000:12:00.0"].path[1:]
    assert switch == "0000:10:00.0"
    assert {root_port, port} <= {one.address for one in machine.functions if one.made_up}
    assert told["0000:12:00.0"].path[:3] == told["0000:13:00.0"].path[:3]
    assert told["0000:12:00.0"].numa_node == 3
    (node,) = machine.nodes
    assert (node.number, node.cpus) == (3, frozenset(range(32, 36)))
    (link,) = machine.links
    assert (link.other, link.end, link.count) == ("", "switch", 18)
    assert [(port.device, port.function) for port in machine.rdma] == [
        ("mlx5_0", "0000:13:00.0"),
        ("mlx5_1", "0000:13:00.1"),
    ]
    assert machine.interfaces == ()


@pytest.mark.parametrize("text", ["<graphs/>", "<topology><info/></topology>"])
def test_what_is_no_topology_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no topology|no object"):
        (nccl if text == "<graphs/>" else hwloc).read(text)


HWLOC = """
<topology version="2.0">
  <object type="Machine" os_index="0" cpuset="0x0000000f" nodeset="0x00000105">
    <object type="Package" os_index="0" cpuset="0x00000003" nodeset="0x00000005">
      <object type="NUMANode" os_index="0" cpuset="0x00000003" nodeset="0x00000001"/>
      <object type="NUMANode" os_index="2" cpuset="0x00000003" nodeset="0x00000004"/>
      <object type="Core" os_index="0" cpuset="0x00000003" nodeset="0x00000005">
        <object type="PU" os_index="0" cpuset="0x00000001"/>
        <object type="PU" os_index="1" cpuset="0x00000002"/>
      </object>
      <object type="Bridge" gp_index="1" bridge_type="0-1" bridge_pci="0001:[00-01]">
        <object type="PCIDev" gp_index="2" pci_busid="0001:01:00.0"
                pci_type="0302 [10de:1db1] [0000:0000] a1"/>
      </object>
    </object>
    <object type="Package" os_index="8" cpuset="0x0000000c" nodeset="0x00000100">
      <object type="NUMANode" os_index="8" cpuset="0x0000000c" nodeset="0x00000100"/>
      <object type="PU" os_index="2" cpuset="0x00000004"/>
      <object type="PU" os_index="3" cpuset="0x00000008"/>
    </object>
  </object>
  <distances2 type="NUMANode" nbobjs="3" indexing="os" name="NUMALatency">
    <indexes>8 0 2 </indexes><u64values>10 40 80 40 10 80 80 80 10 </u64values>
  </distances2>
</topology>
"""


def test_hwloc_gives_nodes_of_memory_alone_the_cpus_near_to_them() -> None:
    """The kernel gives them none; and distances come in the order of the nodes' numbers."""
    machine = hwloc.read(HWLOC)
    assert {node.number: (sorted(node.cpus), node.distances) for node in machine.nodes} == {
        0: ([0, 1], (10, 80, 40)),
        2: ([], (80, 10, 80)),
        8: ([2, 3], (40, 80, 10)),
    }
    (card,) = machine.functions
    assert (card.numa_node, card.path, card.kind) == (0, ("pci0001:00",), 0x0302)
    assert [(cpu.number, cpu.package, sorted(cpu.threads)) for cpu in machine.cpus] == [
        (0, 0, [0, 1]),
        (1, 0, [0, 1]),
        (2, 8, []),
        (3, 8, []),
    ]


def test_a_driver_s_slice_says_what_it_says() -> None:
    machine = slices.read(
        "devices:\n- attributes:\n    dra.net/numaNode:\n      int: 1\n    dra.net/pciAddress:\n"
        '      string: "0101:00:00.0"\n    dra.net/rdmaDevice:\n      string: mlx5_0\n'
        "    resource.kubernetes.io/pcieRoot:\n      string: pci0101:00\n  name: x\n"
    )
    (nic,) = machine.functions
    assert (nic.address, nic.path, nic.numa_node) == ("0101:00:00.0", ("pci0101:00",), 1)
    assert [port.device for port in machine.rdma] == ["mlx5_0"]
    assert machine.interfaces == ()


def test_an_archive_keeps_bytes_and_ends_as_they_were(tmp_path: Path) -> None:
    lines = (
        b"# an archive", b"Path: sys/a", b"Lines: 2", b"one", b"two\x85\xffEOF", b"Mode: 644",
        b"Path: sys/b", b"Lines: 1", b"NULLBYTE", b"Mode: 644", b"Path: sys/c", b"SymlinkTo: b",
    )  # fmt: skip
    ttar.write(b"\n".join(lines), tmp_path)
    assert (tmp_path / "sys/a").read_bytes() == b"one\ntwo\x85\xff"
    assert (tmp_path / "sys/c").read_bytes() == b"\0\n"


@pytest.mark.parametrize("name", ["/etc/x", "sys/../../x"])
def test_an_archive_stays_below_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="outside"):
        ttar.write(f"Directory: {name}\n".encode(), tmp_path)


def test_a_record_of_umockdev_unfolds(tmp_path: Path) -> None:
    device = "P: /devices/pci0000:00/0000:00:02.0\nE: SUBSYSTEM=pci\nA: class=0x030000\n"
    umockdev.write(f"{device}A: b=one\\ntwo\\\\n\nH: config=8680\nL: driver=../../d\n", tmp_path)
    folder = tmp_path / "sys/bus/pci/devices/0000:00:02.0"
    assert (folder / "b").read_text() == "one\ntwo\\n\n"
    assert (folder / "config").read_bytes() == b"\x86\x80"
    assert folder.resolve().parent.name == "pci0000:00"
    with pytest.raises(ValueError, match="begins with its path"):
        umockdev.write("A: x=1\n", tmp_path / "other")


def test_a_dump_of_udev_is_made_of_its_properties(tmp_path: Path) -> None:
    card = (
        "P: /devices/pci0000:00/0000:00:02.0\nE: DEVPATH=/devices/pci0000:00/0000:00:02.0\n"
        "E: SUBSYSTEM=pci\nE: DRIVER=x\nE: PCI_CLASS=20000\nE: PCI_ID=8086:1533\n"
        "E: PCI_SUBSYS_ID=1:2\n"
    )
    net = (
        "P: /devices/pci0000:00/0000:00:02.0/net/eth0\nE: IFINDEX=2\nE: SUBSYSTEM=net\n"
        "E: DEVPATH=/devices/pci0000:00/0000:00:02.0/net/eth0\nE: ID_NET_NAME_MAC=enx020000000001\n"
    )
    udevdump.write(f"{card}\n{net}\n", tmp_path)
    folder = tmp_path / "sys/bus/pci/devices/0000:00:02.0"
    assert (folder / "class").read_text() == "0x020000\n"
    assert (folder / "driver").resolve().name == "x"
    assert not (folder / "numa_node").exists()
    assert (tmp_path / "sys/class/net/eth0/device/class").is_file()
    assert (tmp_path / "sys/class/net/eth0/address").read_text() == "02:00:00:00:00:01\n"
