"""Writes the part of sysfs that `udevadm info --export-db` tells (udevadm(8)).

The database has the path of each device, its subsystem, its driver, and the numbers of its node;
it has no attributes, so `numa_node`, addresses and speeds are not there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from recorded.tree import Tree

SUBSYSTEMS = frozenset(
    (
        "pci",
        "usb",
        "virtio",
        "net",
        "infiniband",
        "infiniband_verbs",
        "infiniband_mad",
        "drm",
        "accel",
        "misc",
    )
)


def write(text: str, root: Path) -> Path:
    """Write the tree below a folder, and give that."""
    tree = Tree(root)
    (root / "sys/bus/pci/devices").mkdir(parents=True)
    (root / "sys/class").mkdir(parents=True)
    for entry in entries(text):
        if entry.get("SUBSYSTEM") in SUBSYSTEMS and "DEVPATH" in entry:
            _write(tree, entry)
    return root


def entries(text: str) -> Iterator[dict[str, str]]:
    """Give the properties of each device."""
    for block in text.split("\n\n"):
        properties = (line[3:] for line in block.splitlines() if line.startswith("E: "))
        entry = dict(line.split("=", 1) for line in properties if "=" in line)
        if entry:
            yield entry


def _write(tree: Tree, entry: dict[str, str]) -> None:
    subsystem = entry["SUBSYSTEM"]
    folder = f"sys{entry['DEVPATH']}"
    tree.device(folder, subsystem)
    if driver := entry.get("DRIVER"):
        tree.driver(folder, subsystem, driver)
    if "MAJOR" in entry:
        tree.file(f"{folder}/dev", f"{entry['MAJOR']}:{entry['MINOR']}")
    if subsystem == "pci":
        # Without leading zeros; the attribute has them.
        tree.number(f"{folder}/class", int(entry["PCI_CLASS"], 16), 6)
        for name, numbers in (("", entry["PCI_ID"]), ("subsystem_", entry["PCI_SUBSYS_ID"])):
            vendor, device = (int(number, 16) for number in numbers.split(":"))
            tree.number(f"{folder}/{name}vendor", vendor)
            tree.number(f"{folder}/{name}device", device)
    elif subsystem == "net":
        tree.file(f"{folder}/ifindex", entry["IFINDEX"])
        # udev names an interface so after the address that the hardware has.
        if match := re.fullmatch(r"enx([0-9a-f]{12})", entry.get("ID_NET_NAME_MAC", "")):
            tree.file(f"{folder}/address", ":".join(re.findall("..", match[1])))
    elif subsystem == "infiniband":
        # The database has no ports, as they are no devices; each RDMA device has one at least.
        (tree.root / folder / "ports/1").mkdir(parents=True, exist_ok=True)
    elif subsystem == "infiniband_verbs":
        for link in entry.get("DEVLINKS", "").split():
            if match := re.fullmatch(r"/dev/infiniband/by-ibdev/uverbs-(\S+)", link):
                tree.file(f"{folder}/ibdev", match[1])
