"""CPUs, NUMA nodes and the PCI tree, from sysfs (kernel: Documentation/ABI/stable)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any

from xce_nodeagent.host import cpulist, pci
from xce_nodeagent.host.machine import Host
from xce_nodeagent.model.environment import ranges

_CPU = "/sys/devices/system/cpu"
_NODE = "/sys/devices/system/node"
_PLACED = frozenset({0x02, 0x03, 0x0B, 0x12})
"""PCI base classes that placement is about: network, display, processor (Xeon Phi), accelerator."""
_INFINIBAND = 0x0C06  # "serial bus controller, InfiniBand", as the cards of QLogic say


_SWITCHES = {0x068000: 0x10DE}
"""Functions that are the far end of links between cards, by class and vendor: NVSwitches."""
_FIRST_CPU = 4096
"""Characters of /proc/cpuinfo that are sure to have the first CPU: its flags take up to 1,500."""


def read(host: Host, also: Collection[str] = ()) -> dict[str, Any]:
    """Give the topology as the inventory has it.

    - `cpu`: arch, vendor, family and model, numbers where the kernel has numbers; model_name.
    - `packages` (id, cpus) and `cores` (the CPUs of each core, as a list of CPU lists).
    - `numa_nodes`: id, cpus, package, and the distances to all nodes by rising id, those of
      `memory_nodes` among them.
    - `memory_nodes`: ids of NUMA nodes without CPUs: the memory of a GPU on POWER9 or Grace, CXL.
      Some may have no memory: Grace has one for each slice that could be cut.
    - `pci`: by address: what `pci.facts` gives (class, vendor, device, link_speed, ...), root,
      bridges from the root down, numa_node. Network, display and processing functions,
      NVSwitches, and the addresses in `also`.
    - `bridges`: by address, the same facts of every bridge above those.

    What the kernel does not tell is absent.
    """
    packages, cores, nodes = host.derived("/sys/devices/system/", lambda: _processors(host))
    functions = _functions(host, also)
    bridges = sorted({bridge for one in functions.values() for bridge in one["bridges"]})
    return {
        "cpu": host.derived(f"{_CPU}/", lambda: cpu(host)),
        "packages": packages,
        "cores": cores,
        "numa_nodes": [node for node in nodes if node["cpus"]],
        "memory_nodes": [node["id"] for node in nodes if not node["cpus"]],
        "pci": functions,
        "bridges": {address: pci.facts(host, address) for address in bridges},
    }


def _processors(
    host: Host,
) -> tuple[list[dict[str, Any]], list[str], list[dict[str, Any]]]:
    """Give packages, cores and NUMA nodes, as `read` does."""
    packages, cores = _cpus(host)
    homes = {cpu: package["id"] for package in packages for cpu in cpulist.read(package["cpus"])}
    numbers = _numbered(host.names(_NODE), "node")
    online = frozenset(cpu for core in cores for cpu in cpulist.read(core))
    nodes = [_numa_node(host, number, online) for number in numbers]
    for node in nodes:
        cpus = cpulist.read(node["cpus"])
        if cpus and cpus[0] in homes:
            node["package"] = homes[cpus[0]]
    return packages, cores, nodes


def cpu(host: Host) -> dict[str, Any]:
    """Give what the first CPU says of itself: arch, vendor, family, model, model_name.

    /proc/cpuinfo has other names for these on each architecture; those of x86 come first, then
    those of ARM (implementer, architecture, part) and POWER (cpu). Some CPUs pad their name.
    """
    text = host.read("/proc/cpuinfo", _FIRST_CPU) or ""
    lines = dict(re.findall(r"^([\w ]+?)\s*: +(.*\S)\s*$", text, re.MULTILINE)[::-1])
    told = {
        "arch": _arch(host, lines),
        "vendor": lines.get("vendor_id") or lines.get("CPU implementer"),
        "family": _number(lines.get("cpu family") or lines.get("CPU architecture")),
        "model": _number(lines.get("model") or lines.get("CPU part")),
        "model_name": lines.get("model name") or lines.get("cpu"),
    }
    return {name: value for name, value in told.items() if value is not None}


def _arch(host: Host, lines: dict[str, str]) -> str | None:
    """Give the architecture; kernels before 6.1, and records, tell it by their CPU alone."""
    if arch := host.read("/proc/sys/kernel/arch"):
        return arch
    if "CPU implementer" in lines:
        version = _number(lines.get("CPU architecture"))
        return "armv7l" if version == 7 else "aarch64"
    if power := re.match(r"POWER([0-9]{1,4})", lines.get("cpu", "")):
        # Linux for little endian begins with POWER8.
        return "ppc64le" if int(power[1]) >= 8 else "ppc64"
    if lines.get("vendor_id") == "IBM/S390":
        return "s390x"
    if lines.get("isa", "").startswith("rv64"):
        return "riscv64"
    return "x86_64" if "vendor_id" in lines and "cpu family" in lines else None


def _number(text: str | None) -> int | None:
    try:
        number = int(text, 0) if text else None
    except ValueError:
        return None  # the model of POWER is a name
    return number if number is None or 0 <= number < 1 << 32 else None


def _numbered(names: Iterable[str], stem: str) -> list[int]:
    numbers = (name.removeprefix(stem) for name in names if name.startswith(stem))
    return sorted(int(number) for number in numbers if re.fullmatch("[0-9]{1,7}", number))


def _cpus(host: Host) -> tuple[list[dict[str, Any]], list[str]]:
    """Give the packages and the cores; a CPU that is offline is in neither.

    It has no topology; but old kernels, and records, leave it one. Where nobody knows its package
    the kernel says -1.
    """
    online = cpulist.read(host.read(f"{_CPU}/online") or "")
    packages: dict[int, set[int]] = {}
    cores: list[str] = []
    seen: set[int] = set()
    for cpu in _numbered(host.names(_CPU), "cpu"):
        if cpu in seen or (online and cpu not in online):
            continue
        folder = f"{_CPU}/cpu{cpu}/topology"
        package = host.number(f"{folder}/physical_package_id")
        threads = cpulist.inside(host, folder, "thread_siblings")
        if package is None and not threads:
            continue
        threads = tuple(one for one in threads if one in online or not online) or (cpu,)
        seen.update(threads)
        if package is not None and package >= 0:
            packages.setdefault(package, set()).update(threads)
        cores.append(ranges(threads))
    return [
        {"id": package, "cpus": ranges(cpus)} for package, cpus in sorted(packages.items())
    ], cores


def _numa_node(host: Host, number: int, online: Collection[int]) -> dict[str, Any]:
    """Give a node with those of its CPUs that are online; old kernels list the others, too."""
    folder = f"{_NODE}/node{number}"
    cpus = cpulist.inside(host, folder, "cpu")
    there = [one for one in cpus if one in online or not online]
    node: dict[str, Any] = {"id": number, "cpus": ranges(there)}
    # Its memory is left out: virtual machines grow and shrink it (virtio-mem, a balloon), and each
    # time the generation would rise for nothing that placement uses.
    distances = (host.read(f"{folder}/distance") or "").split()
    if distances and all(re.fullmatch("[0-9]{1,7}", one) for one in distances):
        node["distances"] = list(map(int, distances))
    return node


def _functions(host: Host, also: Collection[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for address, code in pci.functions(host).items():
        if not (
            code >> 16 in _PLACED
            or code >> 8 == _INFINIBAND
            or address in also
            or (code in _SWITCHES and pci.identifier(host, address, "vendor") == _SWITCHES[code])
        ):
            continue
        if function := _function(host, address):
            found[address] = function
    return found


def _function(host: Host, address: str) -> dict[str, Any]:
    """Give what is told of a function; nothing where it hangs on no PCI bus."""
    # Kept as long as one of the files that it is made of.
    return host.derived(f"/sys/bus/pci/devices/{address}/class", lambda: _told(host, address))


def _told(host: Host, address: str) -> dict[str, Any]:
    place = pci.place(host, f"/sys/bus/pci/devices/{address}")
    if place is None:
        return {}
    told = {**pci.facts(host, address), "root": place.root, "bridges": list(place.bridges)}
    node = pci.numa_node(host, address)
    return told if node is None else {**told, "numa_node": node}
