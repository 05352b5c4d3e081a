"""Records of real cards, as data of the stand-in and as what the inventory must say.

Sources: `nvidia-smi -q` as text and as XML, `nvidia-smi -L`, and NVIDIA's YAML descriptions of
whole nodes. What a record has as N/A, the library does not answer, and the inventory leaves out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

NOTHING = frozenset(
    {"", "N/A", "None", "Unknown Error", "Requested functionality has been deprecated"}
)
MODES = {"Default": 0, "Prohibited": 2, "Exclusive_Process": 3, "Exclusive Process": 3}
STATES = {"not started": 1, "in progress": 2, "completed": 3}

PLAIN = (
    "bus", "name", "uuid", "serial", "minor", "module", "memory", "ecc", "persistence", "mode",
    "power", "mig", "cores",
)  # fmt: skip
"""Keys of a card that the stand-in has as they are here."""

# Fact: its place in the XML, and in the text (where two are given, the later one is older).
PLACES: dict[str, tuple[str, ...]] = {
    "name": ("product_name", "Product Name"),
    "uuid": ("uuid", "GPU UUID"),
    "serial": ("serial", "Serial Number"),
    "minor": ("minor_number", "Minor Number"),
    "module": ("platformInfo/module_id", "gpu_module_id", "Platform Info/Module Id"),
    "memory": ("fb_memory_usage/total", "FB Memory Usage/Total"),
    "ecc": ("ecc_mode/current_ecc", "ECC Mode/Current"),
    "persistence": ("persistence_mode", "Persistence Mode"),
    "mode": ("compute_mode", "Compute Mode"),
    "power": (
        "gpu_power_readings/current_power_limit",
        "power_readings/power_limit",
        "GPU Power Readings/Current Power Limit",
    ),
    "pending": ("remapped_rows/remapped_row_pending", "Remapped Rows/Pending"),
    "failed": ("remapped_rows/remapped_row_failure", "Remapped Rows/Remapping Failure Occurred"),
    "state": ("fabric/state", "Fabric/State"),
    "status": ("fabric/status", "Fabric/Status"),
    "clique": ("fabric/cliqueId", "Fabric/CliqueId"),
    "cluster": ("fabric/clusterUuid", "Fabric/ClusterUUID"),
    "slot": ("platformInfo/slot_number", "Platform Info/Slot Number"),
    "tray": ("platformInfo/tray_index", "Platform Info/Tray Index"),
    "host": ("platformInfo/host_id", "Platform Info/Host ID"),
    "mig": ("mig_mode/current_mig", "MIG Mode/Current"),
}


def of_xml(path: Path) -> list[dict[str, Any]]:
    """Read `nvidia-smi -q -x`."""
    tree = ET.parse(path).getroot()  # noqa: S314  # a file of ours to read
    common = {
        "driver": tree.findtext("driver_version", ""),
        "cuda": tree.findtext("cuda_version", ""),
    }
    cards = []
    for gpu in tree.findall("gpu"):
        card = {**common, "bus": gpu.get("id", ""), **_facts(lambda at, g=gpu: g.findtext(at))}
        card["slices"] = [
            {
                "gi": int(one.findtext("gpu_instance_id", "")),
                "ci": int(one.findtext("compute_instance_id", "")),
                "sm": int(one.findtext("device_attributes/shared/multiprocessor_count", "")),
                "mib": int(one.findtext("fb_memory_usage/total", "").split()[0]),
            }
            for one in gpu.findall("mig_devices/mig_device")
        ]
        cards.append(card)
    return cards


def of_text(path: Path) -> list[dict[str, Any]]:
    """Read the first `nvidia-smi -q` of a file of records, and its `-L` and `nvlink -s`."""
    whole = path.read_text("utf-8")
    section = re.search(r"^# \$ nvidia-smi -q\n#+\n(.*?)^####", whole, re.MULTILINE | re.DOTALL)
    assert section
    tree = _outline(section[1])
    listed = re.findall(r"^  MIG (\S+)\s+Device\s+\d+: \(UUID: (\S+)\)", whole, re.MULTILINE)
    links = len(re.findall(r"^\s+Link \d+: [\d.]+ GB/s", whole, re.MULTILINE))
    cards = []
    for title, gpu in tree.items():
        if not title.startswith("GPU "):
            continue
        card = {
            # Newer ones say behind it that it will be called otherwise.
            "driver": tree.get("Driver Version", "").partition(" ")[0],
            "cuda": tree.get("CUDA Version", "").partition(" ")[0],
            "bus": title.removeprefix("GPU "),
            **_facts(lambda at, g=gpu: _at(g, at)),
        }
        migs = [value for key, value in gpu.items() if key.startswith("MIG Device")]
        card["slices"] = [
            {
                "gi": int(one["GPU Instance ID"]),
                "ci": int(one["Compute Instance ID"]),
                "sm": int(one["Device Attributes"]["Shared"]["Multiprocessor count"]),
                "mib": int(one["Shared FB Memory Usage"]["Total"].split()[0]),
                "profile": profile,
                "uuid": uuid,
            }
            for one, (profile, uuid) in zip(migs, listed, strict=True)
        ]
        if near := re.search(r"^GPU0\s+X\s+(\d+)-(\d+)\s+(\d+)\s", whole, re.MULTILINE):
            card["near"] = tuple(int(number) for number in near.groups())
        if links:
            card["links"] = [("switch", links, "-")]
        cards.append(card)
    return cards


def of_yaml(path: Path) -> list[dict[str, Any]]:
    """Read NVIDIA's description of a whole node."""
    tree = _yaml(path.read_text("utf-8"))
    default, system = tree["device_defaults"], tree["system"]
    nvlink = tree.get("nvlink", {})
    cards = []
    for one in tree["devices"]:
        fabric = default.get("fabric", {})
        enabled = {"enabled": 1, "disabled": 0}
        card = {
            "driver": system["driver_version"],
            "cuda": system["cuda_version"],
            "bus": f"0000{one['pci']['bus_id']}",
            "name": default["name"],
            "uuid": one["uuid"],
            "serial": one.get("serial", default.get("serial")),
            "minor": int(one["minor_number"]),
            "memory": int(default["memory"]["total_bytes"]),
            "power": int(default["power"]["default_limit_mw"]),
            "persistence": enabled[default["persistence_mode"]],
            "mode": 0,
            "capability": "{major}.{minor}".format(**default["compute_capability"]),
            "cores": int(default["num_gpu_cores"]),
            "mig": enabled.get(default.get("mig", {}).get("mode_current", "")),
            "ecc": enabled.get(default.get("ecc", {}).get("mode_current", "")),
            "slices": [],
        }
        if rows := default.get("remapped_rows"):
            card["remap"] = (
                int(rows["pending"] == "true"),
                int(rows["failure_occurred"] == "true"),
            )
        if fabric:
            card["fabric"] = (3, 0, int(fabric["clique_id"]), fabric["cluster_uuid"])
        if switches := nvlink.get("switches"):
            count, many = int(nvlink["links_per_gpu"]), len(switches)
            card["links"] = [
                ("switch", count // many + (place < count % many), f"0000{switch['bdf']}")
                for place, switch in enumerate(switches)
            ]
        cards.append({key: value for key, value in card.items() if value is not None})
    return cards


def data(cards: list[dict[str, Any]]) -> str:
    """Write what the stand-in is to answer."""
    major, _, minor = cards[0]["cuda"].partition(".")
    lines = [f"driver {cards[0]['driver']}"]
    if minor:
        lines.append(f"cuda {int(major) * 1000 + int(minor) * 10}")
    for card in cards:
        keys = {key: card[key] for key in PLAIN if key in card}
        if "capability" in card:
            keys["cc"] = card["capability"]
        if "remap" in card:
            keys["remap"] = "{},{}".format(*card["remap"])
        if "platform" in card:
            keys["platform"] = ",".join(
                str(255 if number is None else number) for number in card["platform"]
            )
        if "near" in card:
            first, last, node = card["near"]
            cpus = (1 << (last + 1)) - (1 << first)
            keys["cpus"] = ",".join(
                f"{cpus >> at & (1 << 64) - 1:x}" for at in range(0, last + 1, 64)
            )
            keys["nodes"] = f"{1 << node:x}"
        if "fabric" in card:
            state, status, clique, cluster = card["fabric"]
            keys["fabric"] = f"{state},{status},{clique},{cluster.replace('-', '')},0"
        if "links" in card:
            keys["nvlinks"] = ";".join("{}:{}:{}".format(*link) for link in card["links"])
        lines.append("gpu " + _keys(keys))
        for place, one in enumerate(card["slices"]):
            slice_keys = {
                "uuid": one.get("uuid", f"MIG-{card['uuid'][4:]}-{place}"),
                "gi": one["gi"], "ci": one["ci"], "sm": one["sm"], "memory": one["mib"] << 20,
            }  # fmt: skip
            if "profile" in one:
                slice_keys["name"] = f"{card['name']} MIG {one['profile']}"
            lines.append("mig " + _keys(slice_keys))
    return "\n".join(lines) + "\n"


def _keys(keys: dict[str, Any]) -> str:
    return " ".join(f"{key}={str(value).replace(' ', '_')}" for key, value in keys.items())


def expected(card: dict[str, Any]) -> dict[str, Any]:
    """Give what the inventory must say of a card: attribute by attribute, None for absent."""
    pending, failed = (bool(flag) for flag in card.get("remap", (0, 0)))
    state, _, clique, cluster = card.get("fabric", (0, 0, None, None))
    slot, tray, host = card.get("platform", (None, None, None))
    first, last, node = card.get("near", (None, None, None))
    bus = card["bus"].lower()
    return {
        "pci_address": bus[4:] if bus.startswith("0000") and len(bus) > 12 else bus,
        "model": card["name"],
        "uuid": card["uuid"],
        "serial": card.get("serial"),
        "minor": card.get("minor"),
        "module_id": card.get("module"),
        "memory_bytes": card["memory"],
        "driver_version": card["driver"] or None,
        "cuda_version": card["cuda"] or None,
        "ecc_mode": {0: "off", 1: "on"}.get(card.get("ecc", 2)),
        "persistence_mode": {0: False, 1: True}.get(card.get("persistence", 2)),
        "compute_mode": {0: "default", 2: "prohibited", 3: "exclusive_process"}[card["mode"]],
        "power_limit_watts": card["power"] // 1000 if "power" in card else None,
        "row_remap_pending": pending if "remap" in card else None,
        "row_remap_failed": failed if "remap" in card else None,
        "fabric_state": {3: "completed", 2: "in_progress", 1: "not_started"}.get(state),
        "fabric_clique": clique,
        "fabric_cluster": cluster,
        "slot_number": slot,
        "tray_index": tray,
        "host_id": host,
        "local_cpus": f"{first}-{last}" if last else None,
        "numa_node": node,
        "nvlink_count": sum(link[1] for link in card["links"]) if "links" in card else None,
    }


def _facts(find: Any) -> dict[str, Any]:
    """Give the facts that `find` tells, as the library would."""
    told = {}
    for name, places in PLACES.items():
        values = [(find(place) or "").strip() for place in places]
        told[name] = next((value for value in values if value and value not in NOTHING), None)
    card: dict[str, Any] = {
        name: told[name] for name in ("name", "uuid", "serial") if told[name] is not None
    }
    card |= {name: int(told[name]) for name in ("minor", "module") if told[name] is not None}
    card["memory"] = int(told["memory"].split()[0]) << 20
    if told["power"]:
        card["power"] = round(float(told["power"].split()[0]) * 1000)
    for name in ("ecc", "persistence", "mig"):
        if told[name] is not None:
            card[name] = int(told[name] == "Enabled")
    card["mode"] = MODES[told["mode"]]
    if told["pending"] is not None:
        card["remap"] = (int(told["pending"] == "Yes"), int(told["failed"] == "Yes"))
    if told["state"] is not None:
        state = STATES[told["state"].lower()]
        status = 0 if told["status"] == "Success" else 999
        card["fabric"] = (state, status, int(told["clique"]), told["cluster"])
    places = [None if told[name] is None else int(told[name]) for name in ("slot", "tray", "host")]
    if any(place is not None for place in places):
        card["platform"] = tuple(places)
    return card


def _at(tree: dict[str, Any], place: str) -> Any:
    found: Any = tree
    for part in place.split("/"):
        found = found.get(part) if isinstance(found, dict) else None
    return found if isinstance(found, str) else None


def _outline(text: str) -> dict[str, Any]:
    """Read lines `key : value` and titles, four spaces deeper each; a title may come again."""
    tree: dict[str, Any] = {}
    open_at = [(-1, tree)]
    for line in text.splitlines():
        if not line.strip() or line.startswith("="):
            continue
        depth = len(line) - len(line.lstrip())
        while open_at[-1][0] >= depth:
            open_at.pop()
        key, colon, value = line.strip().partition(" : ")
        key = key.strip()
        if colon:
            open_at[-1][1][key] = value.strip()
            continue
        while key in open_at[-1][1]:
            key += "+"
        branch: dict[str, Any] = {}
        open_at[-1][1][key] = branch
        open_at.append((depth, branch))
    return tree


def _yaml(text: str) -> Any:
    """Read as much of YAML as these files use: maps, lists, and scalars, which stay text."""
    lines = []
    for line in text.splitlines():
        bare = re.sub(r"(^|\s)#.*$", "", line).rstrip()
        if bare:
            lines.append((len(bare) - len(bare.lstrip()), bare.lstrip()))

    def block(at: int, depth: int) -> tuple[Any, int]:
        found: Any = [] if lines[at][1].startswith("- ") else {}
        while at < len(lines) and lines[at][0] >= depth:
            if isinstance(found, list):
                if not lines[at][1].startswith("- "):
                    break
                lines[at] = (lines[at][0] + 2, lines[at][1][2:])
                if ":" in lines[at][1] and not lines[at][1].startswith('"'):
                    item, at = block(at, lines[at][0])
                else:
                    item, at = lines[at][1].strip('"'), at + 1
                found.append(item)
                continue
            key, _, value = lines[at][1].partition(":")
            at += 1
            if value.strip():
                found[key] = value.strip().strip('"')
            elif at < len(lines) and lines[at][0] > depth - (lines[at][1][:2] == "- "):
                found[key], at = block(at, lines[at][0])
            else:
                found[key] = {}
        return found, at

    return block(0, 0)[0]
