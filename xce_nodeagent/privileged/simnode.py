"""The device nodes of a simulated machine: real nodes, so that the fence in front of them is real.

Their majors are those set aside for local use, behind which no driver is: an open() that the fence
lets through ends with ENXIO, one that it refuses with EPERM. The folder bears a marker file; only
what lies in a folder with the marker is ever changed or removed, and of that only such nodes.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from xce_nodeagent.errors import BadConfig, Enforcement
from xce_nodeagent.model.instance import DeviceNode
from xce_nodeagent.model.major import LOCAL_MAJORS
from xce_nodeagent.model.rule import MINOR_LIMIT, Device
from xce_nodeagent.privileged import majors

MARKER = ".made-by-xce-nodeagent"
NODE_MODE = 0o666
FOLDER_MODE = 0o755

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def make(directory: str, nodes: Iterable[DeviceNode], *, proc: Path) -> frozenset[Device]:
    """Make these nodes below the folder, and no others; give the devices. Idempotent.

    Raises BadConfig for a node that may not be made, Enforcement when the folder is not ours or
    a driver of this host has one of the majors.
    """
    wanted = {_checked(directory, node): Device.of(node) for node in nodes}
    drivers = majors.character_drivers(proc)
    for device in wanted.values():
        if names := drivers.get(device.major):
            raise Enforcement(
                f"{directory}: the simulated device {device} is taken on this host by"
                f" {', '.join(sorted(names))}: unload that driver, or do not simulate here",
                major=device.major,
            )
    with _marked(directory, make_it=True) as top:
        if top is None:
            raise AssertionError  # it was to be made
        _prune(top, "", wanted)
        for path, device in sorted(wanted.items()):
            _node(top, path, device)
    return frozenset(wanted.values())


def remove(directory: str) -> None:
    """Remove our nodes, and the folder if nothing else is in it. One without a marker is left."""
    with contextlib.suppress(FileNotFoundError), _marked(directory, make_it=False) as top:
        if top is None:
            return
        _prune(top, "", {})
        if os.listdir(top) == [MARKER]:
            os.unlink(MARKER, dir_fd=top)
            os.rmdir(directory)


def _checked(directory: str, node: DeviceNode) -> str:
    """Give the path below the folder; raise BadConfig when the node may not be made."""
    prefix = directory.rstrip("/") + "/"
    inside = node.path.removeprefix(prefix)
    parts = inside.split("/")
    if not node.path.startswith(prefix) or any(part in ("", ".", "..", MARKER) for part in parts):
        raise BadConfig(f"simulated device {node.path}: expected a path below {directory}")
    if node.type != "c" or node.major not in LOCAL_MAJORS or not 0 <= node.minor < MINOR_LIMIT:
        raise BadConfig(
            f"simulated device {node.path}: {node.type} {node.major}:{node.minor}: expected a"
            " character device with a major for local use (60-63, 120-127)"
        )
    return inside


@contextlib.contextmanager
def _marked(directory: str, *, make_it: bool) -> Iterator[int | None]:
    """Open the folder if it bears our marker; None when it does not and is not to be made."""
    if make_it:
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, FOLDER_MODE)
    try:
        top = os.open(directory, _FOLDER)
    except NotADirectoryError:  # also what O_NOFOLLOW says of a link with O_DIRECTORY
        raise Enforcement(
            f"{directory}: expected a folder of our own, not a link or a file: remove it",
            path=directory,
        ) from None
    try:
        owner = os.fstat(top)
        trusted = owner.st_uid == os.geteuid() and not owner.st_mode & 0o022
        inside = os.listdir(top)
        if MARKER not in inside or not trusted:
            if not make_it:
                yield None
                return
            # An empty one that only root can write to is taken: a crash may have come between
            # making it and marking it.
            if inside or not trusted:
                raise Enforcement(
                    f"{directory} exists and was not made by us: remove it, or set"
                    " [simulate] device_directory to another folder",
                    path=directory,
                )
            os.close(os.open(MARKER, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444, dir_fd=top))
        if make_it:
            os.fchmod(top, FOLDER_MODE)  # whatever the umask took
        yield top
    finally:
        os.close(top)


def _prune(folder: int, inside: str, wanted: dict[str, Device]) -> None:
    """Remove nodes that are not wanted, or are not what is wanted, and folders left empty."""
    for name in os.listdir(folder):
        path = f"{inside}/{name}" if inside else name
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            below = os.open(name, _FOLDER, dir_fd=folder)
            try:
                _prune(below, path, wanted)
                empty = not os.listdir(below)
            finally:
                os.close(below)
            if empty:
                os.rmdir(name, dir_fd=folder)
        elif stat.S_ISCHR(found.st_mode) and os.major(found.st_rdev) in LOCAL_MAJORS:
            device = Device("c", os.major(found.st_rdev), os.minor(found.st_rdev))
            if wanted.get(path) != device:
                os.unlink(name, dir_fd=folder)


def _node(top: int, path: str, device: Device) -> None:
    *folders, name = path.split("/")
    with contextlib.ExitStack() as stack:
        folder = top
        for part in folders:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, FOLDER_MODE, dir_fd=folder)
            folder = os.open(part, _FOLDER, dir_fd=folder)
            stack.callback(os.close, folder)
            os.fchmod(folder, FOLDER_MODE)
        try:
            os.mknod(
                name,
                stat.S_IFCHR | NODE_MODE,
                os.makedev(device.major, device.minor),
                dir_fd=folder,
            )
        except FileExistsError:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISCHR(found.st_mode):
                raise Enforcement(
                    f"{path}, in the folder of simulated devices, is not a device node: remove it",
                    path=path,
                ) from None
        os.chmod(name, NODE_MODE, dir_fd=folder)  # whatever the umask took
