"""NVIDIA cards and their MIG slices, as the driver's library reports them.

What NVML does not know comes from the kernel: the numbers of device nodes from /proc/devices and
/proc/driver (NVIDIA driver README, "The /proc file system interface"), the rest from sysfs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from xce_nodeagent.host import Host, fact, nvml, pci
from xce_nodeagent.model import environment
from xce_nodeagent.model.instance import AttributeValue, DeviceNode, Instance, ResourceType
from xce_nodeagent.model.inventory import ControlNode
from xce_nodeagent.model.plan import AllowDevice, Plan
from xce_nodeagent.model.resource import GPU, MIG
from xce_nodeagent.provider import Found, Grant, Provider

_VENDOR = 0x10DE
_CLASSES = frozenset({0x0300, 0x0302})  # VGA controller, 3D controller
_MAJOR = 195  # of /dev/nvidia* (kernel: admin-guide/devices.txt)
_UNBOUND = "no driver is bound to it"
_COPIED = ("memory_bytes", "compute_capability")


class Nvidia:
    """The provider. Where the host has a prober, that asks the library; else it is asked here."""

    name: ClassVar[str] = "nvidia"
    types: ClassVar[tuple[ResourceType, ...]] = (GPU, MIG)

    def discover(self, host: Host) -> Found:
        """Ask the library, and say what it means that it answers nothing."""
        if host.probe is not None:
            state, reason, facts = host.probe("nvidia")
        else:
            recorded = host.answer("nvml", nvml.probe, nvml.Answer)
            state, reason, facts = recorded or (
                "none",
                "no driver was asked when it was recorded",
                {},
            )
        cards = _on_pci(host)
        if state == "found":
            facts = fact.checked(facts)
            nodes = _Nodes(host)
            devices = _devices(host, facts, cards)
            instances = tuple(_instances(host, facts, devices, nodes))
            silent = {address for address, device in devices.items() if _lost(device)}
            return Found(
                instances=instances,
                # A card that is lost tells of no slices; jobs may have them.
                control=(*nodes.control(), *nodes.unknown_slices(instances)),
                lost=frozenset(
                    one.id
                    for one in instances
                    if one.type == "gpu" and one.text("pci_address") in silent
                ),
            )
        driver = bool(host.names("/proc/driver/nvidia"))
        if state == "not_yet" and not driver and not cards:
            state = "none"
        if state == "none" and cards:
            shown = ", ".join(cards[:8])
            reason = f"{len(cards)} NVIDIA cards on PCI ({shown}), but {reason}"
            state = "error"
        devices = _devices(host, {"devices": []}, cards)
        nodes = _Nodes(host)
        return Found(
            state=_STATES.get(state, "error"),
            reason=reason,
            instances=tuple(_instances(host, {}, devices, nodes)),
            # A library that hangs while the agent starts must not open them to jobs that run.
            control=(*nodes.control(), *nodes.unknown_slices()) if driver else (),
        )

    def plan(self, grant: Grant) -> Plan:
        """Allow the cards' nodes and the control nodes, and name the cards to CUDA."""
        nodes = [node for one in grant.instances for node in one.devices]
        allowed = tuple(AllowDevice(node) for node in dict.fromkeys([*nodes, *grant.control]))
        return Plan(
            allowed + environment.nvidia(grant.instances, grant.visible, contained=grant.contained)
        )


_STATES: Mapping[str, Any] = {"none": "none", "not_yet": "not_yet", "error": "error"}


def _on_pci(host: Host) -> tuple[str, ...]:
    """Give the addresses of NVIDIA's display and 3D controllers, sorted.

    The driver keeps a card that the bus does not show any more.
    """
    found = {
        address
        for address, code in pci.functions(host).items()
        if code >> 8 in _CLASSES and pci.identifier(host, address, "vendor") == _VENDOR
    }
    return tuple(sorted(found.union(host.names(f"{nvml.DRIVER}/gpus"))))


def _devices(
    host: Host, facts: Mapping[str, Any], cards: Sequence[str]
) -> dict[str, Mapping[str, Any]]:
    """Give the facts of each card by its address, in the order of the bus."""
    devices = {
        device["pci_address"]: device for device in facts["devices"] if "pci_address" in device
    }
    # A card that the library does not report is on the bus all the same, and is not to be used.
    for address in cards:
        if address not in devices:
            bound = host.real(f"/sys/bus/pci/devices/{address}/driver")
            why = f"it is bound to the driver {bound.rpartition('/')[2]}" if bound else _UNBOUND
            lost = f"the NVIDIA library does not report it; {why}"
            devices[address] = {"pci_address": address, "lost": lost}
    return {at: devices[at] for at in sorted(devices, key=lambda address: address.rjust(16, "0"))}


def _instances(
    host: Host, facts: Mapping[str, Any], devices: Mapping[str, Mapping[str, Any]], nodes: _Nodes
) -> Iterator[Instance]:
    for index, device in enumerate(devices.values()):
        yield from _card(host, facts, device, index, nodes)


def _card(
    host: Host, facts: Mapping[str, Any], device: Mapping[str, Any], index: int, nodes: _Nodes
) -> Iterator[Instance]:
    address = device["pci_address"]
    told = _told_by_driver(host, address)
    identity = _known(device.get("uuid", "")) or _known(told.get("GPU UUID", ""))
    minor = device.get("minor", _whole(told.get("Device Minor", "")))
    attributes: dict[str, AttributeValue] = {
        "vendor": "nvidia",
        "index": index,
        **{name: device[name] for name in _COPIED if name in device},
    }
    if name := device.get("name") or told.get("Model") or _number_of(host, address):
        attributes["model"] = name
    if identity:
        attributes["uuid"] = identity
    if minor is not None:
        attributes["minor"] = minor
    if version := facts.get("driver_version"):
        attributes["driver_version"] = version
    attributes.update(pci.attributes(host, address))
    reason = _unhealthy(device, identity, minor) or nodes.lacking
    own = nodes.card(minor, address)
    card = identity or f"gpu-{address}"
    slices = tuple(
        _slice(one, card, of_card=attributes, own=own, minor=minor, nodes=nodes, lost=_lost(device))
        for one in device.get("mig", ())
        if "uuid" in one or not _lost(device)
    )
    yield Instance(
        id=card,
        type="gpu",
        provider="nvidia",
        overlaps=tuple(sorted(one.id for one in slices)),
        healthy=not reason,
        reason=reason,
        attributes=attributes,
        devices=own,
    )
    yield from slices


def _known(uuid: str) -> str:
    """Give a UUID; nothing for `GPU-????????-...`, as the driver writes what it cannot ask for."""
    return "" if "?" in uuid else uuid


def _lost(device: Mapping[str, Any]) -> str:
    """Say why a card cannot be asked; empty where it can."""
    if device.get("lost"):
        return str(device["lost"])
    if device.get("skipped"):
        return f"it {nvml.LEFT_ALONE}"
    if why := device.get("missing", {}).get("mig"):
        return f"its slices are not known: {why}"
    return ""


def _unhealthy(device: Mapping[str, Any], identity: str, minor: int | None) -> str:
    if why := _lost(device):
        return why
    missing = device.get("missing", {})
    if not identity:
        return f"its UUID is not known: {missing.get('uuid', 'no answer')}"
    if minor is None:
        return f"its device node is not known: {missing.get('minor', 'no answer')}"
    if device.get("mig_mode") and not device.get("mig"):
        return "it is in MIG mode and has no slices"
    return ""


def _slice(
    one: Mapping[str, Any],
    card: str,
    *,
    of_card: Mapping[str, AttributeValue],
    own: tuple[DeviceNode, ...],
    minor: int | None,
    nodes: _Nodes,
    lost: str,
) -> Instance:
    """Make a slice. It is used through its card's node and the two capabilities of its own.

    `lost` says why its card cannot be asked, if that is so.
    """
    gpu_instance, compute_instance = one.get("gpu_instance"), one.get("compute_instance")
    attributes = {key: value for key, value in of_card.items() if key != "memory_bytes"}
    for key in ("uuid", "memory_bytes", "gpu_instance", "compute_instance"):
        if key in one:
            attributes[key] = one[key]
    # "NVIDIA A100-SXM4-80GB MIG 1g.10gb"
    if profile := str(one.get("name", "")).partition(" MIG ")[2]:
        attributes["mig_profile"] = profile
    caps = nodes.capabilities(minor, gpu_instance, compute_instance)
    reason = lost or nodes.lacking
    if not lost and "uuid" not in one:
        reason = f"its UUID is not known: {one.get('missing', {}).get('uuid', 'no answer')}"
    elif not lost and len(caps) < 2:
        reason = "its capability nodes are not in /proc/driver/nvidia-caps/mig-minors"
    return Instance(
        id=one.get("uuid") or f"mig-{card}-{gpu_instance}-{compute_instance}",
        type="mig",
        provider="nvidia",
        parent=card,
        overlaps=(card,),
        healthy=not reason,
        reason=reason,
        attributes=attributes,
        devices=own + caps,
    )


def _told_by_driver(host: Host, address: str) -> dict[str, str]:
    """Read `Key: value` lines; the driver answers also for a card that NVML has lost."""
    text = host.read(f"/proc/driver/nvidia/gpus/{address}/information") or ""
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _number_of(host: Host, address: str) -> str:
    """Give the PCI ids, for a card whose name nobody tells."""
    device = pci.identifier(host, address, "device")
    return "" if device is None else f"{_VENDOR:04x}:{device:04x}"


def _whole(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


class _Nodes:
    """The device nodes of the driver, by the numbers that it registered."""

    def __init__(self, host: Host) -> None:
        self._host = host
        text = (host.read("/proc/devices") or "").partition("Block devices:")[0]
        self._majors = {
            match[2]: int(match[1])
            for match in re.finditer(r"^ *(\d+) (nvidia\S*)$", text, re.MULTILINE)
        }
        lines = (host.read("/proc/driver/nvidia-caps/mig-minors") or "").splitlines()
        self._minors = {
            name: int(minor)
            for name, _, minor in (line.partition(" ") for line in lines)
            if minor.strip().isdecimal()
        }

    @property
    def lacking(self) -> str:
        """Say what no CUDA program can do without and is not there; empty where nothing is.

        The module comes with the first program that loads it; a job that is bound before would be
        fenced from it.
        """
        if not self._majors or "nvidia-uvm" in self._majors:
            return ""
        return "nvidia-uvm is not loaded, and CUDA needs it: `nvidia-modprobe -u -c=0` loads it"

    def card(self, minor: int | None, address: str) -> tuple[DeviceNode, ...]:
        """Give a card's own node and its DRM nodes."""
        found = [] if minor is None else [DeviceNode(f"/dev/nvidia{minor}", "c", _MAJOR, minor)]
        folder = f"/sys/bus/pci/devices/{address}/drm"
        for name in self._host.names(folder):
            numbers = re.fullmatch(r"(\d+):(\d+)", self._host.read(f"{folder}/{name}/dev") or "")
            if numbers:
                found.append(DeviceNode(f"/dev/dri/{name}", "c", int(numbers[1]), int(numbers[2])))
        return tuple(found)

    def capabilities(
        self, gpu: int | None, gpu_instance: int | None, compute_instance: int | None
    ) -> tuple[DeviceNode, ...]:
        """Give the nodes that let a process use a slice; fewer than two if they are not known."""
        names = (
            f"gpu{gpu}/gi{gpu_instance}/access",
            f"gpu{gpu}/gi{gpu_instance}/ci{compute_instance}/access",
        )
        return tuple(self._capability(self._minors[name]) for name in names if name in self._minors)

    def control(self) -> Iterator[ControlNode]:
        """Give the nodes that every CUDA program needs, and those that none may have."""
        yield ControlNode(DeviceNode("/dev/nvidiactl", "c", _MAJOR, 255), granted=True)
        yield ControlNode(DeviceNode("/dev/nvidia-modeset", "c", _MAJOR, 254), granted=False)
        uvm = self._majors.get("nvidia-uvm")
        if uvm is not None:
            yield ControlNode(DeviceNode("/dev/nvidia-uvm", "c", uvm, 0), granted=True)
            yield ControlNode(DeviceNode("/dev/nvidia-uvm-tools", "c", uvm, 1), granted=True)
        if "nvidia-caps" in self._majors:
            for name in ("config", "monitor"):
                if name in self._minors:
                    yield ControlNode(self._capability(self._minors[name]), granted=False)
        imex = self._majors.get("nvidia-caps-imex-channels")
        if imex is not None:
            folder = "/dev/nvidia-caps-imex-channels"
            for name in self._host.names(folder):
                number = name.removeprefix("channel")
                if number.isdecimal():
                    node = DeviceNode(f"{folder}/{name}", "c", imex, int(number))
                    yield ControlNode(node, granted=False)

    def unknown_slices(self, told: Iterable[Instance] = ()) -> Iterator[ControlNode]:
        """Give the nodes of all slices that there are and that are none of what is `told`."""
        known = {node for instance in told for node in instance.devices}
        there = set(self._host.names("/dev/nvidia-caps"))
        for name, minor in self._minors.items():
            node = self._capability(minor)
            if name.startswith("gpu") and f"nvidia-cap{minor}" in there and node not in known:
                yield ControlNode(node, granted=False)

    def _capability(self, minor: int) -> DeviceNode:
        major = self._majors.get("nvidia-caps", 0)
        return DeviceNode(f"/dev/nvidia-caps/nvidia-cap{minor}", "c", major, minor)


PROVIDER: Provider = Nvidia()
