"""NICs whose part of sysfs is rubbish: nothing raises, and one bad NIC costs no other anything."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xce_nodeagent.model.inventory import Inventory, advance

GOOD, BAD = "0000:18:00.0", "0000:3a:00.0"
PARTS = (
    "", "/class", "/vendor", "/device", "/numa_node", "/sriov_numvfs", "/subsystem", "/driver",
    "/net", "/net/bad0", "/net/bad0/type", "/net/bad0/operstate", "/net/bad0/speed",
    "/net/bad0/ifindex", "/net/bad0/iflink", "/net/bad0/address", "/net/bad0/carrier",
    "/net/bad0/dev_port", "/net/bad0/phys_port_name", "/net/bad0/uevent", "/net/bad0/device",
    "/net/bad0/bonding/slaves", "/net/bad0/master", "/net/bad0/lower_good0", "/net/bad0/brif",
    "/infiniband", "/infiniband/mlx5_1", "/infiniband/mlx5_1/device",
    "/infiniband/mlx5_1/node_type", "/infiniband/mlx5_1/fw_ver", "/infiniband/mlx5_1/board_id",
    "/infiniband/mlx5_1/ports", "/infiniband/mlx5_1/ports/1", "/infiniband/mlx5_1/ports/1/state",
    "/infiniband/mlx5_1/ports/1/rate", "/infiniband/mlx5_1/ports/1/link_layer",
    "/infiniband/mlx5_1/ports/1/phys_state", "/infiniband/mlx5_1/ports/1/gid_attrs/ndevs/0",
    "/infiniband/mlx5_1/ports/99999999999", "/physfn", "/virtfn0", "/net/\udcff\udcfe",
)  # fmt: skip
UGLY = (
    b"", b"-1", b"18446744073709551616", b"0x", b"9" * 5000, b"1:", b": ACTIVE", b"\0" * 9,
    b"4: ACTIVE\n5: LinkUp", b"99999999999999999 Gb/sec", b"bad0", b"\x1b[2J", b"4294967296:7",
    b"1: \x1b[2J", b"\xff\xfe\x00", "\u202e1".encode(),
)  # fmt: skip
TEXTS = st.one_of(st.binary(max_size=24), st.sampled_from(UGLY))
HARMS = st.lists(
    st.tuples(
        st.sampled_from(PARTS),
        st.one_of(
            st.just(("gone", b"")),
            st.just(("folder", b"")),
            st.tuples(st.just("text"), TEXTS),
            st.tuples(
                st.just("link"),
                st.sampled_from([b".", b"..", b"/", b"loop", b"../..", b"/etc", b"/sys/class/net"]),
            ),
        ),
    ),
    min_size=1,
    max_size=4,
)


def two(machine: Any) -> None:
    for number, (address, name) in enumerate(((GOOD, "good0"), (BAD, "bad0"))):
        device = machine.function(address, sriov_numvfs="0", driver="mlx5_core")
        machine.netdev(name, device, carrier="1", dev_port="0")
        machine.rdma(f"mlx5_{number}", device, minor=192 + number, fw_ver="1.2.3")


def harm(root: Path, part: str, what: str, content: bytes) -> None:
    """Put something else in the place of a part of the bad NIC."""
    place = Path(f"{root}/sys/devices/pci0000:00/0000:00:01.0/{BAD}{part}")
    if place.is_symlink() or place.is_file():
        place.unlink()
    elif place.is_dir():
        shutil.rmtree(place)
    if what == "gone":
        return
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        if what == "folder":
            (place / "inside").mkdir(parents=True)
        elif what == "link":
            os.symlink(content, os.fsencode(place))
        else:
            place.write_bytes(content)
    except OSError:  # another harm made a file of its folder, or a circle
        return


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=60)
@given(harms=HARMS)
def test_one_bad_nic_costs_no_other_anything(
    machines: Callable[[], Any], harms: list[tuple[str, tuple[str, bytes]]]
) -> None:
    machine = machines()
    two(machine)
    before = machine.nics()
    for part, (what, content) in harms:
        harm(machine.root, part, what, content)
    after = machine.nics()
    good = before[GOOD]
    # What the bad one says of its bond, or of its device, may draw the good one near to it.
    near = {"bond", "vlans", "default_route"}
    kept = {key: value for key, value in after[GOOD].attributes.items() if key not in near}
    assert kept == good.attributes
    assert after[GOOD].devices == good.devices
    assert after[GOOD].healthy
    inventory = Inventory(source="local", node="n", boot_id="b", instances=tuple(after.values()))
    advance(inventory, {}, 0)


@pytest.mark.parametrize("text", UGLY)
def test_rubbish_in_every_file_is_told_as_nothing(machine: Any, text: bytes) -> None:
    two(machine)
    good = machine.nics()[GOOD]
    for place in Path(f"{machine.root}/sys/devices/pci0000:00/0000:00:01.0/{BAD}").rglob("*"):
        if place.is_file() and not place.is_symlink():
            place.write_bytes(text)
    odd = os.fsencode(f"{machine.root}/sys/class/net/") + b"\xff\x1b"
    os.symlink(b"good0", odd)
    found = machine.nics()
    assert found[GOOD] == good
    bad = [one for one in found.values() if one.id != GOOD]
    assert [one.text("pci_address") for one in bad] == [BAD]
    for value in bad[0].attributes.values():
        assert not isinstance(value, str) or (value.isascii() and value.isprintable()), value
    inventory = Inventory(source="local", node="n", boot_id="b", instances=tuple(found.values()))
    advance(inventory, {}, 0)
