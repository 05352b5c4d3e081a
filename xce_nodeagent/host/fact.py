"""Facts about cards as the prober tells them, checked: it loads a vendor's library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from xce_nodeagent.model import name
from xce_nodeagent.model.rule import MINOR_LIMIT

_Text = Annotated[str, Meta(max_length=1024)]
_Word = Annotated[str, Meta(max_length=64)]
_Whole = Annotated[int, Meta(ge=0, lt=1 << 48)]
# Of a slice before the 470 drivers: MIG-GPU-<uuid>/<gpu instance>/<compute instance>. The driver
# writes question marks for what it cannot ask.
_Uuid = Annotated[str, Meta(pattern=r"^[A-Za-z0-9?_-][A-Za-z0-9/?_.-]{0,127}\Z")]
_Address = Annotated[str, Meta(pattern=r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")]
_AddressOrNone = Annotated[str, Meta(pattern=r"^([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])?\Z")]
_Minor = Annotated[int, Meta(ge=0, lt=MINOR_LIMIT)]
_Cpu = Annotated[int, Meta(ge=0, lt=1 << 16)]
_Cluster = Annotated[str, Meta(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")]
_Placement = Annotated[list[_Whole], Meta(min_length=2, max_length=2)]

_CARDS, _SLICES, _ENDS = 256, 128, 64
"""Of how many of each is heard: more than there can be, and not without end."""


class _End(Struct):
    """What so many NVLinks of a card lead to; the address is empty where it is hidden."""

    count: Annotated[int, Meta(ge=1, le=1024)]
    type: Literal["", "gpu", "switch", "npu"] = ""
    address: _AddressOrNone = ""


class _GpuInstance(Struct):
    gpu_instance: _Whole
    memory_bytes: _Whole | UnsetType = UNSET
    multiprocessors: _Whole | UnsetType = UNSET
    gpu_slices: _Whole | UnsetType = UNSET
    placement: _Placement | UnsetType = UNSET


class _Slice(Struct):
    uuid: _Uuid | UnsetType = UNSET
    name: _Text | UnsetType = UNSET
    memory_bytes: _Whole | UnsetType = UNSET
    gpu_instance: _Whole | UnsetType = UNSET
    compute_instance: _Whole | UnsetType = UNSET
    multiprocessors: _Whole | UnsetType = UNSET
    gpu_slices: _Whole | UnsetType = UNSET
    compute_slices: _Whole | UnsetType = UNSET
    ofa_engines: _Whole | UnsetType = UNSET
    placement: _Placement | UnsetType = UNSET
    compute_placement: _Placement | UnsetType = UNSET
    missing: dict[_Text, _Text] | UnsetType = UNSET


class _Device(Struct):
    nvml_index: _Whole | UnsetType = UNSET
    pci_address: _Address | UnsetType = UNSET
    uuid: _Uuid | UnsetType = UNSET
    name: _Text | UnsetType = UNSET
    minor: _Minor | UnsetType = UNSET
    memory_bytes: _Whole | UnsetType = UNSET
    compute_capability: _Text | UnsetType = UNSET
    serial: _Text | UnsetType = UNSET
    mig_mode: _Whole | UnsetType = UNSET
    missing: dict[_Text, _Text] | UnsetType = UNSET
    lost: _Text | UnsetType = UNSET
    skipped: bool | UnsetType = UNSET
    closed: bool | UnsetType = UNSET
    mig: Annotated[list[_Slice], Meta(max_length=_SLICES)] | UnsetType = UNSET


class _More(Struct):
    """Facts of a card that nothing is opened by: one that is no fact is left out alone."""

    ecc_mode: Literal["on", "off"] | UnsetType = UNSET
    row_remap_pending: bool | UnsetType = UNSET
    row_remap_failed: bool | UnsetType = UNSET
    power_limit_watts: _Whole | UnsetType = UNSET
    persistence_mode: bool | UnsetType = UNSET
    compute_mode: _Word | UnsetType = UNSET
    module_id: _Whole | UnsetType = UNSET
    cores: _Whole | UnsetType = UNSET
    cpus: Annotated[list[_Cpu], Meta(max_length=8192)] | UnsetType = UNSET
    numa_nodes: Annotated[list[_Cpu], Meta(max_length=1024)] | UnsetType = UNSET
    slot_number: _Whole | UnsetType = UNSET
    tray_index: _Whole | UnsetType = UNSET
    host_id: _Whole | UnsetType = UNSET
    fabric_state: Literal["not_started", "in_progress", "completed"] | UnsetType = UNSET
    fabric_fault: _Text | UnsetType = UNSET
    fabric_cluster: _Cluster | UnsetType = UNSET
    fabric_clique: _Whole | UnsetType = UNSET
    nvlinks: Annotated[list[_End], Meta(max_length=_ENDS)] | UnsetType = UNSET
    gpu_instances: Annotated[list[_GpuInstance], Meta(max_length=_SLICES)] | UnsetType = UNSET


_MORE = {field.name: field.type for field in msgspec.structs.fields(_More)}


def checked(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Give facts as `nvml.probe` describes them, whatever the prober made of them.

    It loads a vendor's library, and may be somebody else's by now: an address becomes a path, a
    minor a rule, a name a line on a terminal. A device whose facts are none is lost, and the
    others go on.
    """
    told = facts.get("devices", ())
    told = told[:_CARDS] if isinstance(told, list | tuple) else ()
    devices = [_device_checked(one) for one in told]
    found: dict[str, Any] = {"devices": [one for one in devices if one]}
    for key in ("driver_version", "cuda_version"):
        version = facts.get(key, "")
        if isinstance(version, str) and version:
            found[key] = version[:64]
    cleaned: dict[str, Any] = name.cleaned(found)
    return cleaned


def pending(facts: Mapping[str, Any]) -> bool:
    """Say whether the answer will be another one soon, though no event says when."""
    devices = facts.get("devices", ())
    return isinstance(devices, list | tuple) and any(
        isinstance(one, dict) and one.get("fabric_state") in ("not_started", "in_progress")
        for one in devices[:_CARDS]
    )


def _device_checked(one: Any) -> dict[str, Any]:
    try:
        device: dict[str, Any] = msgspec.to_builtins(msgspec.convert(one, _Device))
    except msgspec.ValidationError as error:
        try:
            address = msgspec.convert(one["pci_address"], _Address)
        except (msgspec.ValidationError, LookupError, TypeError):
            return {}
        return {"pci_address": address, "lost": f"what the prober says of it is no fact: {error}"}
    for key, kind in _MORE.items():
        if key in one:
            try:
                device[key] = msgspec.to_builtins(msgspec.convert(one[key], kind))
            except msgspec.ValidationError as error:
                device.setdefault("missing", {})[key] = f"the answer is no fact: {error}"
    return device
