"""The topology file that NCCL and RCCL read (`NCCL_TOPO_FILE`).

Source: NCCL, src/graph/xml.cc and topo.cc. `cpu` is a NUMA node; below it are switches (their
upstream ports, as NCCL looks at every second level of sysfs), cards and NICs. What NCCL finds out
itself when it runs is left to it: it fills in what a file lacks. So `rank` and `gdr` of a card are
not told, nor `dev` of a net: they differ from job to job, and what a file says of `gdr` NCCL
believes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from xml.etree import ElementTree as ET

from msgspec import structs

from xce_nodeagent.export.cpus import listed, mask
from xce_nodeagent.export.offer import in_bus_order
from xce_nodeagent.model.distance import Layout
from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.model.nvlink import HIDDEN

_NVSWITCH = "0x068000"
_NO_ADDRESS = "fffffff:ffff:ff"  # what NVML tells of a switch that it hides
_PLACED = ("02", "03", "12")  # PCI base classes: network, display, accelerator


def topology(inventory: Inventory) -> str:
    """Give the XML of a host's cards, its NICs, and the switches between them.

    Also of what is no instance, such as a card that nobody knows: NCCL takes what it needs.
    """
    writer = _Writer(inventory)
    every = [one for one in in_bus_order(inventory.instances) if one.text("pci_address")]
    told = inventory.topology.get("pci", {})
    strange = [at for at in told if str(told[at].get("class", ""))[:2] in _PLACED]
    known = [one.text("pci_address") for one in every if one.type in ("gpu", "accelerator", "nic")]
    for address in sorted({*strange, *known}, key=lambda at: at.rjust(16, "0")):
        writer.place(address)
    for one in every:
        writer.describe(one)
    ET.indent(writer.system)
    return ET.tostring(writer.system, encoding="unicode") + "\n"


class _Writer:
    """Puts the tree together, function by function."""

    def __init__(self, inventory: Inventory) -> None:
        amd = any(one.type == "gpu" and one.text("vendor") == "amd" for one in inventory.instances)
        self.system = ET.Element("system", version="2" if amd else "1")
        self._inventory = inventory
        self._functions: Mapping[str, Any] = inventory.topology.get("pci", {})
        self._bridges: Mapping[str, Any] = inventory.topology.get("bridges", {})
        self._places: dict[str, ET.Element] = {}
        self._gpus = 0
        at = {one.text("pci_address"): one for one in inventory.instances}
        nobody = Instance(id="", type="", provider="")
        self._layout = Layout(
            inventory.topology,
            {
                address: at.get(address)
                or structs.replace(nobody, id=address, attributes={"pci_address": address})
                for address in {*self._functions, *at}
            },
        )

    def place(self, address: str) -> None:
        """Add a function below its NUMA node and its switches."""
        site = self._layout.site(address)
        here = self._cpu(site.numa)
        for switch in site.switches:
            above = site.path[site.path.index(switch) - 1]
            here = self._pci(here, switch, self._bridges.get(switch, {}), above)
        above = site.path[-1] if site.path else ""
        self._pci(here, address, self._functions.get(address, {}), above)

    def describe(self, one: Instance) -> None:
        """Say what an instance is, at its function; others may be there already (parts, ports)."""
        pci = self._places.get(one.text("pci_address"))
        if pci is None:
            return
        if one.type == "nic":
            self._net(pci, one)
        elif one.type == "gpu" and pci.find("gpu") is None:
            self._gpu(pci, one)

    def _cpu(self, numa: int) -> ET.Element:
        key = f"numa {numa}"
        if key not in self._places:
            told = self._inventory.topology.get("cpu", {})
            nodes = self._inventory.topology.get("numa_nodes", ())
            # Where firmware tells of no node, all CPUs are as near.
            lists = [node["cpus"] for node in nodes if numa < 0 or node["id"] == numa]
            cpus = {cpu for text in lists for cpu in listed(text)}
            cpu = ET.SubElement(self.system, "cpu", numaid=str(numa))
            if cpus:  # else NCCL looks itself
                cpu.set("affinity", mask(cpus))
            for name, key_told in (("arch", "arch"), ("vendor", "vendor"),
                                   ("familyid", "family"), ("modelid", "model")):  # fmt: skip
                if key_told in told:
                    cpu.set(name, _clean(str(told[key_told])))
            self._places[key] = cpu
        return self._places[key]

    def _pci(
        self, parent: ET.Element, address: str, told: Mapping[str, Any], above: str
    ) -> ET.Element:
        """Give the element of a function, made where it is not there.

        `above` is the other end of its link: a root port, or a port of a switch.
        """
        if address in self._places:
            return self._places[address]
        pci = ET.SubElement(parent, "pci", busid=address)
        for name in ("class", "vendor", "device", "subsystem_vendor", "subsystem_device"):
            if name in told:
                pci.set(name, f"0x{told[name]}")
        ends = [told, self._bridges.get(above, {})]
        speeds = [end["link_speed"] for end in ends if "link_speed" in end]
        widths = [end["link_width"] for end in ends if "link_width" in end]
        # NCCL demands both; empty and 0 are what it writes itself where sysfs has no such file.
        pci.set("link_speed", _clean(min(speeds, key=_gigatransfers, default="")))
        pci.set("link_width", str(min(widths, default=0)))
        self._places[address] = pci
        return pci

    def _gpu(self, pci: ET.Element, one: Instance) -> None:
        number = one.number("index")
        gpu = ET.SubElement(pci, "gpu", dev=str(self._gpus if number < 0 else number))
        self._gpus += 1
        major, _, minor = one.text("compute_capability").partition(".")
        if major.isdecimal() and minor.isdecimal():
            gpu.set("sm", f"{major}{minor}")  # 9.0 is 90, 10.3 is 103
        for tag, target, count in self._links(one):
            kind = self._functions.get(target, {}).get("class", "030200")
            kind = _NVSWITCH if target == _NO_ADDRESS else f"0x{kind}"
            ET.SubElement(gpu, tag, target=target, count=str(count), tclass=kind)

    def _links(self, one: Instance) -> Iterator[tuple[str, str, int]]:
        """Give a card's links as (tag, PCI address of the other end, how many)."""
        every = self._inventory.by_id()
        for link in self._inventory.topology.get("links", ()):
            if one.id not in (link["one"], link["other"]):
                continue
            other = link["other"] if link["one"] == one.id else link["one"]
            target = every[other].text("pci_address") if other in every else other
            if target == HIDDEN:
                target = _NO_ADDRESS
            if target:
                yield link["kind"], target, link["count"]

    @staticmethod
    def _net(pci: ET.Element, one: Instance) -> None:
        name = one.text("rdma_device") or one.text("netdev")
        if not name:
            return
        nic = pci.find("nic")
        nic = ET.SubElement(pci, "nic") if nic is None else nic
        port = one.number("rdma_port", 0) if one.text("rdma_device") else 0
        net = ET.SubElement(nic, "net", name=_clean(name), port=str(port))
        if (speed := one.number("speed_mbps")) >= 0:
            net.set("speed", str(speed))


def _gigatransfers(speed: str) -> float:
    number = re.match(r"\d+(\.\d+)?", speed, re.ASCII)
    return float(number[0]) if number else 0.0


def _clean(text: str) -> str:
    """Leave out what XML has no way to write (XML 1.0, Char), and half surrogates."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)
