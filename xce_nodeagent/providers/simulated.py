"""Simulated: the cards and NICs of a machine that is not here, from a profile.

Selection, binding and fencing are real; only the hardware is not. The device nodes are real
character nodes with majors that Linux keeps for local use, so that a fence has something to
refuse. They are made by whoever has the right to (`nodes` lists them), not by discovery.
"""

from __future__ import annotations

import tomllib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from xce_nodeagent.errors import BadConfig
from xce_nodeagent.host import Host
from xce_nodeagent.model import environment, share
from xce_nodeagent.model.instance import AttributeValue, DeviceNode, Instance, ResourceType
from xce_nodeagent.model.inventory import ControlNode
from xce_nodeagent.model.major import LOCAL_MAJORS, character_drivers
from xce_nodeagent.model.plan import AllowDevice, Plan, SetEnv
from xce_nodeagent.model.resource import GPU, MIG, MPS, NIC
from xce_nodeagent.provider import Found, Grant, Provider

PROFILES = Path(__file__).with_name("profiles")
DOMAIN = 0xFF00
"""Added to a profile's PCI domains, so that its addresses are not those of real cards: firmware
counts domains from 0 up, and Linux numbers those of VMD from 0x10000."""

_SPACE = uuid.UUID("9d2f3c1e-6a57-5b0e-8f43-2c1d7a90be11")  # ours; any constant will do
_MIG_CONFIG, _MIG_MONITOR = 1, 2  # /proc/driver/nvidia-caps/mig-minors
_RDMA_CM = "rdma_cm"


class Simulated:
    """The provider. The profile is `host.simulate`."""

    name: ClassVar[str] = "simulated"
    types: ClassVar[tuple[ResourceType, ...]] = (GPU, MIG, MPS, NIC)
    subsystems: ClassVar[frozenset[str]] = frozenset({"module"})

    def discover(self, host: Host) -> Found:
        """Build the profile's instances. Raise BadConfig where there is no such profile."""
        if not host.simulate:
            return Found()  # nobody misses it
        profile = load(host.simulate)
        taken = character_drivers(host.read("/proc/devices") or "")
        majors = [major for major in LOCAL_MAJORS if major not in taken]
        if len(majors) < 3:
            return Found(state="error", reason="/proc/devices: fewer than 3 local majors are free")
        build = _Build(host.simulate, profile, host.device_directory, majors[:3])
        gpus = tuple(build.gpus())
        cards = tuple(build.slices(gpus))
        if profile["vendor"] == "nvidia":  # whose MPS needs no daemon for cards that are not here
            cards = share.divided(cards, host.mps, lambda _: True)
        return Found(instances=(*cards, *build.nics()), control=tuple(build.control()))

    def plan(self, grant: Grant) -> Plan:
        """Allow the nodes of the granted instances and the control nodes of their kinds."""
        cards = [one for one in grant.instances if one.type in ("gpu", "mig", "mps")]
        nics = [one for one in grant.instances if one.type == "nic"]
        nodes = [node for one in grant.instances for node in one.devices]
        nodes += [
            node
            for node in grant.control
            if (nics if node.path.endswith(f"/{_RDMA_CM}") else cards)
        ]
        env: tuple[SetEnv, ...] = ()
        if cards:
            library = environment.amd if cards[0].text("vendor") == "amd" else environment.nvidia
            env += library(cards, grant.visible, contained=grant.contained)
        if nics:
            env += environment.nics(nics)
        return Plan(tuple(AllowDevice(node) for node in dict.fromkeys(nodes)) + env)


def names() -> tuple[str, ...]:
    """Give the names of the profiles that there are."""
    return tuple(sorted(path.stem for path in PROFILES.glob("*.toml")))


def load(name: str) -> dict[str, Any]:
    """Read a profile; raise BadConfig where there is none of that name."""
    if name not in names():
        raise BadConfig(
            f"simulation profile {name[:80]!r}: there is none; there are {', '.join(names())}",
            profile=name[:80],
        )
    return tomllib.loads((PROFILES / f"{name}.toml").read_text("utf-8"))


def nodes(host: Host) -> tuple[DeviceNode, ...]:
    """Give every device node that the profile needs, each once, sorted."""
    found = PROVIDER.discover(host)
    needed = {node for instance in found.instances for node in instance.devices}
    return tuple(sorted(needed | {control.node for control in found.control}))


def _rows(table: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Give one row for each card of a table: a list has one value for each, the rest is common."""
    lengths = {len(value) for value in table.values() if isinstance(value, list)}
    if len(lengths) != 1:
        raise BadConfig(f"profile: lists of one length expected, found {sorted(lengths)}")
    for place in range(lengths.pop()):
        yield {
            key: value[place] if isinstance(value, list) else value for key, value in table.items()
        }


class _Build:
    """The instances of one profile."""

    def __init__(
        self,
        name: str,
        profile: Mapping[str, Any],
        directory: str,
        majors: Sequence[int],
    ) -> None:
        self.name = name
        self.profile = profile
        self.directory = directory
        self.amd = profile["vendor"] == "amd"
        self.gpu_major, self.cap_major, self.rdma_major = majors

    def gpus(self) -> Iterator[Instance]:
        rows = [row for table in self.profile.get("gpu", ()) for row in _rows(table)]
        for index, row in enumerate(sorted(rows, key=lambda row: str(row["pci_address"]))):
            identity = self._uuid("gpu", index)
            stem = "renderD" if self.amd else "gpu"
            yield Instance(
                id=identity,
                type="gpu",
                provider="simulated",
                attributes=self._attributes(row, uuid=identity, index=index),
                devices=(self._node(f"{stem}{row['minor']}", self.gpu_major, row["minor"]),),
            )

    def slices(self, gpus: tuple[Instance, ...]) -> Iterator[Instance]:
        """Give the cards, each with its slices behind it; both sides name the overlap."""
        tables = {table["gpu"]: table for table in self.profile.get("mig", ())}
        for place, gpu in enumerate(gpus):
            rows = list(_rows(tables[place])) if place in tables else []
            migs = tuple(self._slice(gpu, place, row) for row in rows)
            if migs:
                overlaps = tuple(sorted(mig.id for mig in migs))
                yield Instance(
                    id=gpu.id,
                    type=gpu.type,
                    provider=gpu.provider,
                    overlaps=overlaps,
                    attributes=gpu.attributes,
                    devices=gpu.devices,
                )
            else:
                yield gpu
            yield from migs

    def _slice(self, gpu: Instance, place: int, row: Mapping[str, Any]) -> Instance:
        instance, compute = row["gpu_instance"], 0
        identity = self._uuid("mig", place, instance, compute, prefix="MIG-")
        # The rule of the driver for what lies under /proc/driver/nvidia-caps.
        access = 3 + 135 * gpu.number("minor") + 9 * instance
        return Instance(
            id=identity,
            type="mig",
            provider="simulated",
            parent=gpu.id,
            overlaps=(gpu.id,),
            attributes={
                # NVLink is off in MIG mode (MIG User Guide, "Limitations").
                **{key: v for key, v in gpu.attributes.items() if not key.startswith("nvlink_")},
                "uuid": identity,
                "memory_bytes": row["memory_mib"] << 20,
                "mig_profile": row["profile"],
                "gpu_instance": instance,
                "compute_instance": compute,
            },
            # A slice is used through its card's node and the two capabilities.
            devices=(
                *gpu.devices,
                *(self._cap(minor) for minor in (access, access + 1 + compute)),
            ),
        )

    def nics(self) -> Iterator[Instance]:
        rows = [row for table in self.profile.get("nic", ()) for row in _rows(table)]
        for place, row in enumerate(sorted(rows, key=lambda row: str(row["pci_address"]))):
            attributes = self._attributes(row, state="up", mac=f"02:ff:00:00:00:{place:02x}")
            devices: tuple[DeviceNode, ...] = ()
            if "rdma_device" in row:
                attributes["rdma_port"] = 1
                # 192: where ib_uverbs begins (drivers/infiniband/core/uverbs_main.c)
                devices = (self._node(f"uverbs{place}", self.rdma_major, 192 + place),)
            yield Instance(
                id=str(attributes["pci_address"]),
                type="nic",
                provider="simulated",
                attributes=attributes,
                devices=devices,
            )

    def control(self) -> Iterator[ControlNode]:
        if any("rdma_device" in table for table in self.profile.get("nic", ())):
            yield ControlNode(self._node(_RDMA_CM, self.rdma_major, 0), granted=True)
        if not self.profile.get("gpu"):
            return
        if self.amd:
            yield ControlNode(self._node("kfd", self.gpu_major, 0), granted=True)
            return
        # 255 is nvidiactl's own minor; the others' nodes have a major of their own in the driver.
        for minor, name in ((255, "nvidiactl"), (254, "nvidia-uvm"), (253, "nvidia-uvm-tools")):
            yield ControlNode(self._node(name, self.gpu_major, minor), granted=True)
        for minor in (_MIG_CONFIG, _MIG_MONITOR):
            yield ControlNode(self._cap(minor), granted=False)
        for channel in range(self.profile.get("imex_channels", 0)):
            node = self._node(f"imex-channel{channel}", self.gpu_major, 1024 + channel)
            yield ControlNode(node, granted=False)

    def _attributes(self, row: Mapping[str, Any], **more: AttributeValue) -> dict[str, Any]:
        attributes = {key: value for key, value in row.items() if key != "memory_mib"}
        if "memory_mib" in row:
            attributes["memory_bytes"] = row["memory_mib"] << 20
            attributes["driver_version"] = self.profile["driver_version"]
        attributes.setdefault("vendor", self.profile["vendor"])
        for key in ("pci_address", "pcie_root", "pcie_switch"):
            if key in attributes:
                attributes[key] = _elsewhere(attributes[key])
        attributes["local_cpus"] = self.profile["cpus"][str(row["numa_node"])]
        return attributes | more

    def _uuid(self, *what: object, prefix: str = "GPU-") -> str:
        made = uuid.uuid5(_SPACE, "/".join(map(str, (self.name, *what))))
        # ROCm's unique id has 64 bits.
        return prefix + (made.hex[:16] if self.amd else str(made))

    def _cap(self, minor: int) -> DeviceNode:
        return self._node(f"nvidia-cap{minor}", self.cap_major, minor)

    def _node(self, name: str, major: int, minor: int) -> DeviceNode:
        return DeviceNode(f"{self.directory}/{name}", "c", major, minor)


def _elsewhere(address: str) -> str:
    """Move a PCI address or a root (`pci0000:15`) into the domains of simulated cards."""
    prefix = "pci" if address.startswith("pci") else ""
    domain, rest = address.removeprefix(prefix).split(":", 1)
    return f"{prefix}{DOMAIN + int(domain, 16):04x}:{rest}"


PROVIDER: Provider = Simulated()
