"""What is looked at after an event is what a look at everything would find."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
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
         "other": ("0x010802", "0x144d:0xa80a")}  # fmt: skip
slots = st.sampled_from(SLOTS)


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
            self._tell("bind", "pci", slot)

    @rule(slot=slots)
    def unbound(self, slot: str) -> None:
        self._unbound(slot)

    @rule(interface=st.sampled_from(["eth0", "eth40", "eth41", "eth42"]),
          name=st.sampled_from(["operstate", "address", "speed", "carrier"]),
          value=st.sampled_from(["up", "down", "25000", "02:00:00:00:00:99", ""]))  # fmt: skip
    def link_changed(self, interface: str, name: str, value: str) -> None:
        folder = self.root / "sys/class/net" / interface
        if folder.exists():
            (folder / name).write_text(f"{value}\n")
            rdma = self.root / f"sys/class/infiniband/mlx5_{interface[3:]}/ports/1/state"
            if rdma.exists():
                rdma.write_text("4: ACTIVE\n" if value == "up" else "1: DOWN\n")
            self._tell_name("change", "net", interface)

    @rule(ways=st.sets(st.sampled_from(["eth0", "eth40", "eth41", "br0"])))
    def routed(self, ways: set[str]) -> None:
        names = sorted(path.name for path in (self.root / "sys/class/net").iterdir())
        table = {
            "links": [{"index": i, "name": name} for i, name in enumerate(names)],
            "default_routes": sorted(ways.intersection(names)),
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
        kept = {name for name, keys in memory._of.items() if any(memory._kept[key] for key in keys)}
        assert kept <= there | told or not self.events.isdisjoint((LOST, ALL))

    # ---- how ----------------------------------------------------------------------------------

    def _address(self, slot: str) -> str:
        return slot.rpartition("/")[2]

    def _folder(self, slot: str) -> Path:
        return self.root / "sys/devices" / SWITCH / slot

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


Changing.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
test_any_order_of_changes = Changing.TestCase
