"""Facts about cards as the prober tells them, checked: it loads a vendor's library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from xce_nodeagent.model import name
from xce_nodeagent.model.rule import MINOR_LIMIT

_Text = Annotated[str, Meta(max_length=1024)]
_Whole = Annotated[int, Meta(ge=0, lt=1 << 48)]
# Of a slice before the 470 drivers: MIG-GPU-<uuid>/<gpu instance>/<compute instance>. The driver
# writes question marks for what it cannot ask.
_Uuid = Annotated[str, Meta(pattern=r"^[A-Za-z0-9?_-][A-Za-z0-9/?_.-]{0,127}\Z")]
_Address = Annotated[str, Meta(pattern=r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")]
_Minor = Annotated[int, Meta(ge=0, lt=MINOR_LIMIT)]


class _Slice(Struct):
    uuid: _Uuid | UnsetType = UNSET
    name: _Text | UnsetType = UNSET
    memory_bytes: _Whole | UnsetType = UNSET
    gpu_instance: _Whole | UnsetType = UNSET
    compute_instance: _Whole | UnsetType = UNSET
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
    mig: tuple[_Slice, ...] | UnsetType = UNSET


def checked(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Give facts as `nvml.probe` describes them, whatever the prober made of them.

    It loads a vendor's library, and may be somebody else's by now: an address becomes a path, a
    minor a rule, a name a line on a terminal. A device whose facts are none is lost, and the
    others go on.
    """
    told = facts.get("devices", ())
    devices = [_device_checked(one) for one in told] if isinstance(told, list | tuple) else []
    version = facts.get("driver_version", "")
    found: dict[str, Any] = {"devices": [one for one in devices if one]}
    if isinstance(version, str) and version:
        found["driver_version"] = version[:64]
    cleaned: dict[str, Any] = name.cleaned(found)
    return cleaned


def _device_checked(one: Any) -> dict[str, Any]:
    try:
        device: dict[str, Any] = msgspec.to_builtins(msgspec.convert(one, _Device))
    except msgspec.ValidationError as error:
        try:
            address = msgspec.convert(one["pci_address"], _Address)
        except (msgspec.ValidationError, LookupError, TypeError):
            return {}
        return {"pci_address": address, "lost": f"what the prober says of it is no fact: {error}"}
    return device
