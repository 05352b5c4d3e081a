"""Which device numbers belong to drivers that jobs are fenced from.

The binder is told by the agent which devices are managed, and does not take its word: a device
must belong to a driver of this closed table, as the kernel lists them, or be a simulated node
that the binder made, or one that root declared for jobs (host/declared.py), as far as it is not one
that the host itself lives by. So even a captured agent cannot make it deny `/dev/null`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
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
        # AWS Neuron, Tenstorrent (tt-kmd), NEC's Vector Engines.
        "neuron",
        "tenstorrent",
        "ve_drv",
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


HOSTS_OWN = frozenset(
    {
        "mem",  # memory, kmem, port, kmsg; and null, zero, random
        "/dev/vc/0",
        "/dev/tty",
        "/dev/console",
        "/dev/ptmx",
        "ptm",
        "pts",
        "vcs",
        # Ways to disks that are no block devices.
        "sg",
        "bsg",
        "nvme",
        "nvme-generic",
        "mtd",
        "ubi",
        "raw",
        "dax",
        "ndctl",
        "dimmctl",
        "megaraid_sas_ioctl",
        # Firmware, processor and clock.
        "cpu/msr",
        "cpu/cpuid",
        "mei",
        "ipmidev",
        "tpm",
        "watchdog",
        "rtc",
    }
)
"""Names of character drivers whose devices nobody can declare for jobs."""

SERIAL_MINORS = range(64, 256)
"""Of the major of consoles, 4: serial lines (kernel: admin-guide/devices.txt)."""

HOSTS_OWN_MISC = frozenset(
    {"autofs", "btrfs-control", "cpu_dma_latency", "cuse", "device-mapper", "ecryptfs", "fuse",
     "hpet", "hw_random", "hwrng", "kvm", "lightnvm", "loop-control", "mcelog", "megadev0",
     "memory_bandwidth", "microcode", "nvram", "psaux", "rfkill", "snapshot", "tun", "udmabuf",
     "uhid", "uinput", "userfaultfd", "vboxguest", "vfio", "vga_arbiter", "vhost-net",
     "vhost-vsock", "watchdog", "zfs"}
)  # fmt: skip
"""The same, of misc devices."""


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
    devices: Iterable[Device],
    *,
    made: Collection[Device],
    proc: Path,
    declared: Callable[[], Collection[Device]] = frozenset,
) -> dict[Device, str]:
    """Give the devices that are of no driver in the tables and were not made by us, with why.

    `declared` gives those that root declared; it is asked only where others than the tables' are.
    """
    unknown = sorted(set(devices) - set(made))
    if not unknown:
        return {}
    drivers, misc = character_drivers(proc), misc_minors(proc)
    found: dict[Device, str] = {}
    declarations: Collection[Device] | None = None
    for device in unknown:
        if not (0 <= device.major < MAJOR_LIMIT and 0 <= device.minor < MINOR_LIMIT):
            found[device] = f"{device} is no device number"
            continue
        names = drivers.get(device.major, frozenset()) if device.type == "c" else frozenset()
        known = bool(names & DRIVERS)
        if device.major == MISC_MAJOR and device.type == "c":
            known = misc.get(device.minor) in MISC_DEVICES
        if known:
            continue
        if declarations is None:
            declarations = declared()
        if device not in declarations or _is_hosts_own(device, names, misc):
            owner = ", ".join(sorted(names)) or "no driver that is loaded"
            found[device] = f"{device} belongs to {owner}, whose devices are never managed"
    return found


def _is_hosts_own(device: Device, names: frozenset[str], misc: dict[int, str]) -> bool:
    """Say whether the host lives by a device, so that no declaration makes it a job's."""
    if device.type != "c":
        return True
    if device.major == MISC_MAJOR:
        return device.minor not in misc or misc[device.minor] in HOSTS_OWN_MISC
    if "/dev/vc/0" in names and device.minor in SERIAL_MINORS:
        return False
    return bool(names & HOSTS_OWN)


def check(
    devices: Iterable[Device],
    *,
    made: Collection[Device],
    proc: Path,
    declared: Callable[[], Collection[Device]] = frozenset,
) -> None:
    """Raise Violation unless each device is in the tables, one that we made, or root declared."""
    for why in foreign(devices, made=made, proc=proc, declared=declared).values():
        raise Violation(why)
