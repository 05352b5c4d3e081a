"""Nothing that tells whose a machine is stays in an anonymous record; all else does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xce_nodeagent.cli import record as writing
from xce_nodeagent.discovery import scan
from xce_nodeagent.host import Host
from xce_nodeagent.model.anonymous import anonymous
from xce_nodeagent.model.original import originals
from xce_nodeagent.model.record import File, Folder, Link, Record
from xce_nodeagent.providers import all_providers

MAC, GUID = "0c:42:a1:65:2d:6e", "0c42:a103:0065:2d6e"
UUID = "5f6c1d0e-2f4b-5c8a-9d3e-0a1b2c3d4e5f"
SECRETS = {
    "mac": MAC,
    "guid": GUID,
    "uuid": UUID,
    "ipoib": "80:00:02:08:fe:80:00:00:00:00:00:00:0c:42:a1:03:00:65:2d:6e",
    "gid": "fe80:0000:0000:0000:0c42:a103:0065:2d6e",
    "ipv4": "10.17.4.211",
    "ipv6": "fd12:3456::c0:ffee",
    "serial": "MT2133X04217",
    "tag": "ACME-00731",
    "host": "hal9000",
    "domain": "dept.customer.example",
    "interface": "tenant-blue",
    "unique": "12345678901234567890",
}
RECORD: Record = {
    "/sys": Folder(),
    "/proc/sys/kernel/hostname": File(f"{SECRETS['host']}.{SECRETS['domain']}\n"),
    "/proc/sys/kernel/random/boot_id": File(f"{UUID}\n"),
    "/sys/class/net/eth0": Link(f"../../devices/pci0000:00/{SECRETS['host']}/net/eth0"),
    "/sys/class/net/enx0c42a1652d6e": Link("../../devices/0000:00:14.0/usb1/net/enx0c42a1652d6e"),
    "/sys/class/net/tenant-blue": Link("../../devices/virtual/net/tenant-blue"),
    "/sys/devices/virtual/net/tenant-blue": Folder(),
    "/sys/devices/virtual/net/br0/lower_tenant-blue": Link("../tenant-blue"),
    "/sys/devices/virtual/net/tenant-blue/address": File(f"{MAC}\n"),
    "/sys/devices/virtual/net/tenant-blue/uevent": File("INTERFACE=tenant-blue\nIFINDEX=4\n"),
    "/sys/class/net/ib0/address": File(f"{SECRETS['ipoib']}\n"),
    "/sys/class/infiniband/mlx5_0/node_guid": File(f"{GUID}\n"),
    "/sys/class/infiniband/mlx5_0/ports/1/gids/0": File(f"{SECRETS['gid']}\n"),
    "/sys/class/dmi/id/board_serial": File(f"{SECRETS['serial']}\n"),
    "/sys/class/dmi/id/chassis_asset_tag": File(f"{SECRETS['tag']}\n"),
    "/sys/class/kfd/kfd/topology/nodes/1/properties": File(
        f"simd_count 4\nunique_id {SECRETS['unique']}\nhive_id 0\nmem_banks_count 1\n"
    ),
    "/sys/devices/pci0000:00/0000:c1:00.0/unique_id": File(f"{int(SECRETS['unique']):016x}\n"),
    "/proc/net/anything": File(f"{SECRETS['ipv4']}:22 {SECRETS['ipv6']} {MAC.upper()}\n"),
    "/proc/driver/nvidia/gpus/0000:c1:00.0/information": File(
        f"Model: \t NVIDIA H100\nGPU UUID: \t GPU-{UUID}\nVideo BIOS: \t 96.00.61.00.01\n"
    ),
    "/proc/version": File(f"Linux 6.1.0 (root@{SECRETS['host']}) 550.90.07 0000:c1:00.0\n"),
    "/nvml.json": File(
        json.dumps({"serial": SECRETS["serial"], "uuid": f"GPU-{UUID}", "by": "tenant-blue"})
    ),
}  # fmt: skip
KEPT = (
    "NVIDIA H100", "96.00.61.00.01", "550.90.07", "0000:c1:00.0", "simd_count 4", "hive_id 0",
    "mem_banks_count 1", "pci0000:00", "mlx5_0", "IFINDEX=4", "GPU UUID", "ib0", "br0",
)  # fmt: skip


def everything(record: Record) -> str:
    return json.dumps({path: msgspec.to_builtins(entry) for path, entry in record.items()}).lower()


def spellings(secret: str) -> set[str]:
    bare = re.sub("[:.-]", "", secret)
    return {secret.lower(), bare.lower(), secret.replace(":", "-").lower()}


def test_nothing_of_the_originals_is_left_in_any_spelling() -> None:
    text = everything(anonymous(RECORD))
    secrets = {one for secret in SECRETS.values() for one in spellings(secret)}
    secrets |= {f"{int(SECRETS['unique']):x}", "customer", "0c42a1"}
    assert [one for one in secrets if one in text] == []


def test_what_a_fault_is_about_stays() -> None:
    text = everything(anonymous(RECORD))
    assert [one for one in KEPT if one.lower() not in text] == []


def test_one_original_has_one_replacement() -> None:
    after = anonymous(RECORD)
    text = everything(after)
    new = after["/sys/devices/virtual/net/if0/address"].text.strip()
    assert new == "02:00:00:00:00:01"
    assert text.count(new) == 2, "in upper case as well"
    assert "/sys/class/net/enx020000000001" in after
    assert after["/sys/class/net/if0"].target == "../../devices/virtual/net/if0"
    assert after["/sys/devices/virtual/net/br0/lower_if0"].target == "../if0"
    unique = after["/sys/devices/pci0000:00/0000:c1:00.0/unique_id"].text.strip()
    told = after["/sys/class/kfd/kfd/topology/nodes/1/properties"].text
    assert f"unique_id {int(unique, 16)}\n" in told
    boot = after["/proc/sys/kernel/random/boot_id"].text.strip()
    assert text.count(boot) == 3


def test_an_interface_or_a_host_with_a_kernels_word_for_a_name() -> None:
    record: Record = {
        "/proc/sys/kernel/hostname": File("kernel\n"),
        "/sys/class/net/devices": Link("../../devices/virtual/net/devices"),
        "/sys/devices/virtual/net/devices/ifindex": File("3\n"),
    }
    after = anonymous(record)
    assert after["/proc/sys/kernel/hostname"] == File("host\n")
    assert after["/sys/class/net/if0"] == Link("../../devices/virtual/net/if0")
    assert "/sys/devices/virtual/net/if0/ifindex" in after


@pytest.mark.parametrize("proc", ["/proc/net", "/proc/4711/net"])
def test_short_names_and_numbers_in_tables(proc: str) -> None:
    """What the kernel writes in words: names of three letters, and addresses as numbers."""
    head = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\n"
    record: Record = {
        "/sys/class/net/acx": Link("../../devices/virtual/net/acx"),
        "/sys/devices/virtual/net/bz9/bonding/slaves": File("acx eth0\n"),
        "/sys/devices/virtual/net/br0/brif/acx": Link("../../acx/brport"),
        "/sys/devices/virtual/net/bz9/lower_acx": Link("../acx"),
        f"{proc}/route": File(
            f"{head}bz9\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\n"
            "acx\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\n"
        ),
        f"{proc}/ipv6_route": File(f"{'0' * 32} 00 {'0' * 32} 00 {'0' * 32} 1 1 1 3      acx\n"),
        "/address": File("192.168.1.1\n"),
    }
    after = anonymous(record)
    assert after["/sys/devices/virtual/net/if1/bonding/slaves"] == File("if0 eth0\n")
    assert after["/sys/devices/virtual/net/br0/brif/if0"] == Link("../../if0/brport")
    assert after["/sys/devices/virtual/net/if1/lower_if0"] == Link("../if0")
    assert after["/address"] == File("198.18.0.2\n")
    assert after[f"{proc}/route"] == File(
        f"{head}if1\t00000000\t020012C6\t0003\t0\t0\t0\t00000000\n"
        "if0\t010012C6\t00000000\t0001\t0\t0\t0\t00FFFFFF\n"
    )
    assert after[f"{proc}/ipv6_route"].text.endswith("      if0\n")


def test_what_is_nobodys_stays() -> None:
    text = "00:00:00:00:00:00 ff:ff:ff:ff:ff:ff 127.0.0.1 0.0.0.0 ::1 1.2.3 9.9 serial: None\n"
    record: Record = {"/proc/x": File(text), "/proc/sys/kernel/hostname": File("localhost\n")}
    assert anonymous(record) == record


@given(
    st.lists(st.binary(min_size=6, max_size=6).filter(lambda b: 0 < sum(b) < 6 * 255), unique=True)
)
def test_different_addresses_stay_different_and_in_order(addresses: list[bytes]) -> None:
    record: Record = {f"/sys/{n}": File(mac.hex(":")) for n, mac in enumerate(addresses)}
    after = anonymous(record)
    new = [after[f"/sys/{n}"].text for n in range(len(addresses))]
    assert len(set(new)) == len(addresses)
    assert [one for _, one in sorted(zip(addresses, new, strict=True))] == sorted(new)
    assert not set(new) & {mac.hex(":") for mac in addresses if mac[0] != 2}


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=60), max_size=5))
def test_no_text_is_too_strange(texts: dict[str, str]) -> None:
    record: Record = {f"/sys/{name}": File(text) for name, text in texts.items()}
    assert len(anonymous(record)) == len(record)


@pytest.mark.needs("recorded")
def test_a_real_machine_is_the_same_but_for_its_names(recorded_root: Path, tmp_path: Path) -> None:
    writing.record(str(tmp_path / "plain"), str(recorded_root), anonymize=False)
    writing.record(str(tmp_path / "anonymous"), str(recorded_root), anonymize=True)
    plain = scan(Host(tmp_path / "plain"), all_providers())
    hidden = scan(Host(tmp_path / "anonymous"), all_providers())
    told = {("mac", one.text("mac")) for one in plain.instances if one.text("mac")}
    text = "\n".join(
        f"{path.relative_to(tmp_path / 'anonymous')}\n"
        + (path.read_text("utf-8", "replace") if path.is_file() else "")
        for path in sorted((tmp_path / "anonymous").rglob("*"))
    ).lower()
    assert [mac for _, mac in told if mac != "00:00:00:00:00:00" and mac.lower() in text] == []
    assert hidden.topology == plain.topology
    places = ("pci_address", "numa_node", "pcie_root", "pcie_switch", "model", "rdma_device")
    assert [[one.type, *map(one.text, places)] for one in hidden.instances] == [
        [one.type, *map(one.text, places)] for one in plain.instances
    ]


def test_originals_of_nothing() -> None:
    assert not any(msgspec.to_builtins(originals({})).values())
