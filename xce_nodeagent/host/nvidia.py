"""NVIDIA's kernel driver as procfs shows it: what it tells of a card, and its device nodes.

Source: the driver's README, "The /proc file system interface"; the majors are in /proc/devices.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from xce_nodeagent.host.machine import Host
from xce_nodeagent.model import mig
from xce_nodeagent.model.instance import DeviceNode, Instance
from xce_nodeagent.model.inventory import ControlNode

DRIVER = "/proc/driver/nvidia"
_CAPS = "/dev/nvidia-caps"
_MAJOR = 195  # of /dev/nvidia* (kernel: admin-guide/devices.txt)


def cards(host: Host) -> tuple[str, ...]:
    """Give the PCI addresses of the cards that the driver has, also of those off the bus."""
    return host.names(f"{DRIVER}/gpus")


def told(host: Host, address: str) -> dict[str, str]:
    """Read `Key: value` lines; the driver answers also for a card that NVML has lost."""
    text = host.read(f"{DRIVER}/gpus/{address}/information") or ""
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


class Nodes:
    """The device nodes of the driver, by the numbers that it registered."""

    def __init__(self, host: Host) -> None:
        self._host = host
        text = (host.read("/proc/devices") or "").partition("Block devices:")[0]
        self._majors = {
            match[2]: int(match[1])
            for match in re.finditer(r"^ *([0-9]{1,7}) (nvidia\S*)$", text, re.MULTILINE)
        }
        lines = (host.read("/proc/driver/nvidia-caps/mig-minors") or "").splitlines()
        self._minors = {
            name: int(minor)
            for name, _, minor in (line.partition(" ") for line in lines)
            if re.fullmatch("[0-9]{1,7}", minor.strip())
        }

    @property
    def registered(self) -> bool:
        """Whether the driver has registered device numbers: it is loaded."""
        return bool(self._majors)

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
            numbers = re.fullmatch(
                r"([0-9]{1,7}):([0-9]{1,7})", self._host.read(f"{folder}/{name}/dev") or ""
            )
            if numbers:
                found.append(DeviceNode(f"/dev/dri/{name}", "c", int(numbers[1]), int(numbers[2])))
        return tuple(found)

    def capabilities(
        self, gpu: int | None, gpu_instance: int | None, *compute_instances: int | None
    ) -> tuple[DeviceNode, ...]:
        """Give the nodes that let a process use compute instances of one GPU instance.

        That is one for the GPU instance and one for each compute instance; nothing where one of
        them is not known, because a process needs them all.
        """
        if gpu is None or gpu_instance is None or "nvidia-caps" not in self._majors:
            return ()
        found = [self._minor(gpu, gpu_instance)]
        found += [
            None if one is None else self._minor(gpu, gpu_instance, one)
            for one in compute_instances
        ]
        known = tuple(self._capability(minor) for minor in found if minor is not None)
        return known if len(known) == len(found) else ()

    def _minor(
        self, gpu: int, gpu_instance: int, compute_instance: int | None = None
    ) -> int | None:
        if not self._minors:
            return mig.access(gpu, gpu_instance, compute_instance)
        inner = "" if compute_instance is None else f"ci{compute_instance}/"
        return self._minors.get(f"gpu{gpu}/gi{gpu_instance}/{inner}access")

    def control(self) -> Iterator[ControlNode]:
        """Give the nodes that every CUDA program needs, and those that none may have."""
        yield ControlNode(DeviceNode("/dev/nvidiactl", "c", _MAJOR, 255), granted=True)
        yield ControlNode(DeviceNode("/dev/nvidia-modeset", "c", _MAJOR, 254), granted=False)
        uvm = self._majors.get("nvidia-uvm")
        if uvm is not None:
            yield ControlNode(DeviceNode("/dev/nvidia-uvm", "c", uvm, 0), granted=True)
            yield ControlNode(DeviceNode("/dev/nvidia-uvm-tools", "c", uvm, 1), granted=True)
        if "nvidia-caps" in self._majors:
            for name, minor in (("config", mig.CONFIG), ("monitor", mig.MONITOR)):
                yield ControlNode(self._capability(self._minors.get(name, minor)), granted=False)
        imex = self._majors.get("nvidia-caps-imex-channels")
        if imex is not None:
            folder = "/dev/nvidia-caps-imex-channels"
            for name in self._host.names(folder):
                number = name.removeprefix("channel")
                if re.fullmatch("[0-9]{1,7}", number):
                    node = DeviceNode(f"{folder}/{name}", "c", imex, int(number))
                    yield ControlNode(node, granted=False)

    def unknown_slices(self, instances: Iterable[Instance] = ()) -> Iterator[ControlNode]:
        """Give the nodes of all slices that there are and that are none of these instances'.

        A number that the driver does not list is no slice's.
        """
        if "nvidia-caps" not in self._majors:
            return
        known = {node for instance in instances for node in instance.devices}
        known |= {control.node for control in self.control()}
        listed = set(self._minors.values())
        for name in self._host.names(_CAPS):
            number = name.removeprefix("nvidia-cap")
            minor = int(number) if re.fullmatch("[0-9]{1,7}", number) else -1
            if minor < 0 or (listed and minor not in listed):
                continue
            if (node := self._capability(minor)) not in known:
                yield ControlNode(node, granted=False)

    def _capability(self, minor: int) -> DeviceNode:
        return DeviceNode(f"{_CAPS}/nvidia-cap{minor}", "c", self._majors["nvidia-caps"], minor)
