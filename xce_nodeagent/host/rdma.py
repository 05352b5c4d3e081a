"""RDMA devices, their ports, and the character nodes of NICs, as sysfs shows them.

Sources: kernel Documentation/ABI/stable/sysfs-class-infiniband; drivers/infiniband/hw/hfi1/
device.c; HPE's cxi-driver (cxi_user).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from xce_nodeagent.host import pci
from xce_nodeagent.host.interface import Interface, behind, driver, said
from xce_nodeagent.host.machine import Host
from xce_nodeagent.model.instance import DeviceNode

_RDMA = "/sys/class/infiniband"


class RdmaPort(Struct, frozen=True, kw_only=True):
    """A port of an RDMA device, counted from 1.

    `behind` is the path of the device that it hangs on, empty for one in software, and where that
    is not told. `node_type` is what it is (CA, RNIC, ...). These, `software`, `firmware` and
    `board` are the whole device's.
    """

    device: str
    port: int
    behind: str
    place: pci.Place | None
    software: bool = False
    node_type: str = ""
    netdev: str = ""
    state: str = ""
    carrier: bool | None = None
    link_layer: str = ""
    speed_mbps: int = 0
    firmware: str = ""
    board: str = ""


def ports(host: Host) -> tuple[RdmaPort, ...]:
    """Give the ports of all RDMA devices."""
    found: list[RdmaPort] = []
    for device in filter(said, host.names(_RDMA)):
        found += _known(host, device)
    return tuple(found)


def _known(host: Host, device: str) -> tuple[RdmaPort, ...]:
    return host.state(f"{_RDMA}/{device}", lambda: _ports(host, device))


def _ports(host: Host, device: str) -> tuple[RdmaPort, ...]:
    folder = f"{_RDMA}/{device}"
    numbers = [
        int(port) for port in host.names(f"{folder}/ports") if re.fullmatch(r"[0-9]{1,3}", port)
    ]
    if not numbers:
        return ()
    device_behind = behind(host, folder) or ""
    place = pci.place(host, device_behind) if device_behind else None
    whole = {
        "behind": device_behind,
        "software": (host.real(folder) or "").startswith("/sys/devices/virtual/"),
        # "1: CA"
        "node_type": said(host.read(f"{folder}/node_type")).partition(": ")[2],
        "firmware": said(host.read(f"{folder}/fw_ver")),
        "board": said(host.read(f"{folder}/board_id")),
    }
    return tuple(_port(host, device, port, place, whole) for port in sorted(numbers))


def _port(
    host: Host, device: str, port: int, place: pci.Place | None, whole: Mapping[str, Any]
) -> RdmaPort:
    folder = f"{_RDMA}/{device}/ports/{port}"
    gids = f"{folder}/gid_attrs/ndevs"
    names = (said(host.read(f"{gids}/{gid}")) for gid in host.names(gids)[:1])
    # "4: ACTIVE"; "5: LinkUp"; "100 Gb/sec (4X EDR)"
    state = (host.read(f"{folder}/state") or "").partition(": ")[2]
    physical = (host.read(f"{folder}/phys_state") or "").partition(": ")[2]
    rate = re.match(r"([0-9]{1,7}(?:\.[0-9]{1,3})?) Gb/sec", host.read(f"{folder}/rate") or "")
    return RdmaPort(
        device=device,
        port=port,
        behind=whole["behind"],
        place=place,
        software=whole["software"],
        netdev=next(filter(None, names), ""),
        state={"ACTIVE": "up", "": ""}.get(state, "down"),
        carrier=physical == "LinkUp" if physical else None,
        link_layer=said(host.read(f"{folder}/link_layer")).lower(),
        speed_mbps=round(float(rate[1]) * 1000) if rate else 0,
        node_type=whole["node_type"],
        firmware=whole["firmware"],
        board=whole["board"],
    )


def match(interface: Interface, found: tuple[RdmaPort, ...], bond: str = "") -> RdmaPort | None:
    """Find the RDMA port of an interface.

    On the same function the one that names it, else the same by number, else the only one. A
    device in software (rdma_rxe) hangs nowhere and only names it. A bond of two functions may have
    one device for both (RoCE LAG), which names the bond.
    """
    if interface.place is not None:
        same = [port for port in found if port.behind == interface.behind]
        if not same and interface.subfunction is None:  # virtio: the interface is one below
            function = f"/{interface.place.address}"
            same = [port for port in found if port.behind.endswith(function)]
        by_name = [port for port in same if port.netdev == interface.name]
        by_number = [port for port in same if port.port == interface.port + 1]
        for choice in (by_name, by_number, same):
            if len(choice) == 1:
                return choice[0]
    named = [port for port in found if port.netdev == interface.name]
    named += [port for port in found if bond and port.netdev == bond]
    return named[0] if named else None


def nodes(host: Host, found: Iterable[RdmaPort]) -> dict[str, tuple[DeviceNode, ...]]:
    """Give the nodes of each RDMA device, by its name: uverbs, and of Omni-Path hfi1 as well.

    An hfi1 node has the unit's number, as has the device's name, and hangs nowhere; if rdma-core
    renamed the device, they belong together only where there is one of each.
    """
    own: dict[str, list[DeviceNode]] = {}
    for name, node in _class(host, "infiniband_verbs", "infiniband/"):
        device = said(host.read(f"/sys/class/infiniband_verbs/{name}/ibdev"))
        if device:
            own.setdefault(device, []).append(node)
    paths = {node.path.removeprefix("/dev/"): node for _, node in _class(host, "hfi1_user", "")}
    places = {port.device: port.place for port in found}
    units = [
        device
        for device, place in places.items()
        if device in paths or (paths and place and driver(host, place.address) == "hfi1")
    ]
    for device in units:
        unit = paths.get(device)
        if unit is None and len(units) == len(paths) == 1:
            (unit,) = paths.values()
        if unit is not None:
            own.setdefault(device, []).append(unit)
    return {device: tuple(several) for device, several in own.items()}


def slingshot(host: Host) -> dict[str, DeviceNode]:
    """Give the cxi node of each Slingshot NIC, by its PCI address."""
    found: dict[str, DeviceNode] = {}
    for name, node in _class(host, "cxi_user", ""):
        place = pci.place(host, f"/sys/class/cxi_user/{name}/device")
        if place is not None:
            found[place.address] = node
    return found


def management(host: Host) -> tuple[DeviceNode, ...]:
    """Give the nodes for management datagrams (umad, issm): whoever has one can rule a fabric."""
    return tuple(node for _, node in _class(host, "infiniband_mad", "infiniband/"))


def omnipath(host: Host) -> tuple[DeviceNode, ...]:
    """Give every hfi1 node, whosever it is."""
    return tuple(node for kind in ("hfi1", "hfi1_user") for _, node in _class(host, kind, ""))


def connection_manager(host: Host) -> DeviceNode | None:
    """Give the node that every program needs to connect through RDMA."""
    return _node(host, "/sys/class/misc/rdma_cm", "infiniband/rdma_cm")


def _class(host: Host, name: str, below: str) -> Iterable[tuple[str, DeviceNode]]:
    """Give the nodes of a class, each with its name; `below` is its folder in /dev."""
    for one in filter(said, host.names(f"/sys/class/{name}")):
        if node := _node(host, f"/sys/class/{name}/{one}", below + one):
            yield one, node


def _node(host: Host, folder: str, path: str) -> DeviceNode | None:
    return host.derived(f"{folder}/dev", lambda: _numbered(host, folder, path))


def _numbered(host: Host, folder: str, path: str) -> DeviceNode | None:
    numbers = re.fullmatch(r"([0-9]{1,7}):([0-9]{1,7})", host.read(f"{folder}/dev") or "")
    if not numbers:
        return None
    return DeviceNode(f"/dev/{path}", "c", int(numbers[1]), int(numbers[2]))
