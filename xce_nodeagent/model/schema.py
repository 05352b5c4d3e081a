"""The JSON Schema (draft 2020-12) of an inventory, made from the model's own types.

Attributes of instances come from the descriptors of the types; a type of a site's own may have
others. What this version does not know is allowed everywhere: a later one may tell more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from xce_nodeagent.model import resource
from xce_nodeagent.model.instance import Attribute, ResourceType
from xce_nodeagent.model.inventory import SCHEMA, Inventory
from xce_nodeagent.model.link import Link

KNOWN = tuple(kind for kind in vars(resource).values() if isinstance(kind, ResourceType))
_CpuList = Annotated[str, Meta(description="CPUs as a Linux CPU list, such as 0-3,8")]
_Bridges = Annotated[
    tuple[str, ...],
    Meta(description="the bridges above it, from the root down, by their addresses"),
]


class Package(Struct):
    """A socket."""

    id: int
    cpus: _CpuList


class NumaNode(Struct):
    """A NUMA node that has CPUs."""

    id: int
    cpus: _CpuList
    distances: (
        Annotated[
            tuple[int, ...],
            Meta(description="to all nodes by rising id, those without CPUs as well"),
        ]
        | UnsetType
    ) = UNSET
    package: int | UnsetType = UNSET


class Cpu(Struct):
    """What the first CPU says of itself."""

    arch: str | UnsetType = UNSET
    vendor: str | UnsetType = UNSET
    family: int | UnsetType = UNSET
    model: int | UnsetType = UNSET
    model_name: str | UnsetType = UNSET


class Facts(Struct, rename={"pci_class": "class"}):
    """What a PCI function is; numbers are hexadecimal, without 0x."""

    pci_class: str | UnsetType = UNSET
    vendor: str | UnsetType = UNSET
    device: str | UnsetType = UNSET
    subsystem_vendor: str | UnsetType = UNSET
    subsystem_device: str | UnsetType = UNSET
    link_speed: (
        Annotated[str, Meta(description="the most that its own port can do, such as 16.0 GT/s")]
        | UnsetType
    ) = UNSET
    link_width: int | UnsetType = UNSET


class Function(Facts, kw_only=True):
    """A PCI function that placement is about."""

    root: str
    bridges: _Bridges
    numa_node: int | UnsetType = UNSET


class Rails(Struct):
    """Which NICs are on which rail, where their provider does not say so, and who goes by it."""

    by: Annotated[str, Meta(description="structure, configuration or none")]
    nics: dict[str, int]
    gpus: Annotated[dict[str, int], Meta(description="the rail of a GPU's own NIC")]


class Topology(Struct):
    """Where things are: what the kernel does not tell is absent."""

    cpu: Cpu
    packages: tuple[Package, ...]
    cores: tuple[_CpuList, ...]
    numa_nodes: tuple[NumaNode, ...]
    memory_nodes: Annotated[tuple[int, ...], Meta(description="NUMA nodes without CPUs")]
    pci: Annotated[dict[str, Function], Meta(description="by address")]
    bridges: Annotated[dict[str, Facts], Meta(description="those above them, by address")]
    links: tuple[Link, ...]
    rails: Rails
    virtual: Annotated[
        str, Meta(description="the file that tells of switches which a cloud hides from its guest")
    ] = ""


class Count(Struct):
    """How many there are of a type, in its unit."""

    total: int
    healthy: int


_JSON: dict[str, dict[str, Any]] = {
    "string": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "list": {"type": "array", "items": {"type": ["string", "integer"]}},
}


def schema() -> dict[str, Any]:
    """Give the schema of what `inventory --json` prints."""
    kinds: tuple[Any, ...] = (Inventory, Topology, Count)
    _, parts = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    shapes = ("Inventory", "Instance", "ResourceType", "Attribute", "Problem")
    for name in shapes:
        # Every field is written, so a reader may rely on it; `default` is the reader's business.
        parts[name]["required"] = list(parts[name]["properties"])
    for part in parts.values():
        for field in part.get("properties", {}).values():
            field.pop("default", None)
    inventory = parts.pop("Inventory")
    fields = inventory["properties"]
    fields["schema"] = {"const": SCHEMA}
    fields["source"] = {"enum": ["agent", "local"]}
    fields["generation"] = {"type": "string", "pattern": ":[0-9]+$"}
    fields["digest"] = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
    fields["topology"] = {"$ref": "#/$defs/Topology"}
    fields["counters"] = {"type": "object", "additionalProperties": {"$ref": "#/$defs/Count"}}
    parts["Problem"]["properties"]["state"] = {"enum": ["none", "not_yet", "error"]}
    parts["Instance"]["allOf"] = [_of_type(kind) for kind in KNOWN]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:xce:inventory:v1",
        "title": "The inventory of a host",
        "description": "Everything that is known of a host. `generation` is `BOOT_ID:N`.",
        "type": "object",
        "properties": fields,
        "required": inventory["required"],
        "$defs": dict(sorted(parts.items())),
    }


def _of_type(kind: ResourceType) -> dict[str, Any]:
    """Say what the attributes of an instance of a type are."""
    return {
        "if": {"properties": {"type": {"const": kind.name}}},
        "then": {"properties": {"attributes": {"properties": dict(_attributes(kind.attributes))}}},
    }


def _attributes(described: Iterable[Attribute]) -> Iterable[tuple[str, dict[str, Any]]]:
    for one in described:
        unit = f" ({one.unit})" if one.unit else ""
        yield one.name, {**_JSON[one.type], "description": one.meaning + unit}
