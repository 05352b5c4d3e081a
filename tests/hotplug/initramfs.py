"""The small system that the guest boots: busybox, udev, an interpreter and the project, as cpio.

Of the interpreter and its libraries that goes in which a process has in use that did once what the
guest is to do. The kernel and udev are the distribution's packages, taken apart and kept outside
of the repository, like the image of the container for systemd.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

CACHE = Path("/var/cache/xce-nodeagent")
REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "xce_nodeagent"
MODULES = ("virtio_pci", "virtio_net", "e1000e", "crc32_generic", "rdma_rxe", "ib_uverbs")
_ALIGNED = 4

_INIT = """#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /run /tmp /var /sbin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs run /run
/sbin/ldconfig
for module in {modules}; do insmod $module || echo "no $module"; done
ip link set lo up
/lib/systemd/systemd-udevd --daemon && udevadm trigger && udevadm settle --timeout 30
export PYTHONPATH={path} PYTHONDONTWRITEBYTECODE=1 HOME=/
{python} -S {guest} /dev/ttyS1
poweroff -f
"""

_USED = """
import json, sys
sys.argv = ["guest", "/dev/null"]
from hotplug import guest
from xce_nodeagent.discovery import Discovery
from xce_nodeagent.host import Host, linkmonitor
from xce_nodeagent.host.event import AGAIN
from xce_nodeagent.providers import all_providers
Discovery(Host(), all_providers()).look()
linkmonitor.LinkMonitor().close()
guest.udev.Monitor()
guest.subprocess.run(["true"], check=True, capture_output=True, text=True)
files = [getattr(one, "__file__", None) for one in list(sys.modules.values())]
files += [getattr(one, "__cached__", None) for one in list(sys.modules.values())]
files += [line.split(None, 5)[5].strip() for line in open("/proc/self/maps") if "/" in line]
print(json.dumps(sorted(set(filter(None, files)))))
"""


def unpacked(package: str) -> Path:
    """Give the folder with the files of a package of the distribution; fetch it where need be."""
    folder = CACHE / f"{package}-unpacked"
    if not folder.exists():
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        (partial / "deb").mkdir(parents=True)
        subprocess.run(
            ["apt-get", "-qq", "download", package], cwd=partial / "deb", check=True,
            stdin=subprocess.DEVNULL, capture_output=True, timeout=300,
        )  # fmt: skip
        (archive,) = (partial / "deb").iterdir()
        subprocess.run(["dpkg-deb", "-x", archive, partial], check=True, timeout=300)
        shutil.rmtree(partial / "deb")
        partial.rename(folder)
    return folder


def kernel() -> str:
    """Give the name of the package that is the distribution's newest kernel."""
    told = subprocess.run(
        ["apt-cache", "depends", "linux-image-amd64"], check=True, capture_output=True, text=True
    ).stdout
    (name,) = re.findall(r"Depends: (linux-image-[0-9]\S+)", told)[:1]
    return name


def build(target: Path, linux: Path, udev: Path) -> None:
    """Write the archive."""
    modules = list(_modules(linux))
    python = os.path.realpath(sys.executable)
    programs = {
        python: Path(python),
        "/bin/busybox": Path("/usr/bin/busybox"),
        "/bin/rdma": Path("/usr/bin/rdma"),
        "/bin/udevadm": _of(udev, "bin/udevadm"),
        "/lib/systemd/systemd-udevd": _of(udev, "bin/udevadm"),  # it is one program
    }
    libraries = {one for program in programs.values() for one in _libraries(program)}
    files: dict[str, Path | str] = {path: Path(path) for path in {*_used(), *libraries}}
    files.update(programs)
    helpers = _of(udev, "lib/udev")
    for folder, within in ((helpers, "/lib/udev"), (PACKAGE, str(PACKAGE))):
        for path in folder.rglob("*"):
            if path.is_file() and "hwdb.d" not in path.parts:
                files[f"{within}/{path.relative_to(folder)}"] = path
    guest = Path(__file__).with_name("guest.py")
    files[str(guest)] = guest
    for module in modules:
        files[f"/modules/{module.name}"] = module
    site = next(one for one in sys.path if one.endswith("site-packages"))
    files["/init"] = _INIT.format(
        modules=" ".join(f"/modules/{one.name}" for one in modules),
        path=f"{REPOSITORY}:{site}",
        python=python,
        guest=guest,
    )
    files["/etc/passwd"] = "root:x:0:0::/:/bin/sh\n"
    files["/etc/group"] = "root:x:0:\n"
    # Where the libraries are; it makes their short names, and the table in which Python looks.
    files["/sbin/ldconfig"] = Path("/sbin/ldconfig")
    shared = {str(Path(name).parent) for name in files if ".so" in name}
    files["/etc/ld.so.conf"] = "".join(f"{folder}\n" for folder in sorted(shared))
    with target.open("wb") as archive:
        for chunk in _cpio(files):
            archive.write(chunk)


def _of(package: Path, name: str) -> Path:
    """Give a file of a package: newer ones have all below `usr`."""
    return next(path for path in (package / "usr" / name, package / name) if path.exists())


def _used() -> list[str]:
    code = _USED
    told = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests'}"},
    ).stdout  # fmt: skip
    found: list[str] = json.loads(told.splitlines()[-1])
    return [path for path in found if os.path.isfile(path)]


def _libraries(program: Path) -> list[str]:
    told = subprocess.run(["ldd", program], check=False, capture_output=True, text=True).stdout
    return re.findall(r"(/\S+) \(0x", told)


def _modules(linux: Path) -> Iterator[Path]:
    """Give the modules in the order in which they are loaded."""
    there = {path.stem.replace("-", "_"): path for path in linux.rglob("*.ko")}
    done: set[str] = set()

    def add(name: str) -> Iterator[Path]:
        if name in done or name not in there:
            return
        done.add(name)
        path = there[name]
        (needs,) = re.findall(rb"\0?depends=([^\0]*)\0", path.read_bytes())[:1]
        for other in needs.decode().split(","):
            yield from add(other.replace("-", "_"))
        yield path

    for wanted in MODULES:
        yield from add(wanted)


def _cpio(files: dict[str, Path | str]) -> Iterator[bytes]:
    """Write the format `newc` (kernel: driver-api/early-userspace/buffer-format)."""
    folders = {str(parent) for name in files for parent in Path(name).parents} - {"/"}
    for folder in sorted(folders):
        yield from _entry(folder, stat.S_IFDIR | 0o755, b"", 0)
    for name, source in sorted(files.items()):
        if isinstance(source, str):
            yield from _entry(name, stat.S_IFREG | 0o755, source.encode(), 0)
        else:
            # What Python compiled is told to be of a file by that file's time.
            known = source.stat()
            mode = stat.S_IFREG | stat.S_IMODE(known.st_mode)
            yield from _entry(name, mode, source.read_bytes(), int(known.st_mtime))
    yield from _entry("/dev/console", stat.S_IFCHR | 0o600, b"", 0, (5, 1))
    yield from _entry("/TRAILER!!!", 0, b"", 0)


def _entry(
    name: str, mode: int, data: bytes, mtime: int, device: tuple[int, int] = (0, 0)
) -> Iterable[bytes]:
    path = name.lstrip("/").encode() + b"\0"
    numbers = (0, mode, 0, 0, 1, mtime, len(data), 0, 0, *device, len(path), 0)
    head = b"070701" + b"".join(b"%08X" % number for number in numbers) + path
    yield head + bytes(-len(head) % _ALIGNED)
    yield data + bytes(-len(data) % _ALIGNED)
