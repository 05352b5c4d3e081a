"""Network interfaces as sysfs shows them.

Source: kernel Documentation/ABI/testing/sysfs-class-net.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from msgspec import Struct, structs

from xce_nodeagent.host import pci
from xce_nodeagent.host.machine import Host

_NET = "/sys/class/net"
_LINK_LAYERS = {1: "ethernet", 32: "infiniband"}  # ARPHRD_*, linux/if_arp.h
_MOST_PORTS = 8
"""Of one function: those of the mlx4 driver have two."""
_REPRESENTOR = re.compile(r"(?:c\d+)?pf\d+(?:(?:vf|sf)\d+)?")
"""phys_port_name of a switch port that stands for a function (networking/devlink/devlink-port)."""


class Interface(Struct, frozen=True, kw_only=True):
    """An interface that hardware stands behind. What the kernel does not tell is empty, or None.

    `behind` is the path of the device. `port`: which port of its function, from 0; functions of
    the mlx4 driver have two.
    `subfunction` is the number of one that was cut out of its function without a bus address of
    its own (networking/devlink/devlink-port). `bus` is what it hangs on (pci, virtio, usb, ...).
    """

    name: str
    behind: str
    place: pci.Place | None
    bus: str = ""
    port: int = 0
    subfunction: int | None = None
    mac: str = ""
    state: str = ""
    carrier: bool | None = None
    link_layer: str = ""
    speed_mbps: int = 0
    physical_function: str = ""


def interfaces(host: Host) -> tuple[Interface, ...]:
    """Give the interfaces with a device behind them: no loopback, bridge, bond, VLAN or veth.

    Also left out: children of an InfiniBand interface, and representors, which are ends of an
    internal switch and belong to the host.
    """
    found = (_known(host, name) for name in host.names(_NET) if said(name))
    return tuple(_told_apart(interface for interface in found if interface is not None))


def _told_apart(found: Iterable[Interface]) -> Iterator[Interface]:
    """Number the ports of a function anew where its driver does not tell them apart."""
    used: set[tuple[str, int | None, int]] = set()
    for one in found:
        number = one.port
        if one.place is not None:
            while (one.place.address, one.subfunction, number) in used:
                number += 1
            used.add((one.place.address, one.subfunction, number))
        yield one if number == one.port else structs.replace(one, port=number)


def said(text: str | None) -> str:
    """Give a text that the kernel tells of a card; empty where it is rubbish, not text."""
    return text if text and text.isascii() and text.isprintable() else ""


def _known(host: Host, name: str) -> Interface | None:
    return host.state(f"{_NET}/{name}", lambda: _interface(host, name))


def _interface(host: Host, name: str) -> Interface | None:
    folder = f"{_NET}/{name}"
    device = behind(host, folder)
    if device is None:
        return None
    index, below = host.number(f"{folder}/ifindex"), host.number(f"{folder}/iflink")
    if index is not None and below is not None and index != below:
        return None
    if _REPRESENTOR.fullmatch(host.read(f"{folder}/phys_port_name") or ""):
        return None
    bus = (host.real(f"{device}/subsystem") or "").rpartition("/")[2]
    # An interface on USB hangs below a PCI function as well: below the USB controller, which is
    # not what a job would be given.
    place = None if bus == "usb" else pci.place(host, device)
    subfunction = host.number(f"{device}/sfnum") if bus == "auxiliary" else None
    function = host.real(f"{device}/physfn") or ""
    if subfunction is not None and place is not None:
        function = place.address
    layer = _LINK_LAYERS.get(_number(host, f"{folder}/type"), "")
    return Interface(
        name=name,
        behind=device,
        place=place,
        bus=said(bus),
        port=_port(host, folder, layer),
        subfunction=subfunction,
        mac=said(host.read(f"{folder}/address")),
        state=said(host.read(f"{folder}/operstate")),
        carrier={0: False, 1: True}.get(_number(host, f"{folder}/carrier")),
        link_layer=layer,
        speed_mbps=max(_number(host, f"{folder}/speed"), 0),
        physical_function=said(function.rpartition("/")[2]),
    )


def _port(host: Host, folder: str, layer: str) -> int:
    """Give which port of its function an interface is, from 0.

    Ports were told apart by dev_id before Linux 3.15, and those of InfiniBand before 4.20. To
    other drivers that may be any number.
    """
    port = host.number(f"{folder}/dev_port")
    if port is None or (port == 0 and layer == "infiniband"):
        port = host.number(f"{folder}/dev_id") or 0
        return port if port < _MOST_PORTS else 0
    return port


def behind(host: Host, folder: str) -> str | None:
    """Give the device that an entry of a class is of; None for what the kernel made by itself.

    Where the link to it is missing (recorded machines often lack it), the place of the entry
    tells: `.../0000:02:00.0/net/eth0`, and `/sys/devices/virtual/net/lo`.
    """
    if device := host.real(f"{folder}/device"):
        return device
    above = (host.real(folder) or "").rpartition("/")[0].rpartition("/")[0]
    return above if above.startswith("/sys/devices/") and pci.place(host, above) else None


def _number(host: Host, name: str) -> int:
    number = host.number(name)
    return -1 if number is None else number


def virtual_functions(host: Host, address: str) -> int | None:
    """Give how many virtual functions a function has now; None where it can have none.

    Kernels before 3.8 do not count them, and have a link to each.
    """
    folder = f"/sys/bus/pci/devices/{address}"
    count = host.number(f"{folder}/sriov_numvfs")
    if count is None:
        count = sum(name.startswith("virtfn") for name in host.names(folder)) or None
    return count if count is not None and count >= 0 else None


def driver(host: Host, address: str) -> str:
    """Give the name of a function's driver; empty where none is bound."""
    return (host.real(f"/sys/bus/pci/devices/{address}/driver") or "").rpartition("/")[2]
