"""What in a record of a machine tells whose it is: addresses, ids, serial numbers, names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address
from itertools import pairwise

from msgspec import Struct

from xce_nodeagent.model.record import File, Record

_HEX = "[0-9A-Fa-f]"
PATTERN = re.compile(
    # UUIDs, also behind `GPU-` or `MIG-`
    rf"(?P<uuid>(?<!{_HEX}){_HEX}{{8}}-(?:{_HEX}{{4}}-){{3}}{_HEX}{{12}}(?!{_HEX})"
    # 32 digits at a stretch: machine-id, /proc/net/if_inet6
    rf"|(?<![0-9A-Za-z]){_HEX}{{32}}(?![0-9A-Za-z]))"
    # hardware addresses: Ethernet has 6 bytes, EUI-64 has 8, IP over InfiniBand has 20
    rf"|(?P<mac>(?<![0-9A-Za-z:-]){_HEX}{{2}}(?:(?::{_HEX}{{2}}){{5,19}}|(?:-{_HEX}{{2}}){{5,19}})"
    r"(?![0-9A-Za-z:-]))"
    # a GUID has 4 groups, a GID (and an IPv6 address in full) has 8
    rf"|(?P<guid>(?<![0-9A-Za-z:]){_HEX}{{4}}(?::{_HEX}{{4}}){{3,7}}(?![0-9A-Za-z:]))"
    rf"|(?P<ipv6>(?<![0-9A-Za-z:.])(?=[0-9A-Fa-f:]*::){_HEX}[0-9A-Fa-f:]{{3,38}}(?![0-9A-Za-z:.]))"
    r"|(?P<ipv4>(?<![0-9A-Za-z.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![0-9A-Za-z.]))"
)

# KFD has them in decimal in a file of properties, DRM in hexadecimal in a file of each.
_NUMBER = r"(?:unique_id|hive_id|xgmi_device_id)"
_NUMBER_FILE = re.compile(rf"(?:[a-z]+_)*{_NUMBER}")
_NUMBER_LINE = re.compile(rf'\b(?:[a-z]+_)*{_NUMBER}"?[ \t]*[: ][ \t]*"?([0-9]+)\b')
_SERIAL = r"(?:serial(?:[ _]?n(?:o|um|umber))?|asset[ _]?tag|wwid|phys_switch_id)"
_SERIAL_FILE = re.compile(rf"(?:[a-z]+_)*{_SERIAL}", re.IGNORECASE)
_SERIAL_LINE = re.compile(rf'{_SERIAL}"?[ \t]*[:=][ \t]*"?([^"\n,]+)', re.IGNORECASE)
_LEAST, _SHORTEST = 1 << 24, 5
"""What is less is not unique to anything, and stands for something else elsewhere."""
_HOSTNAME = ("/proc/sys/kernel/hostname", "/proc/sys/kernel/domainname", "/etc/hostname")
_NOBODY = frozenset({"localhost", "localdomain", "(none)", "none", "unknown"})

_USUAL = re.compile(
    # of a kernel's driver, with the port, function or VLAN behind it
    r"(?:lo|bonding_masters|(?:eth|ib|usb|wwan|wlan|dummy|ifb|bond|team|br|tun|tap|vlan|docker|virbr"
    r"|sit|gre|gretap|erspan|tunl|hsn|mic|efa|ipoib|veth)[0-9a-f]*(?:np\d+|f\d+|v\d+|[.:]\d+)*"
    # of systemd (systemd.net-naming-scheme(7)), by place or by address
    r"|(?:en|ib|wl|ww|sl)[opsPvdfnabciu0-9]+(?:[.]\d+)?|(?:en|ib|wl|ww)x[0-9a-f]{12,}"
    # of the simulation, and of RDMA: the driver's, or of rdma-core by place
    r"|sim[a-z0-9_]+|(?:mlx[45]|bnxt_re|irdma|i40iw|rxe|siw|efa|erdma|mana|hfi1|qib|ipath|cxi|qedr"
    r"|cxgb[34]|hns|mthca|ocrdma|usnic|vmw_pvrdma)_?\d+|(?:roce|ib|iw|opa)[opsdfnP0-9]+)"
)
"""Names of interfaces that tell of the hardware, and of nobody."""

_IN_PROC = r"/proc/(?:[0-9]+/)?net"  # a link leads from /proc/net to a process' own
TABLE = re.compile(rf"{_IN_PROC}/.+|/sys/.+/bonding/[a-z_]+")
"""Files in which an interface's name is a word among others."""
ROUTES = re.compile(rf"{_IN_PROC}/route")
ROUTE = re.compile(r"^(\S+\s+)([0-9A-F]{8})(\s+)([0-9A-F]{8})\b", re.MULTILINE)
"""A line of it: an interface, a network and a gateway, as numbers in the order of most hosts."""

HOLDERS = frozenset({"net", "infiniband", "brif"})
"""Folders whose entries are interfaces."""

_ADDRESS_IN_NAME = re.compile(r"^(?:en|ib|wl|ww)x([0-9a-f]{12,})$")


class Originals(Struct, frozen=True):
    """What is to be replaced."""

    digits: frozenset[str]
    """Addresses and ids as lower-case hexadecimal digits, whatever stood between them."""
    numbers: frozenset[int]
    """Of these, those that are written in decimal as well."""
    addresses: frozenset[IPv4Address | IPv6Address]
    serials: frozenset[str]
    hosts: tuple[str, ...]
    """The host's name as it is told, then without its domain, then its domain."""
    interfaces: frozenset[str]


def originals(record: Record) -> Originals:
    """Find them."""
    digits: set[str] = set()
    numbers: set[int] = set()
    addresses: set[IPv4Address | IPv6Address] = set()
    serials: set[str] = set()
    hosts: list[str] = []
    interfaces = {name for path in record for name in interfaces_in(path) if not usual(name)}
    for path, entry in record.items():
        text = entry.text if isinstance(entry, File) else ""
        for match in (*PATTERN.finditer(path), *PATTERN.finditer(text)):
            if match["ipv4"] or match["ipv6"]:
                addresses.update(address(match[0]))
            else:
                digits.add(plain(match[0]))
        if ROUTES.fullmatch(path):
            told = [word for match in ROUTE.finditer(text) for word in match.group(2, 4)]
            addresses.update(one for word in told for one in address(dotted(word)))
        for name in interfaces_in(path):
            digits.update(_ADDRESS_IN_NAME.findall(name))
        numbers.update(_numbers(path, text))
        serials.update(_serials(path, text))
        if path in _HOSTNAME and text.strip() not in _NOBODY:
            name, _, domain = text.strip().partition(".")
            hosts += [one for one in (text.strip(), name, domain) if one and one not in _NOBODY]
    digits.update(f"{number:016x}" for number in numbers)
    digits = {one for one in digits if one.strip("0") and one.strip("f")}
    return Originals(
        digits=frozenset(digits),
        numbers=frozenset(numbers),
        addresses=frozenset(addresses),
        serials=frozenset(serials),
        hosts=tuple(dict.fromkeys(hosts)),
        interfaces=frozenset(interfaces),
    )


def plain(text: str) -> str:
    """Give the digits of an address or id: one has many spellings."""
    return text.replace(":", "").replace("-", "").lower()


def address(text: str) -> Iterator[IPv4Address | IPv6Address]:
    """Give an IP address that is somebody's: not loopback, and none that stands for any."""
    try:
        found = IPv6Address(text) if ":" in text else IPv4Address(text)
    except ValueError:
        return
    if not (found.is_loopback or found.is_unspecified or str(found) == "255.255.255.255"):
        yield found


def dotted(word: str) -> str:
    """Give the usual spelling of an address in /proc/net/route (proc(5))."""
    return str(IPv4Address(bytes.fromhex(word)[::-1]))


def usual(name: str) -> bool:
    """Say whether an interface is named as kernels and udev do."""
    return _USUAL.fullmatch(name) is not None


def interfaces_in(path: str) -> Iterator[str]:
    """Give the names of interfaces that a path has in it."""
    if not path.startswith("/sys/"):
        return
    for before, part in pairwise(path.split("/")):
        if before in HOLDERS and part:
            yield part
        elif part.startswith(("lower_", "upper_")):
            yield part[6:]


def _numbers(path: str, text: str) -> Iterator[int]:
    if _NUMBER_FILE.fullmatch(path.rpartition("/")[2]):
        told = re.fullmatch(rf"(?:0x)?({_HEX}{{1,16}})", text.strip())
        found = [int(told[1], 16)] if told else []
    else:
        found = [int(match[1]) for match in _NUMBER_LINE.finditer(text)]
    yield from (one for one in found if _LEAST <= one < 1 << 64)


def _serials(path: str, text: str) -> Iterator[str]:
    told = [match[1].strip() for match in _SERIAL_LINE.finditer(text)]
    if _SERIAL_FILE.fullmatch(path.rpartition("/")[2]):
        told.append(text.strip())
    # Without a digit it is none: "Not Specified", "To be filled by O.E.M."
    yield from (
        one
        for one in told
        if len(one) >= _SHORTEST and re.search("[0-9]", one) and one.strip("0 -.")
    )
