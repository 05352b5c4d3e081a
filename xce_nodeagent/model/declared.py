"""Declared instances, read and checked (model/declaration.py has their form). Pure.

A document with a fault counts for nothing, and every fault of it is told; the others go on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, get_args

import msgspec
from msgspec import Struct, structs

from xce_nodeagent.model import name, resource, toml
from xce_nodeagent.model.declaration import Declaration, Described, Document, TypeName
from xce_nodeagent.model.instance import Attribute, AttributeValue, ResourceType

SIZE_LIMIT = 64 * 1024
"""Bytes of a document: hundreds of instances, and half of what a helper may answer."""

FAULT_LIMIT = 320
"""Characters that are told of a fault."""

INSTANCES_LIMIT, NODES_LIMIT = 256, 512
"""Of one host, of all documents together: far more than one has, and room in the fence's map."""

TYPES_LIMIT = 64
"""Of one host: each is told to everybody who asks for the inventory."""

FAULTS_LIMIT = 64
"""Of one document: who has more has them told when these are repaired."""

_WHOLE = 1 << 53  # what every reader of JSON keeps exactly (RFC 8259, section 6)
_KNOWN = {kind.name: kind for kind in (resource.GPU, resource.NIC, resource.ACCELERATOR)}
_OTHERS = frozenset({"mig", "gi", "mps", "ports"})
_RESERVED = ("XCE_", "CUDA_", "NVIDIA_", "ROCR_", "HIP_", "ZE_", "ONEAPI_", "HABANA_", "NCCL_",
             "UCX_", "GLOO_")  # fmt: skip
_DERIVED = frozenset({"environment", "pcie_root", "pcie_switch", "local_cpus"})
_OF = {"string": str, "int": int, "float": float, "bool": bool, "list": list}


class Declared(Struct, frozen=True):
    """What was declared: what counts, and the faults because of which something does not."""

    instances: tuple[Declaration, ...] = ()
    types: tuple[ResourceType, ...] = ()
    faults: tuple[str, ...] = ()


def read(files: Mapping[str, str]) -> Declared:
    """Read files, by the order of their names."""
    faults: list[str] = []
    whole = Document()
    for file, text in sorted(files.items()):
        try:
            values = toml.read(text)
        except ValueError as error:
            faults.append(f"{file}: not TOML: {error}")
            continue
        whole, more = _added(whole, values, _lines(file, text))
        faults += more
    return _result(whole, faults)


def read_report(data: bytes) -> Declared:
    """Read what a program printed: it counts as a whole, or not at all."""
    if len(data) > SIZE_LIMIT:
        return Declared(faults=(f"expected at most {SIZE_LIMIT} bytes",))
    try:
        values = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Declared(faults=(_told(f"expected JSON: {error}"),))
    whole, faults = _added(Document(), values, _of_report)
    return _result(whole, faults)


def _of_report(what: str, key: str) -> str:
    return f"{what}: {key}: " if key else f"{what}: "


Where = Callable[[str, str], str]
"""Gives what stands in front of a fault: of what it is, and of which key of that."""


def _added(whole: Document, values: Any, where: Where) -> tuple[Document, list[str]]:
    """Add a document to those before; with a fault in it, give those before as they are."""
    faults: list[str] = []
    if not isinstance(values, dict):
        return whole, [f"{where('the document', '')}expected a table with `instance` and `type`"]
    unknown = sorted(values.keys() - {"instance", "type"})
    faults += [f"{where(str(key), '')}unknown; there are instance and type" for key in unknown]
    tables = values.get("instance", [])
    if not isinstance(tables, list):
        faults.append(f"{where('instance', '')}expected a list; in TOML, [[instance]]")
        tables = []
    described = values.get("type", {})
    if not isinstance(described, dict):
        faults.append(f"{where('type', '')}expected a table; in TOML, [type.NAME]")
        described = {}
    # Before they are compared with each other, which takes the square of their number.
    if len(whole.instance) + len(tables) > INSTANCES_LIMIT:
        faults.append(
            f"{where('instance', '')}expected at most {INSTANCES_LIMIT} instances on a host"
        )
        tables = []
    if len(whole.type) + len(described) > TYPES_LIMIT:
        faults.append(f"{where('type', '')}expected at most {TYPES_LIMIT} types on a host")
        described = {}
    types: dict[str, Described] = {}
    for kind, table in described.items():
        at = f"type {kind}"
        if kind in whole.type or kind in _KNOWN or kind in _OTHERS:
            faults.append(f"{where(at, '')}it is described already")
        types.update((kind, one) for one in _struct(Described, table, at, where, faults))
        faults += [f"{where(at, '')}{why}" for why in _wrong(kind, TypeName)]
    every = dict(whole.type) | types
    instances = list(whole.instance)
    for number, table in enumerate(tables, 1):
        called = table.get("id") if isinstance(table, dict) else None
        at = f"instance {number}" + (f" ({_shown(called)})" if isinstance(called, str) else "")
        for one in _struct(Declaration, table, at, where, faults):
            faults += [f"{where(at, key)}{why}" for key, why in _unfit(one, instances, every)]
            instances.append(one)
    if sum(len(one.nodes) for one in instances) > NODES_LIMIT:
        faults.append(f"{where('instance', '')}expected at most {NODES_LIMIT} nodes on a host")
    if (more := len(faults) - FAULTS_LIMIT) > 0:
        faults[FAULTS_LIMIT:] = [f"{where('the document', '')}{more} more faults"]
    return (whole, faults) if faults else (Document(tuple(instances), every), faults)


def _struct(kind: Any, table: Any, at: str, where: Where, faults: list[str]) -> Iterator[Any]:
    """Give the struct of a table, without what is wrong: each key tells its own fault.

    None where it lacks what it must have.
    """
    if not isinstance(table, dict):
        faults.append(f"{where(at, '')}expected a table")
        return
    fields = _fields(kind)
    unknown = sorted(table.keys() - fields.keys())
    known = ", ".join(fields)
    faults += [f"{where(at, str(key))}unknown key; there are {known}" for key in unknown]
    values = {}
    for key, field in fields.items():
        if key in table:
            if why := list(_wrong(table[key], field.type)):
                faults += [f"{where(at, key)}{one}" for one in why]
            else:
                values[key] = msgspec.convert(table[key], field.type)
        elif field.required:
            faults.append(f"{where(at, key)}missing; expected {_expected(field.type)}")
    if all(key in values for key, field in fields.items() if field.required):
        yield kind(**values)


@cache
def _fields(kind: Any) -> dict[str, structs.FieldInfo]:
    return {field.name: field for field in structs.fields(kind)}


def _wrong(value: Any, kind: Any) -> Iterator[str]:
    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        told = str(error)
        place = re.search(r"at `\$(.+)`$", told)
        more = f" ({told})" if "regex" not in told else f" (at {place[1]})" if place else ""
        yield f"{_shown(value)}: expected {_expected(kind)}{more}"


def _expected(kind: Any) -> str:
    """Say what a value is, by the innermost description of it that there is."""
    for one in (kind, *get_args(kind)):
        for meta in getattr(one, "__metadata__", ()):
            if meta.description:
                return str(meta.description)
    return "another value"


def _shown(value: Any) -> str:
    text = name.printable(repr(value))
    return text if len(text) <= 60 else f"{text[:60]}…"


def _unfit(
    one: Declaration, before: Iterable[Declaration], types: Mapping[str, Described]
) -> Iterator[tuple[str, str]]:
    """Give what is wrong with an instance beside the others, by its key."""
    if one.type in _OTHERS:
        yield "type", f"{one.type}: expected a type of the site's own, or {', '.join(_KNOWN)}"
    if not one.healthy and not one.reason:
        yield "healthy", "false: expected a reason with it"
    for variable, text in one.environment.items():
        if variable.startswith(_RESERVED) or not name.environment({variable: text}):
            yield "environment", f"{variable}: programs, or this agent, go by it themselves"
    kinds = _kinds(one.type, types)
    for key, value in one.attributes.items():
        if key in _DERIVED or key in ("numa_node", "pci_address"):
            yield "attributes", f"{key}: it is no attribute to set; see the keys of an instance"
        elif not _fits(value):
            yield "attributes", f"{key} = {_shown(value)}: expected text on a line, or a number"
        elif key in kinds and type(value) is not _OF[kinds[key]]:
            yield "attributes", f"{key} = {_shown(value)}: expected a value of type {kinds[key]}"
    if one.id in (*one.overlaps, one.parent):
        yield "overlaps", "it is named by itself"
    if len(set(one.nodes)) < len(one.nodes):
        yield "nodes", "expected each once"
    for other in before:
        if other.id == one.id:
            yield "id", "an instance with this id is declared already"
        elif (shared := set(other.nodes) & set(one.nodes)) and not _exclude(one, other):
            remedy = f"where both are one device, say overlaps = ['{other.id}']"
            yield "nodes", f"{min(shared)}: it is a node of {other.id} as well; {remedy}"


def _exclude(one: Declaration, other: Declaration) -> bool:
    return one.id in other.overlaps or other.id in one.overlaps


def _kinds(kind: str, types: Mapping[str, Described]) -> dict[str, str]:
    """Give the types of those attributes of a type that are described."""
    known = _KNOWN.get(kind)
    found = {one.name: one.type for one in (known.attributes if known else resource.COMMON)}
    own = types.get(kind, Described()).attributes
    return {**found, **{key: one.type for key, one in own.items()}}


def _fits(value: AttributeValue) -> bool:
    if isinstance(value, list):
        return len(value) <= 64 and all(map(_fits, value))
    if isinstance(value, str):
        return 0 < len(value) <= 1024 and value.isprintable()
    return math.isfinite(value) and abs(value) <= _WHOLE


def _result(whole: Document, faults: Iterable[str]) -> Declared:
    kinds = dict.fromkeys((*whole.type, *(one.type for one in whole.instance)))
    return Declared(
        whole.instance,
        tuple(_described(kind, whole) for kind in kinds if kind not in _KNOWN),
        tuple(map(_told, faults)),
    )


def _told(fault: str) -> str:
    """Give a fault on one line, whatever the document has in it."""
    text = name.printable(fault)
    return text if len(text) <= FAULT_LIMIT else f"{text[:FAULT_LIMIT]}…"


def _described(kind: str, whole: Document) -> ResourceType:
    """Give the descriptor of a type; attributes that nobody described are told by their values."""
    own = whole.type.get(kind, Described())
    told = [Attribute(key, one.type, one.meaning, one.unit) for key, one in own.attributes.items()]
    names = {one.name for one in (*resource.COMMON, *told)}
    found: dict[str, Attribute] = {}
    types = {of: what for what, of in _OF.items()}
    for one in whole.instance:
        for key, value in one.attributes.items() if one.type == kind else ():
            if key not in names:
                what: Any = types[type(value)]
                found.setdefault(key, Attribute(key, what, "declared by this site"))
    return ResourceType(
        name=kind,
        unit=own.unit,
        meaning=own.meaning,
        attributes=(*resource.COMMON, *told, *found.values()),
    )


def _lines(file: str, text: str) -> Where:
    """Find the lines of tables and keys, for faults; good enough for plain TOML."""
    lines: dict[tuple[str, str], int] = {}
    at, count = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"\s*\[\[\s*instance\s*\]\]", line):
            count += 1
            at = f"instance {count}"
            lines[at, ""] = number
        elif header := re.match(r"\s*\[\s*type\s*\.\s*\"?([^\]\"\s.]+)\"?", line):
            at = f"type {header[1]}"
            lines.setdefault((at, ""), number)
        elif header := re.match(r"\s*\[\s*instance\s*\.\s*([a-z_]+)\s*\]", line):
            lines.setdefault((at, header[1]), number)
        elif key := re.match(r"\s*([A-Za-z0-9_-]+)\s*[.=]", line):
            lines.setdefault((at, key[1]), number)

    def where(what: str, key: str) -> str:
        plain = what.partition(" (")[0]
        number = lines.get((plain, key)) or lines.get((plain, "")) or lines.get(("", what))
        place = f"{file}:{number}" if number else file
        return f"{place}: {what}: {key}: " if key else f"{place}: {what}: "

    return where
