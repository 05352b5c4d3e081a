"""A declared instance: what no code knows, as a site writes it down or its program prints it.

A document has a table for each instance, and may describe types of the site's own:

    [type.fpga]                              {"type": {"fpga": {"meaning": "an Alveo U250"}},
    meaning = "an Alveo U250"                 "instance": [{"id": "fpga0", "type": "fpga",
                                                            "nodes": ["/dev/xdma0_user"]}]}
    [[instance]]
    id = "fpga0"
    type = "fpga"
    nodes = ["/dev/xdma0_user"]

Files are TOML, a program prints JSON.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from xce_nodeagent.model.instance import AttributeValue

_PART = r"(?!\.{1,2}(?:/|\Z))[A-Za-z0-9:._+=@~-]{1,128}"
_ID = r"^[A-Za-z0-9][A-Za-z0-9:._-]{0,127}\Z"

Id = Annotated[
    str, Meta(pattern=_ID, description="1 to 128 letters, digits and :._-, a letter or digit first")
]
TypeName = Annotated[
    str,
    Meta(
        pattern=r"^[a-z][a-z0-9_]{0,31}\Z",
        description="a lower-case letter, then up to 31 lower-case letters, digits and _",
    ),
]
NodePath = Annotated[
    str, Meta(pattern=rf"^/dev(?:/{_PART})+\Z", description="the path of a node below /dev")
]
PATTERN = r"^/dev/[A-Za-z0-9](?:/?(?!\.\.)[][A-Za-z0-9:._+=@~*?-])*\Z"
"""Of paths of nodes; `*` and `?` stand for anything but a slash."""

Word = Annotated[
    str, Meta(pattern=r"^[a-z][a-z0-9_]{0,63}\Z", description="a name such as serial_number")
]
_Line = Annotated[
    str, Meta(pattern=r"^[^\x00-\x1f\x7f-\x9f]{0,1024}\Z", description="text on one line")
]
_Variable = Annotated[
    str, Meta(pattern=r"^[A-Z_][A-Z0-9_]{0,127}\Z", description="a name such as FPGA_BITSTREAM")
]


class Declaration(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An instance as it is written down."""

    id: Annotated[Id, Meta(description="unique on the host")]
    type: Annotated[TypeName, Meta(description="one of the site's own, accelerator, gpu or nic")]
    nodes: Annotated[
        tuple[NodePath, ...],
        Meta(max_length=64, description="a list of paths of character devices below /dev"),
    ] = ()
    attributes: Annotated[
        dict[Word, AttributeValue],
        Meta(max_length=64, description="a table of texts, numbers, booleans, and lists of these"),
    ] = {}
    environment: Annotated[
        dict[_Variable, _Line],
        Meta(max_length=32, description="a table of variables for the job, each a line of text"),
    ] = {}
    overlaps: Annotated[
        tuple[Id, ...], Meta(max_length=64, description="a list of ids that it excludes")
    ] = ()
    parent: Annotated[Id, Meta(description="the id of what it is a part of")] | None = None
    numa_node: Annotated[int, Meta(ge=0, lt=1 << 16, description="a NUMA node")] | None = None
    pci_address: (
        Annotated[
            str,
            Meta(
                pattern=r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z",
                description="a PCI address such as 0000:3b:00.0",
            ),
        ]
        | None
    ) = None
    healthy: Annotated[bool, Meta(description="false where no job is to get it")] = True
    reason: Annotated[_Line, Meta(description="why it is not healthy")] = ""


class DescribedAttribute(Struct, frozen=True, forbid_unknown_fields=True):
    """An attribute of a type of the site's own."""

    type: Annotated[
        Literal["string", "int", "float", "bool", "list"],
        Meta(description="string, int, float, bool or list"),
    ]
    meaning: _Line = "declared by this site"
    unit: _Line = ""


class Described(Struct, frozen=True, forbid_unknown_fields=True):
    """A type of the site's own."""

    unit: Annotated[_Line, Meta(description="what is counted, such as card")] = "instance"
    meaning: Annotated[_Line, Meta(description="what one is")] = "declared by this site"
    attributes: Annotated[
        dict[Word, DescribedAttribute], Meta(max_length=64, description="a table of attributes")
    ] = {}


class Document(Struct, frozen=True, forbid_unknown_fields=True):
    """What a file has, and a reporter prints."""

    instance: tuple[Declaration, ...] = ()
    type: dict[TypeName, Described] = {}


def allowed(path: str, patterns: Iterable[str]) -> bool:
    """Say whether a path is one of these; `*` and `?` stand for anything but a slash."""
    parts = path.split("/")
    return any(
        len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))
        for wanted in (pattern.split("/") for pattern in patterns)
    )


def schema() -> dict[str, Any]:
    """Give the JSON Schema (draft 2020-12) of a document."""
    _, parts = msgspec.json.schema_components((Document,), ref_template="#/$defs/{name}")
    document = parts.pop("Document")
    found: dict[str, Any] = _plain(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": "urn:xce:declared:v1",
            **document,
            "title": "Declared instances of a host",
            "$defs": dict(sorted(parts.items())),
        }
    )
    return found


def _plain(value: Any) -> Any:
    """Write patterns as JSON Schema has them (ECMA-262, whose `$` is only the end)."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value.replace(r"\Z", "$") if isinstance(value, str) else value
