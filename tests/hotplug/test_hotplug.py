"""Cards that are plugged into a switch of a real kernel, in QEMU: udev and netlink tell of them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hotplug import initramfs
from hotplug.machine import ROOT_BUS, Machine

pytestmark = pytest.mark.needs("qemu")

PATIENCE = 120.0
MAC = "52:54:00:00:00:77"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Boot it once."""
    initramfs.CACHE.mkdir(parents=True, exist_ok=True)
    try:
        with (initramfs.CACHE / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            linux = initramfs.unpacked(initramfs.kernel())
            udev = initramfs.unpacked("udev")
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        if "qemu" in os.environ.get("XCE_REQUIRE", "").split(","):
            raise
        pytest.skip(f"the distribution's kernel and udev cannot be had: {error}")
    folder = tmp_path_factory.mktemp("qemu")
    archive = folder / "initramfs"
    initramfs.build(archive, linux, udev)
    (kernel,) = (linux / "boot").glob("vmlinuz-*")
    with contextlib.closing(Machine(folder, kernel, archive, PATIENCE)) as made:
        began = time.monotonic()
        first = made.tell()
        print(f"booted in {time.monotonic() - began:.0f} s, events of {first['source']}")  # noqa: T201  # for the log of a run
        assert first["nics"] == {}
        yield made


def test_cards_come_change_and_go(machine) -> None:
    """After each step it is what QEMU was told, and what a look at everything finds."""
    switch = machine.address("up")
    machine.ask("device_add", driver="virtio-net-pci", id="one", bus="left", mac=MAC)
    nic = _only(machine.until(lambda nics: _only(nics).get("netdev")))
    where = machine.address("one")
    assert nic["pci_address"] == where
    assert (nic["numa_node"], nic["pcie_root"]) == (1, f"pci0000:{ROOT_BUS:02x}")
    assert nic["pcie_switch"] == switch
    assert (nic["mac"], nic["model"]) == (MAC, "virtio-net")

    driver = "/sys/bus/virtio/drivers/virtio_net"
    virtio = "virtio0"
    machine.order(write=[f"{driver}/unbind", virtio])
    machine.until(lambda nics: not nics)
    machine.order(write=[f"{driver}/bind", virtio])
    nic = _only(machine.until(lambda nics: _only(nics).get("netdev")))

    machine.order(run=["ip", "link", "set", nic["netdev"], "up"])
    machine.until(lambda nics: _only(nics).get("state") == "up")
    machine.ask("set_link", name="one", up=False)
    machine.until(lambda nics: _only(nics).get("carrier") is False)
    machine.ask("set_link", name="one", up=True)
    machine.until(lambda nics: _only(nics).get("carrier") is True)

    machine.order(run=["rdma", "link", "add", "rxe0", "type", "rxe", "netdev", nic["netdev"]])
    machine.until(lambda nics: _only(nics).get("rdma_device") == "rxe0")
    machine.order(run=["rdma", "link", "delete", "rxe0"])
    machine.until(lambda nics: "rdma_device" not in _only(nics))

    # Another one, of another kind, on no switch and on the first node's host bridge.
    machine.ask("device_add", driver="e1000e", id="two", bus="near")
    nics = machine.until(lambda nics: len([n for n in nics.values() if n.get("netdev")]) == 2)
    other = nics[machine.address("two")]
    assert other["pcie_root"] == "pci0000:00"
    assert "pcie_switch" not in other
    assert nics[where]["pcie_switch"] == switch

    machine.ask("device_del", id="one")
    assert machine.until(lambda nics: where not in nics).keys() == {other["pci_address"]}
    machine.ask("device_del", id="two")
    machine.until(lambda nics: not nics)


def _only(nics: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Give the one NIC; nothing is known of it where there is none."""
    assert len(nics) <= 1
    return next(iter(nics.values()), {})
