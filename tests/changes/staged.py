"""Run a program in a network of its own, where the bridge `nic0` seems to be a card on PCI.

    staged.py FOLDER ADDRESS PROGRAM [ARGUMENT...]

What /sys/class/net shows of nic0 is the kernel's own, of that bridge: it comes, goes and changes
with it. Only its link `device` is made, to a PCI function of this machine.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

CLONE_NEWNS, CLONE_NEWNET = 0x20000, 0x40000000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
FACTS = ("address", "carrier", "dev_id", "dev_port", "ifindex", "iflink", "operstate", "type")


def main() -> None:
    """Make the namespaces, mount, and become the program."""
    folder, address, *program = sys.argv[1:]
    _sure(_libc.unshare(CLONE_NEWNS | CLONE_NEWNET), "unshare")
    _mount("none", "/", None, MS_REC | MS_PRIVATE)
    real, net = Path(folder) / "sys", Path("/sys/class/net")
    real.mkdir()
    _mount("sysfs", str(real), "sysfs", 0)
    _mount("tmpfs", str(net), "tmpfs", 0)
    shown, own = net / "nic0", real / "class/net/nic0"
    shown.mkdir()
    for name in FACTS:
        (shown / name).symlink_to(own / name)
    # By way of a folder that is there as long as the bridge is.
    (shown / "device").symlink_to(f"{own}/queues/../../../../../bus/pci/devices/{address}")
    if Path("/run/udev").is_dir():
        _mount("tmpfs", "/run/udev", "tmpfs", 0)  # udev's own events stay in its network
    os.execv(program[0], program)  # noqa: S606  # the test's own


_libc = ctypes.CDLL(None, use_errno=True)


def _mount(source: str, target: str, kind: str | None, flags: int) -> None:
    kind_ = None if kind is None else kind.encode()
    _sure(_libc.mount(source.encode(), target.encode(), kind_, flags, None), target)


def _sure(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


if __name__ == "__main__":
    main()
