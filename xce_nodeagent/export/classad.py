"""HTCondor's ClassAds: what `condor_gpu_discovery -properties -nested` prints of a host's GPUs.

For `MACHINE_RESOURCE_INVENTORY_GPUs` of condor_startd: `DetectedGPUs` names the cards and slices;
an ad of the same name, with `_` for `-`, describes each. Attributes that HTCondor has no word for
begin with `XCE`. Names are the whole UUIDs (`-uuid`), which is what CUDA_VISIBLE_DEVICES takes.

Escapes are those of the ClassAd language, new syntax (HTCondor manual, "ClassAds: Old and New").
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from xce_nodeagent.export.offer import offered
from xce_nodeagent.model.instance import AttributeValue, Instance
from xce_nodeagent.model.inventory import Inventory

_ESCAPED = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b",
            "\f": "\\f"}  # fmt: skip
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MIB = 1 << 20


def classad(inventory: Inventory) -> str:
    """Give the attributes, one a line; `DetectedGPUs=0` where there is none."""
    cards = [one for one in offered(inventory).instances if one.type in ("gpu", "mig")]
    names = _names(cards)
    if not cards:
        return "DetectedGPUs=0\n"
    lines = [f"DetectedGPUs={string(', '.join(names[one.id] for one in cards))}"]
    for one in cards:
        ad = "; ".join(f"{key}={literal(value)}" for key, value in _ad(one, names[one.id]))
        lines.append(f"{_attribute(names[one.id])}=[ {ad} ]")
    return "\n".join(lines) + "\n"


def _names(cards: list[Instance]) -> dict[str, str]:
    """Name each: by its UUID where that can be an attribute's name, else by its number."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for place, one in enumerate(cards):
        # Attribute names are equal whatever their case.
        fits = _WORD.fullmatch(_attribute(one.id)) and _attribute(one.id).lower() not in taken
        name = one.id if fits else f"XCE{place}"
        found[one.id] = name
        taken.add(_attribute(name).lower())
    return found


def _attribute(name: str) -> str:
    return name.replace("-", "_")


def _ad(one: Instance, name: str) -> Iterator[tuple[str, AttributeValue]]:
    yield "Id", name
    told: Mapping[str, tuple[str, type]] = {
        "model": ("DeviceName", str),
        "uuid": ("DeviceUuid", str),
        "pci_address": ("DevicePciBusId", str),
        "compute_capability": ("Capability", float),
        "multiprocessors": ("ComputeUnits", int),
        "cuda_version": ("XCECudaVersion", str),
        "numa_node": ("XCENumaNode", int),
        "pcie_switch": ("XCEPcieSwitch", str),
        "nvlink_domain": ("XCENvlinkDomain", str),
        "mig_profile": ("XCEMigProfile", str),
    }
    for key, (word, kind) in told.items():
        value = one.attributes.get(key)
        if kind is float:
            # A version of two numbers, which HTCondor compares as a real one.
            if re.fullmatch(r"\d{1,3}\.\d{1,3}", str(value), re.ASCII):
                yield word, float(str(value))
        elif value is not None and isinstance(value, kind):
            yield word, value
    if "ecc_mode" in one.attributes:
        yield "ECCEnabled", one.text("ecc_mode") == "on"
    if (size := one.number("memory_bytes")) >= 0:
        yield "GlobalMemoryMb", size // _MIB


def literal(value: AttributeValue) -> str:
    """Write a value in the language of ClassAds."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "{ " + ", ".join(map(literal, value)) + " }"
    return string(value) if isinstance(value, str) else repr(value)


def string(text: str) -> str:
    """Write a string; control characters without an escape of their own become octal numbers."""
    return '"' + "".join(map(_char, text)) + '"'


def _char(char: str) -> str:
    if char in _ESCAPED:
        return _ESCAPED[char]
    if char == "\0" or "\ud800" <= char <= "\udfff":
        return "?"  # a NUL would end the string, and half a surrogate pair is no UTF-8
    return char if ord(char) >= 32 and ord(char) != 127 else f"\\{ord(char):03o}"
