"""Declared instances on this host: the site's files, and the device nodes that they name.

Whoever acts as root goes by what root wrote and nobody else could change: the files, their folder,
and every folder on the way to a node.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct, structs

from xce_nodeagent.errors import exhausted
from xce_nodeagent.host import pci, trust
from xce_nodeagent.host.machine import Host
from xce_nodeagent.model import declared
from xce_nodeagent.model.declaration import Declaration, allowed
from xce_nodeagent.model.declared import NODES_LIMIT, SIZE_LIMIT, Declared
from xce_nodeagent.model.instance import AttributeValue, DeviceNode, Instance
from xce_nodeagent.model.rule import MAJOR_LIMIT, MINOR_LIMIT, Device
from xce_nodeagent.model.site import Site

FILES_LIMIT = 64


class Seen(Struct, frozen=True):
    """The site's files, what is wrong with some, and each node that they name, or why it is none.

    A record of a machine has it in the place of the files and of /dev.
    """

    files: dict[str, str] = {}
    faults: tuple[str, ...] = ()
    nodes: dict[str, DeviceNode | str] = {}

    def declared(self) -> Declared:
        """Read the files; so many, and so long, as they are read from a disk."""
        kept = sorted(self.files.items())[:FILES_LIMIT]
        found = declared.read({name: text for name, text in kept if len(text) <= SIZE_LIMIT})
        return structs.replace(found, faults=(*self.faults, *found.faults))

    def node(self, path: str) -> DeviceNode:
        """Give a node; raise NoNode where it is none."""
        found = self.nodes.get(path, "it was not looked at")
        if isinstance(found, str):
            raise NoNode(found)
        if not (0 <= found.major < MAJOR_LIMIT and 0 <= found.minor < MINOR_LIMIT):
            raise NoNode("its numbers are no device's")
        return found


class NoNode(Exception):
    """A path is not that of a node that a job may have; the text says why."""


def read(site: Site) -> Declared:
    """Read the files. No folder is no file."""
    files, faults = _files(site)
    found = declared.read(files)
    return structs.replace(found, faults=(*faults, *found.faults))


def seen(site: Site) -> Seen | None:
    """Look at the files and the nodes that they name; None where there are none."""
    files, faults = _files(site)
    if not files and not faults:
        return None
    nodes: dict[str, DeviceNode | str] = {}
    for path in (path for one in declared.read(files).instances for path in one.nodes):
        try:
            nodes[path] = node(path)
        except NoNode as error:
            nodes[path] = str(error)
    return Seen(files, tuple(faults), nodes)


def _files(site: Site) -> tuple[dict[str, str], list[str]]:
    files: dict[str, str] = {}
    try:
        folder = os.open(site.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return {}, []
    except OSError as error:
        return {}, [f"{site.folder}: {_why(error)}"]
    faults: list[str] = []
    try:
        if why := _foreign(os.fstat(folder), site.owners):
            return {}, [f"{site.folder}: {why}"]
        names = sorted(name for name in os.listdir(folder) if name.endswith(".toml"))
        for name in names[:FILES_LIMIT]:
            try:
                files[name] = _text(name, folder, site.owners)
            except (OSError, ValueError) as error:
                why = _why(error) if isinstance(error, OSError) else str(error)
                faults.append(f"{name}: {why}")
        if len(names) > FILES_LIMIT:
            faults.append(f"{site.folder}: {len(names)} files: only the first {FILES_LIMIT} count")
    finally:
        os.close(folder)
    return files, faults


def _text(name: str, folder: int, owners: frozenset[int]) -> str:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(name, flags, dir_fd=folder), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("expected a file")
        if why := _foreign(found, owners):
            raise ValueError(why)
        data = file.read(SIZE_LIMIT + 1)
    if len(data) > SIZE_LIMIT:
        raise ValueError(f"expected at most {SIZE_LIMIT} bytes")
    return data.decode("utf-8")


def _foreign(found: os.stat_result, owners: frozenset[int]) -> str:
    if found.st_uid not in owners:
        expected = " or ".join(map(str, sorted(owners)))
        return f"it belongs to uid {found.st_uid}, expected {expected}: root goes by it"
    if found.st_mode & trust.SHARED:
        return f"others can write to it (mode {stat.S_IMODE(found.st_mode):04o}): chmod go-w it"
    return ""


def node(path: str) -> DeviceNode:
    """Give the character device behind a path below /dev; raise NoNode where there is none.

    Links are followed as udev makes them, in folders that are root's alone, and not out of /dev.
    The node's path is where they led: what a link leads to may change under a job.
    """
    try:
        real, found = trust.follow(path)
    except trust.Shared as shared:
        raise NoNode(f"others than root can write in {shared.path}") from None
    except OSError as error:
        raise NoNode(_why(error)) from None
    if not real.startswith("/dev/"):
        raise NoNode(f"it leads out of /dev, to {real}")
    if stat.S_ISBLK(found.st_mode):
        raise NoNode("it is a block device, and jobs get character devices only")
    if not stat.S_ISCHR(found.st_mode):
        raise NoNode("it is no device")
    return DeviceNode(real, "c", os.major(found.st_rdev), os.minor(found.st_rdev))


def _why(error: OSError) -> str:
    if exhausted(error):
        raise error
    return "there is no such node" if error.errno == errno.ENOENT else str(error.strerror)


def matching(patterns: Iterable[str]) -> Iterator[str]:
    """Give the paths of this host that a reporter may name."""
    for pattern in patterns:
        found = [""]
        for part in pattern.split("/")[1:]:
            found = [
                f"{folder}/{name}"
                for folder in found
                for name in names(folder, part)
                if allowed(name, (part,))
            ]
        yield from found


def names(folder: str, part: str) -> Sequence[str]:
    """Give what there is in a folder; of a part of a path without wildcards, that alone.

    A folder in which others may make as much as they like has nothing that counts.
    """
    if not set(part) & set("*?["):
        return (part,)
    try:
        trust.check(folder)
        return sorted(os.listdir(folder))
    except trust.Shared:
        return ()
    except OSError as error:
        _why(error)
        return ()


def devices(site: Site) -> frozenset[Device]:
    """Give every device that root's configuration lets jobs have, as the nodes are now."""
    paths = [path for one in read(site).instances for path in one.nodes]
    found = set()
    for path in (*paths, *matching(site.patterns)):
        with contextlib.suppress(NoNode):
            found.add(Device.of(node(path)))
        if len(found) >= 2 * NODES_LIMIT:
            break
    return frozenset(found)


def instances(
    host: Host,
    provider: str,
    found: Iterable[Declaration],
    within: Sequence[str] | None = None,
    *,
    look: Callable[[str], DeviceNode] = node,
) -> Iterator[Instance]:
    """Give instances as they are on this host.

    One whose node is missing, or no device, is there and unhealthy. `within` are patterns for the
    nodes that may be named; None: any may. `look` gives the node of a path.
    """
    found = tuple(found)
    owner: dict[Device, str] = {}
    overlaps: dict[str, set[str]] = {one.id: set(one.overlaps) for one in found}
    for one in found:
        for other in one.overlaps:
            overlaps.setdefault(other, set()).add(one.id)
    for one in found:
        nodes: dict[Device, DeviceNode] = {}
        whys = [] if one.healthy else [one.reason]
        for path in one.nodes:
            try:
                if within is not None and not allowed(path, within):
                    raise NoNode("no pattern in [reporter] nodes has it")  # noqa: TRY301  # one end
                made = look(path)
                first = owner.setdefault(Device.of(made), one.id)
                if first != one.id and first not in overlaps[one.id]:
                    raise NoNode(f"it is a node of {first} as well")  # noqa: TRY301  # the same
                nodes.setdefault(Device.of(made), made)
            except NoNode as error:
                whys.append(f"{path}: {error}")
        attributes = dict(_attributes(host, one))
        if one.pci_address and one.pci_address not in host.names("/sys/bus/pci/devices"):
            whys.append(f"there is no PCI function {one.pci_address}")
        yield Instance(
            id=one.id,
            type=one.type,
            provider=provider,
            parent=one.parent,
            overlaps=tuple(sorted(overlaps[one.id])),
            healthy=not whys,
            reason="; ".join(whys),
            attributes=attributes,
            devices=tuple(sorted(nodes.values())),
        )


def _attributes(host: Host, one: Declaration) -> Iterator[tuple[str, AttributeValue]]:
    yield from one.attributes.items()
    if one.pci_address:
        yield from pci.attributes(host, one.pci_address)
    if one.numa_node is not None:
        yield "numa_node", one.numa_node
    if one.environment:
        yield "environment", [f"{name}={value}" for name, value in sorted(one.environment.items())]
