"""Which device numbers belong to drivers that jobs are fenced from.

The binder is told by the agent which devices are managed, and does not take its word: a device
must belong to a driver of this closed table, as the kernel lists them, or be a simulated node
that the binder made. So even a captured agent cannot make it deny `/dev/null`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from xce_nodeagent.errors import exhausted
from xce_nodeagent.model import major
from xce_nodeagent.model.rule import MAJOR_LIMIT, MINOR_LIMIT, Device
from xce_nodeagent.privileged.channel import Violation

DRIVERS = frozenset(
    {
        # NVIDIA. The GPUs' own major, 195, is `nvidia-frontend` up to the 545 drivers, after
        # that `nvidia`, `nvidiactl` and `nvidia-modeset`.
        "nvidia",
        "nvidia-frontend",
        "nvidiactl",
        "nvidia-modeset",
        "nvidia-uvm",
        "nvidia-caps",
        "nvidia-caps-imex-channels",
        "nvidia-nvlink",
        "nvidia-nvswitch",
        # What the kernel has for all vendors (drivers/gpu/drm, drivers/accel), and AMD's compute
        # node (drivers/gpu/drm/amd/amdkfd).
        "drm",
        "kfd",
        "accel",
        # Intel Gaudi before it moved to `accel`.
        "habanalabs",
        # RDMA (drivers/infiniband/core): uverbs*, umad* and issm*, ucm*; and Omni-Path's own.
        "infiniband_verbs",
        "infiniband_mad",
        "infiniband_cm",
        "hfi1",
        # Slingshot (HPE's cxi-driver, cxi_user): cxi*.
        "ucxi",
    }
)
"""Names of character drivers in /proc/devices."""

MISC_MAJOR = 10  # Documentation/admin-guide/devices.txt
MISC_DEVICES = frozenset({"rdma_cm"})
"""Names in /proc/misc. The misc major is shared by unrelated drivers (kvm, fuse, vfio, ...), so
it is not enough: the minor must be the one that the kernel gave to one of these. The connection
manager of RDMA is the only one that jobs are given."""


def character_drivers(proc: Path) -> dict[int, frozenset[str]]:
    """Read which drivers of this host have registered each character major."""
    return major.character_drivers((proc / "devices").read_text("utf-8"))


def misc_minors(proc: Path) -> dict[int, str]:
    """Read /proc/misc: the name behind each minor."""
    try:
        text = (proc / "misc").read_text("utf-8")
    except OSError as error:
        if exhausted(error):
            raise
        return {}  # a kernel without misc devices
    lines = (line.split() for line in text.splitlines())
    return {int(line[0]): line[1] for line in lines if len(line) == 2}


def foreign(
    devices: Iterable[Device], *, made: Collection[Device], proc: Path
) -> dict[Device, str]:
    """Give the devices that are of no driver in the tables and were not made by us, with why."""
    unknown = sorted(set(devices) - set(made))
    if not unknown:
        return {}
    drivers, misc = character_drivers(proc), misc_minors(proc)
    found: dict[Device, str] = {}
    for device in unknown:
        if not (0 <= device.major < MAJOR_LIMIT and 0 <= device.minor < MINOR_LIMIT):
            found[device] = f"{device} is no device number"
            continue
        names = drivers.get(device.major, frozenset()) if device.type == "c" else frozenset()
        known = bool(names & DRIVERS)
        if device.major == MISC_MAJOR and device.type == "c":
            known = misc.get(device.minor) in MISC_DEVICES
        if not known:
            owner = ", ".join(sorted(names)) or "no driver that is loaded"
            found[device] = f"{device} belongs to {owner}, whose devices are never managed"
    return found


def check(devices: Iterable[Device], *, made: Collection[Device], proc: Path) -> None:
    """Raise Violation unless each device is of a driver in the tables, or one that we made."""
    for why in foreign(devices, made=made, proc=proc).values():
        raise Violation(why)
