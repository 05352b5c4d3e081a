"""How far two instances are from each other, in the words of `nvidia-smi topo -m`. Pure.

From near to far, as its legend has them:

- `X`: the instance itself, and nothing else.
- `NV12`: a bonded set of 12 NVLinks, direct or through NVSwitches. `NV` where their number is not
  known.
- `XGMI1`: the same for AMD's links. nvidia-smi has no word for them; this one is that of rocm-smi,
  with a number. `XGMI` where two cards of one hive have no link of their own (it takes a hop over
  a third), or the number is not known.
- `PIX`: at most a single PCIe bridge, that is one switch. So are the functions of one card, and a
  card and its slices or shares.
- `PXB`: several PCIe bridges, but no host bridge.
- `PHB`: one host bridge (of which a CPU has several).
- `NODE`: host bridges of one NUMA node.
- `SYS`: NUMA nodes that differ. Where firmware does not tell the nodes of a host that has several,
  nothing nearer is known. A host that has one, or none at all (many virtual machines), is one node.

MIG slices have no NVLink (MIG User Guide, "Limitations"), so theirs is the way over PCI.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.nvlink import HIDDEN

_RANKS = {"X": 0, "PIX": 200, "PXB": 300, "PHB": 400, "NODE": 500, "SYS": 600}
_LINKED = 100  # less the number of links: more of them are nearer
_ADDRESS = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")
_KEPT = 4096  # pairs that are remembered: placement asks for the same ones each time
_FAR = 255  # what the kernel says of a NUMA node that cannot be reached


class Site(NamedTuple):
    """Where an instance is: the host bridge and the bridges below it, and the NUMA node.

    `switches` are the upstream ports of the PCIe switches on the way, from the root down. `path`
    is empty for what hangs on no PCI bus; `numa` is -1 where it is not known, and the host has
    several.
    """

    address: str
    path: tuple[str, ...]
    switches: tuple[str, ...]
    numa: int


def rank(word: str) -> int:
    """Give a number for a word: the nearer, the less. Only the order has a meaning."""
    if word in _RANKS:
        return _RANKS[word]
    return _LINKED - min(int(word.lstrip("NVXGMI") or 0), _LINKED - 1)


def shared(one: Site, other: Site) -> int:
    """Count the bridges that two have in common, the host bridge among them."""
    count = 0
    for mine, theirs in zip(one.path, other.path, strict=False):
        if mine != theirs:
            break
        count += 1
    return count


def common_switch(one: Site, other: Site) -> str:
    """Give the upstream port of the nearest switch that two stand below; empty where none is."""
    both = [mine for mine, theirs in zip(one.switches, other.switches, strict=False)
            if mine == theirs]  # fmt: skip
    return both[-1] if both else ""


class Layout:
    """Where the instances of one inventory are, and what is between them."""

    def __init__(self, topology: Mapping[str, Any], instances: Mapping[str, Instance]) -> None:
        """Take the inventory's topology, and its instances by their ids."""
        self._instances = instances
        self._tree: Mapping[str, Any] = topology.get("pci", {})
        nodes = topology.get("numa_nodes", ())
        memory = topology.get("memory_nodes", ())
        order = sorted([node["id"] for node in nodes] + list(memory))
        self._nodes: dict[int, dict[int, int]] = {
            node["id"]: dict(zip(order, node.get("distances", ()), strict=False)) for node in nodes
        }
        self._packages: dict[int, int] = {node["id"]: node.get("package", -1) for node in nodes}
        self._memory = frozenset(memory)
        self._links: Iterable[Mapping[str, Any]] = topology.get("links", ())
        self._rails: Mapping[str, int] = topology.get("rails", {}).get("gpus", {})
        self._sites: dict[str, Site] = {}
        self._words: dict[tuple[str, str], str] = {}
        self._near: dict[tuple[str, str], tuple[int, int, int]] = {}

    def site(self, instance_id: str) -> Site:
        """Say where an instance is. Raise KeyError where there is no such instance."""
        if instance_id not in self._sites:
            self._sites[instance_id] = self._find(self._instances[instance_id])
        return self._sites[instance_id]

    def between(self, one: str, other: str) -> str:
        """Give the word for the distance of two instances, by their ids."""
        if one == other:
            return "X"
        if (known := self._words.get((one, other))) is not None:
            return known
        linked = "" if self._one_silicon(one, other) else self._linked(one, other)
        word = linked or self.between_on_pci(one, other)
        if len(self._words) < _KEPT:
            self._words[one, other] = word
        return word

    def between_on_pci(self, one: str, other: str) -> str:
        """Give the word for two instances as if no link went past PCI (`nvidia-smi topo -mp`)."""
        if one == other:
            return "X"
        here, there = self.site(one), self.site(other)
        if here.address and here.address[:-1] == there.address[:-1]:
            return "PIX"
        if self._one_silicon(one, other):
            return "PIX"
        common = shared(here, there)
        if common >= 2:  # the host bridge, and a bridge below it
            return "PIX" if max(len(here.path), len(there.path)) - common <= 1 else "PXB"
        if common:
            return "PHB"
        return "NODE" if here.numa == there.numa != -1 else "SYS"

    def nearness(self, one: str, other: str) -> tuple[int, int, int]:
        """Give a key that sorts pairs by their way over PCI: the nearer, the less.

        Of equal words, more bridges in common are nearer, and then a lesser distance of the NUMA
        nodes, as firmware tells it.
        """
        if (known := self._near.get((one, other))) is not None:
            return known
        here, there = self.site(one), self.site(other)
        found = (
            rank(self.between_on_pci(one, other)),
            -shared(here, there),
            self.numa_distance(here.numa, there.numa),
        )
        if len(self._near) < _KEPT:
            self._near[one, other] = found
        return found

    def numa_distance(self, one: int, other: int) -> int:
        """Give the distance of two NUMA nodes as the kernel has it: 10 is the node itself."""
        if one == other != -1:
            return 10
        return self._nodes[one].get(other, _FAR) if one in self._nodes else _FAR

    def function(self, instance_id: str) -> Mapping[str, Any]:
        """Give what the topology has of an instance's PCI function; nothing where it has none."""
        address = self._instances[instance_id].text("pci_address")
        found: Mapping[str, Any] = self._tree.get(address, {})
        return found

    def rail(self, instance_id: str) -> int | None:
        """Give the rail of a NIC, or of the NIC that is a GPU's own; None where there is none.

        Slices and shares are on the rail of their card.
        """
        instance = self._instances[instance_id]
        for one in (instance_id, instance.parent or ""):
            if one in self._rails:
                return self._rails[one]
        told = instance.number("rail")
        return told if told >= 0 else None

    def package(self, numa: int) -> int:
        """Give the package (the socket) that a NUMA node is in; -1 where that is not known."""
        return self._packages.get(numa, -1)

    def _find(self, instance: Instance) -> Site:
        address = instance.text("pci_address")
        function = self._tree.get(address)
        if function:
            path = (function["root"], *function["bridges"])
            # Below a root port each switch is two bridges: its upstream port and a downstream port.
            switches = path[2:-1:2]
        else:  # a simulated or declared one: it says of itself what is known
            root, switch = instance.text("pcie_root"), instance.text("pcie_switch")
            switches = (switch,) if root and switch else ()
            path = (root, *switches) if root else ()
        numa = instance.number("numa_node", (function or {}).get("numa_node", -1))
        if numa == -1:
            numa = self._by_root.get(path[0], -1) if path else -1
        if numa == -1 and len(self._known) <= 1:
            numa = next(iter(self._known), 0)
        return Site(address, path, switches, self._with_cpus(numa))

    @cached_property
    def _by_root(self) -> dict[str, int]:
        """The NUMA node of each host bridge whose functions are of one mind; some tell none."""
        found: dict[str, set[int]] = {}
        for function in self._tree.values():
            if "numa_node" in function:
                found.setdefault(function["root"], set()).add(function["numa_node"])
        return {root: min(numbers) for root, numbers in found.items() if len(numbers) == 1}

    @cached_property
    def _known(self) -> frozenset[int]:
        """The NUMA nodes that there are; as far as functions tell, where the kernel does not."""
        return frozenset(self._nodes or self._by_root.values())

    def _one_silicon(self, one: str, other: str) -> bool:
        """Say whether two are parts of one card: slices, shares, partitions, and the card."""
        address = self.site(one).address
        return other in self._instances[one].overlaps or (
            address != "" and address == self.site(other).address
        )

    def _with_cpus(self, numa: int) -> int:
        """Give the nearest NUMA node that has CPUs: the memory of a card is a node, too."""
        if numa not in self._memory or not self._nodes:
            return numa
        return min(self._nodes, key=lambda node: (self._nodes[node].get(numa, _FAR), node))

    # ---- links that go past PCI -----------------------------------------------------------------

    def _linked(self, one: str, other: str) -> str:
        here, there = self._card(one), self._card(other)
        if here is None or there is None or here.id == there.id:
            return ""
        for kind, word, domain, number in (
            ("nvlink", "NV", "nvlink_domain", "nvlink_count"),
            ("xgmi", "XGMI", "xgmi_hive", ""),
        ):
            pair = frozenset((here.id, there.id))
            if count := self._direct[kind, pair]:
                return f"{word}{count}"
            mine, theirs = here.text(domain), there.text(domain)
            if mine and theirs and mine != theirs:
                continue
            through = min(self._through[kind, here.id], self._through[kind, there.id])
            if through:
                return f"{word}{through}"
            if mine and mine == theirs:
                told = min(here.number(number), there.number(number)) if number else -1
                return f"{word}{told}" if told > 0 else word
        return ""

    def _card(self, instance_id: str) -> Instance | None:
        """Give whose links an instance uses: its own, or those of the card that it is a share of.

        None where it can use none.
        """
        instance = self._instances[instance_id]
        if instance.type == "mps":
            return self._instances.get(instance.parent or "", instance)
        return None if instance.type in ("mig", "gi", "nic", "ports") else instance

    @cached_property
    def _direct(self) -> Counter[tuple[str, frozenset[str]]]:
        found: Counter[tuple[str, frozenset[str]]] = Counter()
        for link in self._links:
            found[link["kind"], frozenset((link["one"], link["other"]))] += link["count"]
        return found

    @cached_property
    def _through(self) -> Counter[tuple[str, str]]:
        """How many links each card has to switches."""
        found: Counter[tuple[str, str]] = Counter()
        for link in self._links:
            if link["other"] == HIDDEN or _ADDRESS.fullmatch(link["other"]):
                found[link["kind"], link["one"]] += link["count"]
        return found
