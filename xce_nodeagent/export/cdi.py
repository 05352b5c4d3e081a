"""Container Device Interface: which nodes a container runtime gives to a container, by a name.

Version 0.5.0 of the format, the oldest that has names which begin with a digit, because runtimes
refuse what is newer than they are (podman 4.3 knows 0.5.0). One file has one kind: `xce.io/gpu`,
`xce.io/nic`, …; a device's name is the instance's id: `podman run --device xce.io/gpu=GPU-…`.

A device brings its provider's control nodes along (nvidiactl, kfd, rdma_cm), which a runtime that
is given several devices makes once. There is no variable that names cards: with two devices the
last would win, and a container sees no other card than its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from xce_nodeagent.export.offer import LeftOut, usable
from xce_nodeagent.model.instance import DeviceNode, Instance
from xce_nodeagent.model.inventory import Inventory

VENDOR = "xce.io"
VERSION = "0.5.0"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=[^\0\n]*")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")


def specs(inventory: Inventory) -> tuple[dict[str, str], tuple[LeftOut, ...]]:
    """Give the text of each kind's file by the kind's class (`gpu`), and what is in none.

    Instances may overlap: who names several for one container knows what he does.
    """
    offer = usable(inventory)
    left_out = list(offer.left_out)
    kinds: dict[str, dict[str, Any]] = {}
    for one in offer.instances:
        control = [node.node for node in inventory.control.get(one.provider, ()) if node.granted]
        variables = _environment(one)
        if not one.devices and not variables:
            left_out.append(LeftOut(one, "it has no device node"))
            continue
        nodes = {node.path: node for node in (*one.devices, *control)}
        edits: dict[str, Any] = {}
        if nodes:
            edits["deviceNodes"] = [_node(node) for node in nodes.values()]
        if variables:
            edits["env"] = variables
        devices = kinds.setdefault(_class(one), {})
        devices[_device_name(one, devices)] = edits
    files = {
        kind: json.dumps(_spec(kind, devices), indent=2) + "\n" for kind, devices in kinds.items()
    }
    return dict(sorted(files.items())), tuple(left_out)


def _spec(kind: str, devices: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "cdiVersion": VERSION,
        "kind": f"{VENDOR}/{kind}",
        "devices": [{"name": name, "containerEdits": edits} for name, edits in devices.items()],
    }


def _node(node: DeviceNode) -> dict[str, Any]:
    return {
        "path": node.path,
        "type": node.type,
        "major": node.major,
        "minor": node.minor,
        "permissions": "rw",
    }


def _environment(one: Instance) -> list[str]:
    """Give the variables of a container: those that a site declared for an instance."""
    declared = one.attributes.get("environment")
    found = [str(text) for text in declared] if isinstance(declared, list) else []
    # It keeps NVIDIA's own hook from adding every card.
    hidden = one.devices and one.text("vendor") == "nvidia"
    own = ["NVIDIA_VISIBLE_DEVICES=void"] if hidden else []
    return own + [text for text in found if _VARIABLE.fullmatch(text)]


def _class(one: Instance) -> str:
    """Give the class of a type: it begins with a letter and ends with a letter or digit."""
    made = re.sub(r"[^A-Za-z0-9_-]+", "-", one.type).strip("-_")
    return made if made[:1].isalpha() else f"type-{made}".strip("-")


def _device_name(one: Instance, taken: Mapping[str, Any]) -> str:
    if _NAME.fullmatch(one.id) and one.id not in taken:
        return one.id
    made = re.sub(r"[^A-Za-z0-9_.:-]+", "-", one.id).strip("-_.:")
    digest = sha256(one.id.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{made}-{digest}".lstrip("-")
