"""Kubernetes: the devices of a host as ResourceSlices (resource.k8s.io/v1), for a DRA driver.

Source: the API's own descriptions, of Kubernetes 1.35 and later. One pool, named as the node; the
counters are in slices of their own, ahead of the devices. Before 1.35 counters stood in the slice
of their devices, so where instances overlap, such an API server refuses this.

What the host keeps for itself is left out; what is unhealthy or drained is there with a taint.
Attributes of no domain are the driver's own: `device.attributes["xce.io"].numaNode`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

from xce_nodeagent.export.counter import counters
from xce_nodeagent.export.offer import in_bus_order, one_line
from xce_nodeagent.model.instance import AttributeValue, Instance
from xce_nodeagent.model.inventory import Inventory

DRIVER = "xce.io"
_API = "resource.k8s.io/v1"
_LABEL = 63  # characters of a DNS label (RFC 1123)
_TEXT = 64  # bytes of a string or a version, as the API server counts
_FACTS = 32  # attributes and capacities of a device
_DEVICES = 64  # in a slice, where there are taints or counters; else 128
_SETS = 8  # counter sets in a slice
_COUNTERS = 32  # in a set

_QUALIFIED = {"pci_address": "resource.kubernetes.io/pciBusID",
              "pcie_root": "resource.kubernetes.io/pcieRoot"}  # fmt: skip
"""Names that Kubernetes itself gives a meaning, so that claims can match devices across drivers."""

_NAMES = {"model": "productName", "compute_capability": "cudaComputeCapability",
          "cuda_version": "cudaDriverVersion", "netdev": "ifName"}  # fmt: skip
"""Names as other drivers (NVIDIA's, DRANET) have them; all others are ours, in camel case."""

_VERSIONS = frozenset({"driver_version", "cuda_version", "compute_capability"})
_CAPACITIES = {"memory_bytes": "memory", "multiprocessors": "multiprocessors"}


def resource_slices(inventory: Inventory) -> str:
    """Give a list of ResourceSlices as JSON, as `kubectl apply -f` takes it."""
    told = [
        one
        for one in in_bus_order(inventory.instances)
        if one.type not in inventory.divisible and not one.reserved
    ]
    names = device_names(told)
    sets, takes = _counters(told, names)
    devices = [_device(one, names[one.id], takes.get(one.id, [])) for one in told]
    parts: list[dict[str, Any]] = [{"sharedCounters": some} for some in _split(sets, _SETS)]
    parts += [{"devices": some} for some in _split(devices, _DEVICES)]
    node = _subdomain(inventory.node)
    pool = {"name": node, "generation": inventory.number, "resourceSliceCount": len(parts)}
    items = [
        {
            "apiVersion": _API,
            "kind": "ResourceSlice",
            "metadata": {"name": _subdomain(f"{node}-{DRIVER}-{place}")},
            "spec": {"driver": DRIVER, "nodeName": node, "pool": pool, **part},
        }
        for place, part in enumerate(parts)
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2) + "\n"


def device_names(instances: Sequence[Instance]) -> dict[str, str]:
    """Give each a name that is a DNS label: its type and id, with a hash where one is not itself.

    `GPU-…` becomes `gpu-…`, the NIC `0000:3b:00.0` `nic-0000-3b-00-0`.
    """
    found: dict[str, str] = {}
    taken: set[str] = set()
    for one in instances:
        plain = one.id if one.id.lower().startswith(f"{one.type}-") else f"{one.type}-{one.id}"
        name = re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")
        if not name or len(name) > _LABEL or name in taken or not plain.isascii():
            name = _hashed(name, one.id)
        found[one.id] = name
        taken.add(name)
    return found


def _hashed(name: str, origin: str) -> str:
    digest = sha256(origin.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{name[: _LABEL - 13]}-{digest}".strip("-")


def _subdomain(text: str) -> str:
    """Give a name as Kubernetes has names of objects (RFC 1123): at most 253 characters."""
    labels = [
        re.sub(r"[^a-z0-9]+", "-", label).strip("-")[:_LABEL].strip("-")
        for label in text.lower().split(".")
    ]
    return ".".join(filter(None, labels))[:253].strip("-.") or "node"


def _split(values: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (values[start : start + size] for start in range(0, len(values), size))


def _counters(
    told: Sequence[Instance], names: Mapping[str, str]
) -> tuple[list[dict[str, Any]], dict[str, list[dict[str, Any]]]]:
    """Give the counter sets, and what each instance takes of them."""
    sets: list[dict[str, Any]] = []
    takes: dict[str, list[dict[str, Any]]] = {}
    for group in counters(told):
        for part in _split(group, _COUNTERS):
            name = names[part[0].of]
            if any(one["name"] == name for one in sets):
                name = _hashed(name, f"{name} {len(sets)}")
            labels = {one: f"share-{place}" for place, one in enumerate(map(id, part))}
            sets.append({
                "name": name,
                "counters": {labels[id(one)]: {"value": str(one.units)} for one in part},
            })  # fmt: skip
            for who in sorted({who for one in part for who in one.takes}):
                used = {
                    labels[id(one)]: {"value": str(one.takes[who])}
                    for one in part
                    if who in one.takes
                }
                takes.setdefault(who, []).append({"counterSet": name, "counters": used})
    return sets, takes


def _device(one: Instance, name: str, takes: list[dict[str, Any]]) -> dict[str, Any]:
    capacity = {
        word: {"value": str(one.attributes[key])}
        for key, word in _CAPACITIES.items()
        if one.number(key, -1) >= 0
    }
    room = _FACTS - len(capacity)
    device: dict[str, Any] = {"name": name, "attributes": dict(list(_attributes(one))[:room])}
    if capacity:
        device["capacity"] = capacity
    if takes:
        device["consumesCounters"] = takes
    taints = [
        {"key": f"{DRIVER}/{key}", "effect": "NoSchedule"}
        for key, is_so in (("unhealthy", not one.healthy), ("drained", one.drained))
        if is_so
    ]
    if taints:
        device["taints"] = taints
    return device


def _attributes(one: Instance) -> Iterator[tuple[str, dict[str, Any]]]:
    """Give an instance's attributes, those first that the API or other drivers know.

    A text that is longer than the API takes is left out, for half of it would be wrong; a reason,
    which is for people, is cut.
    """
    if reason := one_line(one.reason):
        yield "reason", {"string": _cut(reason)}
    for key, text in (("type", one.type), ("id", one.id)):
        if value := _typed(key, text):
            yield key, value
    known = [*_QUALIFIED, *_NAMES, "uuid", "numa_node"]
    order = sorted(one.attributes, key=lambda key: (known.index(key) if key in known else 99, key))
    for key in order:
        if key in _CAPACITIES or key == "environment":
            continue  # what a job is told is no fact of the device
        name = _QUALIFIED.get(key) or _NAMES.get(key) or _camel(key)
        if name and (value := _typed(key, one.attributes[key])):
            yield name, value


def _typed(key: str, value: AttributeValue) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        return {"int": value} if -(1 << 63) <= value < 1 << 63 else {}
    if isinstance(value, list):
        value = ",".join(map(str, value))
    text = str(value)
    if key in _VERSIONS and (version := semantic(text)):
        return {"version": version}
    return {"string": text} if 0 < _size(text) <= _TEXT else {}


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _cut(text: str) -> str:
    """Cut a text to what a string may have, and show that it was."""
    if _size(text) <= _TEXT:
        return text
    room = _TEXT - _size("…")
    return text.encode("utf-8", "replace")[:room].decode("utf-8", "ignore") + "…"


def semantic(text: str) -> str:
    """Make a semantic version (semver.org 2.0.0) of a vendor's: 580.105.08 becomes 580.105.8."""
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9}){0,2}", text, re.ASCII):
        return ""
    parts = [str(int(part)) for part in text.split(".")]
    return ".".join([*parts, "0", "0"][:3])


def _camel(key: str) -> str:
    """Give a name in camel case; empty where it cannot be one (a C identifier, at most 32)."""
    first, *rest = key.split("_")
    name = first + "".join(part[:1].upper() + part[1:] for part in rest)
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,31}", name) else ""
