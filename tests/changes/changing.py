"""A machine to which things happen: what is looked at after an event is what all would show."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from machines import dgx, small

from xce_nodeagent.discovery import Discovery, scan
from xce_nodeagent.host import Host
from xce_nodeagent.host.event import ALL, LIBRARY, LOST, ROUTES, Event
from xce_nodeagent.model.inventory import advance
from xce_nodeagent.providers import all_providers

SLOTS = ["0000:02:00.0/0000:03:00.0", "0000:02:01.0/0000:04:00.0", "0000:02:01.0/0000:04:00.1"]
SWITCH = "pci0000:00/0000:00:01.0/0000:01:00.0"
CARDS = {"gpu": ("0x030200", "0x10de:0x2330"), "nic": ("0x020000", "0x15b3:0x1021"),
         "other": ("0x010802", "0x144d:0xa80a"), "intel": ("0x038000", "0x8086:0x0bd5"),
         "npu": ("0x120000", "0x1da3:0x1020")}  # fmt: skip
VIRTUAL = "0000:02:01.0/0000:03:10.0"  # a function in another slot than its physical one
slots = st.sampled_from(SLOTS)
carriers = st.sampled_from(["up", "down", ""])


class Changing(RuleBasedStateMachine):
    """A machine to which things happen, each with the events that the kernel sends."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="xce-test-"))
        self.root = small.write(self.folder / "machine")
        for slot in SLOTS[:2]:
            self._wipe(slot)
        self.events: set[Event] = set()
        self.said: tuple[str, str, dict[str, Any]] = ("not_yet", "it starts", {})
        self.providers = all_providers()
        self.host = Host(self.root, probe=lambda _: self.said)
        self.discovery = Discovery(self.host, self.providers)
        self.inventory = self.discovery.look()
        self.number, self.seen = 0, {}
        self.lazy = False  # it looks only now and then, at many events at once

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @initialize(lazy=st.booleans())
    def begins(self, lazy: bool) -> None:
        self.lazy = lazy

    # ---- what happens ------------------------------------------------------------------------

    @rule(slot=slots, kind=st.sampled_from(sorted(CARDS)), node=st.sampled_from([-1, 0, 1]))
    def plugged_in(self, slot: str, kind: str, node: int) -> None:
        if not self._there(slot):
            code, ids = CARDS[kind]
            dgx.function(self.root, f"{SWITCH}/{slot}", code, ids, node)
            self._tell("add", "pci", slot)

    @rule(slot=slots)
    def pulled_out(self, slot: str) -> None:
        if self._there(slot):
            self._unbound(slot)
            self._wipe(slot)
            self._tell("remove", "pci", slot)

    @rule(slot=slots, kind=st.sampled_from(sorted(CARDS)))
    def swapped(self, slot: str, kind: str) -> None:
        self.pulled_out(slot)
        self.plugged_in(slot, kind, 1)

    @rule(slot=slots)
    def bound(self, slot: str) -> None:
        if self._there(slot) and not self._bound(slot):
            dgx.bind(self.root, self._address(slot), "some_driver")
            if "0x02" in (self._folder(slot) / "class").read_text():
                number = SLOTS.index(slot) + 40
                card = {"netdev": f"eth{number}", "rdma_device": f"mlx5_{number}",
                        "link_layer": "ethernet", "speed_mbps": 100000}  # fmt: skip
                dgx.interface(self.root, f"{SWITCH}/{slot}", card, number)
                self._tell_name("change", "net", f"eth{number}")
                self._tell_name("add", "infiniband", f"mlx5_{number}")
            if "0x03" in (self._folder(slot) / "class").read_text():
                for name, minor in (("card0", 0), ("renderD128", 128)):  # codespell:ignore
                    dgx.file(self.root, f"{self._inside(slot)}/drm/{name}/dev", f"226:{minor}")
                    self._tell_name("add", "drm", name)
            self._tell("bind", "pci", slot)

    @rule(slot=slots)
    def unbound(self, slot: str) -> None:
        self._unbound(slot)

    @rule(interface=st.sampled_from(["eth0", "eth40", "eth41", "en41", "eth42"]),
          name=st.sampled_from(["operstate", "address", "speed", "carrier"]),
          value=st.sampled_from(["up", "down", "25000", "02:00:00:00:00:99", ""]))  # fmt: skip
    def link_changed(self, interface: str, name: str, value: str) -> None:
        folder = self.root / "sys/class/net" / interface
        if folder.exists():
            (folder / name).write_text(f"{value}\n")
            self._ports_follow(interface, value)
            self._tell_name("change", "net", interface)

    @rule(slot=slots, bond=st.booleans(), state=carriers)
    def bonded(self, slot: str, bond: bool, state: str) -> None:
        """The RDMA device of a bond hangs on one card, and names the bond."""
        folder = "sys/devices/virtual/net/bond0"
        for name, value in (("ifindex", "90"), ("iflink", "90"), ("operstate", state)):
            dgx.file(self.root, f"{folder}/{name}", value)
        if not (self.root / "sys/class/net/bond0").is_symlink():
            dgx.link(self.root, "sys/class/net/bond0", folder)
        number = SLOTS.index(slot) + 40
        named = self.root / f"sys/class/infiniband/mlx5_{number}/ports/1/gid_attrs/ndevs/0"
        if named.exists():
            named.write_text("bond0\n" if bond else f"eth{number}\n")
        self._ports_follow("bond0", state)
        self._tell_name("change", "net", "bond0")

    @rule(slot=slots, state=carriers)
    def made_in_software(self, slot: str, state: str) -> None:
        """A device of rdma_rxe hangs nowhere, and follows the interface that it names."""
        number = SLOTS.index(slot) + 40
        port = "sys/devices/virtual/infiniband/rxe0/ports/1"
        dgx.file(self.root, f"{port}/gid_attrs/ndevs/0", f"eth{number}")
        dgx.file(self.root, f"{port}/link_layer", "Ethernet")
        if not (self.root / "sys/class/infiniband/rxe0").is_symlink():
            dgx.link(self.root, "sys/class/infiniband/rxe0", "sys/devices/virtual/infiniband/rxe0")
        self._tell_name("add", "infiniband", "rxe0")
        self._ports_follow(f"eth{number}", state)
        self._tell_name("change", "net", f"eth{number}")

    @rule(slot=slots, state=carriers)
    def port_without_interface(self, slot: str, state: str) -> None:
        """Nobody tells of such a port: it is seen with whatever is told next."""
        number = SLOTS.index(slot) + 40
        net = self._folder(slot) / "net"
        if net.exists():
            for device in net.iterdir():
                (self.root / "sys/class/net" / device.name).unlink()
                self._tell_name("remove", "net", device.name)
            shutil.rmtree(net)
        port = self.root / f"sys/class/infiniband/mlx5_{number}/ports/1"
        if port.exists():
            (port / "gid_attrs/ndevs/0").write_text("\n")
            (port / "state").write_text("4: ACTIVE\n" if state == "up" else "1: DOWN\n")
            self._tell_name("change", "misc", "x")

    @rule(slot=slots)
    def renamed(self, slot: str) -> None:
        """The kernel tells of the new name alone."""
        number = SLOTS.index(slot) + 40
        for old, new in ((f"eth{number}", f"en{number}"), (f"en{number}", f"eth{number}")):
            link = self.root / "sys/class/net" / old
            if link.is_symlink():
                link.unlink()
                (self._folder(slot) / "net" / old).rename(self._folder(slot) / "net" / new)
                dgx.link(self.root, f"sys/class/net/{new}", f"{self._inside(slot)}/net/{new}")
                for named in (self.root / "sys/class/infiniband").glob("*/ports/1/gid_attrs/*/0"):
                    if named.read_text() == f"{old}\n":
                        named.write_text(f"{new}\n")
                self._tell_name("change", "net", new)
                break

    @rule(slot=slots, count=st.integers(0, 2))
    def functions_made(self, slot: str, count: int) -> None:
        """The physical function says how many virtual ones it has; those alone are told of."""
        if self._there(slot):
            dgx.file(self.root, f"{self._inside(slot)}/sriov_numvfs", str(count))
            if count and not self._there(VIRTUAL):
                dgx.function(self.root, f"{SWITCH}/{VIRTUAL}", *CARDS["nic"], 0)
            elif not count and self._there(VIRTUAL):
                self._wipe(VIRTUAL)
            else:
                self.pulled_out(slot)
                return
            self._tell("add" if count else "remove", "pci", VIRTUAL)

    @rule(ways=st.sets(st.sampled_from(["eth0", "eth40", "eth41", "br0"])))
    def routed(self, ways: set[str]) -> None:
        names = sorted(path.name for path in (self.root / "sys/class/net").iterdir())
        table = {
            "links": [{"index": i, "name": name} for i, name in enumerate(names)],
            "default_routes": dict.fromkeys(sorted(ways.intersection(names)), "IPv4"),
        }
        (self.root / "netlink.json").write_text(json.dumps(table))
        self._tell_name("change", ROUTES, "")

    @rule(minors=st.lists(st.integers(0, 3), unique=True, max_size=2))
    def library_answered(self, minors: list[int]) -> None:
        devices = [
            {"pci_address": f"0000:03:00.{minor}", "uuid": f"GPU-{minor}", "minor": minor}
            for minor in minors
        ]
        self.said = ("found", "", {"devices": devices})
        self._tell_name("change", LIBRARY, "nvidia")

    @rule(offline=st.sets(st.integers(1, 3)))
    def processors_changed(self, offline: set[int]) -> None:
        for cpu in (1, 2, 3):
            file = self.root / f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"
            if cpu in offline:
                file.unlink(missing_ok=True)
            else:
                file.write_text(f"{cpu // 2}\n")
        self._tell_name("offline", "cpu", "cpu1")

    @rule(major=st.sampled_from([231, 240, 507]))
    def module_loaded(self, major: int) -> None:
        text = f"Character devices:\n195 nvidia\n{major} nvidia-uvm\n\nBlock devices:\n"
        (self.root / "proc/devices").write_text(text)
        self._tell_name("add", "module", "nvidia_uvm")

    @rule()
    def told_of_nothing(self) -> None:
        self._tell_name("change", "misc", "x")

    @rule(what=st.sampled_from([LOST, ALL]))
    def events_were_lost(self, what: Event) -> None:
        self.events = {what}

    # ---- what must hold ----------------------------------------------------------------------

    @rule()
    def looked_at(self) -> None:
        before = self.inventory
        self.inventory = self.discovery.look(before, self.events)
        self.events = set()
        cold = scan(Host(self.root, probe=lambda _: self.said), self.providers, before)
        assert self.inventory == cold
        _, self.seen, number = advance(self.inventory, self.seen, self.number)
        differs = _without_counts(self.inventory) != _without_counts(before)
        if self.number:
            assert (number > self.number) == differs
        self.number = number

    @invariant()
    def all_is_as_a_cold_look_finds_it(self) -> None:
        if not self.lazy and self.events:
            self.looked_at()

    @invariant()
    def nothing_is_kept_of_what_is_gone(self) -> None:
        classes = ("bus/pci/devices", "class/net", "class/infiniband", "class/infiniband_verbs",
                   "class/infiniband_mad")  # fmt: skip
        there = {p.name for kind in classes for p in (self.root / "sys").glob(f"{kind}/*")}
        told = {event.name for event in self.events}
        memory = self.discovery._memory
        kept = {name for name, keys in memory._of.items() if any(map(memory._kept.get, keys))}
        assert kept <= there | told or not self.events.isdisjoint((LOST, ALL))
        slots = {name.rpartition(".")[0] for name in there | told}
        kept = {slot for slot, keys in memory._in.items() if any(map(memory._kept.get, keys))}
        assert kept <= slots or not self.events.isdisjoint((LOST, ALL))

    # ---- how ----------------------------------------------------------------------------------

    def _address(self, slot: str) -> str:
        return slot.rpartition("/")[2]

    def _folder(self, slot: str) -> Path:
        return self.root / "sys/devices" / SWITCH / slot

    def _inside(self, slot: str) -> str:
        return f"sys/devices/{SWITCH}/{slot}"

    def _ports_follow(self, interface: str, state: str) -> None:
        for named in (self.root / "sys/class/infiniband").glob("*/ports/1/gid_attrs/ndevs/0"):
            if named.read_text() == f"{interface}\n":
                port = named.parents[2]
                (port / "state").write_text("4: ACTIVE\n" if state == "up" else "1: DOWN\n")

    def _there(self, slot: str) -> bool:
        return (self._folder(slot) / "class").exists()

    def _bound(self, slot: str) -> bool:
        return (self._folder(slot) / "driver").is_symlink()

    def _unbound(self, slot: str) -> None:
        if not self._bound(slot):
            return
        (self._folder(slot) / "driver").unlink()
        for kind in ("net", "infiniband", "infiniband_verbs", "infiniband_mad"):
            folder = self._folder(slot) / kind
            for device in folder.iterdir() if folder.exists() else ():
                (self.root / "sys/class" / kind / device.name).unlink()
                self._tell_name("remove", kind, device.name)
            shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(self._folder(slot) / "drm", ignore_errors=True)
        self._tell("unbind", "pci", slot)

    def _wipe(self, slot: str) -> None:
        for kind in ("net", "infiniband", "infiniband_verbs", "infiniband_mad"):
            folder = self._folder(slot) / kind
            for device in folder.iterdir() if folder.exists() else ():
                (self.root / "sys/class" / kind / device.name).unlink(missing_ok=True)
        shutil.rmtree(self._folder(slot))
        (self.root / "sys/bus/pci/devices" / self._address(slot)).unlink()

    def _tell(self, action: str, subsystem: str, slot: str) -> None:
        self._tell_name(action, subsystem, self._address(slot))

    def _tell_name(self, action: str, subsystem: str, name: str) -> None:
        if self.events.isdisjoint((LOST, ALL)):
            self.events.add(Event(action, subsystem, name))


def _without_counts(inventory):
    """Give what the generation speaks of."""
    told = inventory
    return told.types, told.attributes, told.topology, told.control, told.instances
