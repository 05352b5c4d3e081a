from __future__ import annotations

import dataclasses
import importlib
import json
import re
import sys
import types
import typing
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from export.conftest import PROFILES, gpu, inventory
from hypothesis import given
from hypothesis import strategies as st
from recorded import recording, slices

from xce_nodeagent.cli.local import look
from xce_nodeagent.export.dra import resource_slices, semantic
from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.inventory import Inventory

_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_SEMVER = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)", re.ASCII)
_QUANTITY = re.compile(r"\d+(Ki|Mi|Gi|Ti)?", re.ASCII)
_HOLDS = {"attributes": "DeviceAttribute", "capacity": "DeviceCapacity", "counters": "Counter"}
"""What the values of maps are, for which the types only say `dict`."""


@pytest.fixture(scope="module")
def api() -> types.ModuleType:
    """Kubernetes' types of resource.k8s.io/v1, made by others from its OpenAPI schema.

    They take two names from the client they belong to, which we do not need.
    """
    core, schema = types.ModuleType("lightkube.core"), types.ModuleType("lightkube.core.schema")
    schema.__dict__.update(
        DictMixin=object, field=dataclasses.field, dataclass=dataclasses.dataclass
    )
    sys.modules.setdefault("lightkube.core", core)
    sys.modules.setdefault("lightkube.core.schema", schema)
    return importlib.import_module("lightkube.models.resource_v1")


def _hold(api: types.ModuleType, value: Any, kind: Any, where: str) -> None:
    """Hold a value against the type that the API has: no field more, none missing, none other."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Union:
        _hold(api, value, inside[0], where)
    elif origin is list:
        assert isinstance(value, list), where
        for one in value:
            _hold(api, one, inside[0], where)
    elif dataclasses.is_dataclass(kind):
        fields = {one.name: one for one in dataclasses.fields(kind)}
        hints = _hints(kind)
        assert value.keys() <= fields.keys(), where
        for name, field in fields.items():
            if name in value:
                _hold(api, value[name], hints[name], f"{where}.{name}")
                if name in _HOLDS and "dict" in str(field.type):
                    for key, one in value[name].items():
                        _hold(api, one, getattr(api, _HOLDS[name]), f"{where}.{name}.{key}")
            else:
                assert field.default is None, f"{where}.{name} is missing"
    else:
        assert type(value) is kind, where


def _hints(kind: type) -> dict[str, Any]:
    """Read a class's annotations; of DeviceAttribute they hide the names of the types."""
    scope = {**vars(sys.modules[kind.__module__]), "Optional": typing.Optional}
    return {
        one.name: eval(str(one.type), scope, {"bool": bool, "int": int, "str": str, "dict": dict})  # noqa: S307  # ours
        for one in dataclasses.fields(kind)
    }


def _limits(slices: list[dict[str, Any]]) -> None:
    """Hold slices against what the API's descriptions say in words."""
    names = [one["metadata"]["name"] for one in slices]
    assert len(set(names)) == len(names)
    pools = {json.dumps(one["spec"]["pool"]) for one in slices}
    assert len(pools) <= 1
    devices, sets = [], []
    for one in slices:
        spec = one["spec"]
        assert _SUBDOMAIN.fullmatch(one["metadata"]["name"])
        assert _SUBDOMAIN.fullmatch(spec["nodeName"])
        assert _SUBDOMAIN.fullmatch(spec["pool"]["name"])
        assert spec["pool"]["resourceSliceCount"] == len(slices)
        assert ("devices" in spec) != ("sharedCounters" in spec)
        assert len(spec.get("devices", ())) <= 64
        assert len(spec.get("sharedCounters", ())) <= 8
        devices += spec.get("devices", ())
        sets += spec.get("sharedCounters", ())
    units = {one["name"]: one["counters"] for one in sets}
    assert len(units) == len(sets)
    for name, counters in units.items():
        assert re.fullmatch(_LABEL, name)
        assert 0 < len(counters) <= 32
        assert all(re.fullmatch(_LABEL, one) for one in counters)
    assert len({one["name"] for one in devices}) == len(devices)
    for one in devices:
        _device(one, units)


def _device(one: dict[str, Any], units: dict[str, Any]) -> None:
    assert re.fullmatch(_LABEL, one["name"])
    assert len(one["attributes"]) + len(one.get("capacity", ())) <= 32
    for name, value in one["attributes"].items():
        domain, _, plain = name.rpartition("/")
        assert _IDENTIFIER.fullmatch(plain)
        assert not domain or (len(domain) <= 63 and _SUBDOMAIN.fullmatch(domain))
        ((kind, told),) = value.items()
        assert kind in ("bool", "int", "string", "version")
        assert kind not in ("string", "version") or 0 < len(told.encode()) <= 64
        assert kind != "version" or _SEMVER.fullmatch(told)
        assert kind != "int" or -(1 << 63) <= told < 1 << 63
    for name, value in one.get("capacity", {}).items():
        assert _IDENTIFIER.fullmatch(name)
        assert _QUANTITY.fullmatch(value["value"])
    takes = one.get("consumesCounters", ())
    assert len(takes) <= 2
    for take in takes:
        assert take["counters"].keys() <= units[take["counterSet"]].keys()
    for taint in one.get("taints", ()):
        assert taint["effect"] in ("NoSchedule", "NoExecute", "None")


def _slices(found: Inventory) -> list[dict[str, Any]]:
    told = json.loads(resource_slices(found))
    assert (told["apiVersion"], told["kind"]) == ("v1", "List")
    return list(told["items"])


def _devices(found: Inventory) -> dict[str, dict[str, Any]]:
    return {
        one["attributes"]["id"]["string"]: one
        for part in _slices(found)
        for one in part["spec"].get("devices", ())
    }


@pytest.mark.parametrize("profile", PROFILES)
def test_kubernetes_takes_every_profile(api, simulated, profile: str) -> None:
    slices = _slices(simulated(profile))
    for one in slices:
        _hold(api, one, api.ResourceSlice, "slice")
    _limits(slices)


def test_a_type_of_another_api_would_be_seen(api, simulated) -> None:
    (one, *_) = _slices(simulated("dgx-h100"))
    for spoil in (
        lambda one: one["spec"].update(nodes=[]),
        lambda one: one["spec"].pop("driver"),
        lambda one: one["spec"]["devices"][0]["attributes"].update(x={"text": "a"}),
        lambda one: one["spec"]["pool"].update(generation="1"),
    ):
        bad = json.loads(json.dumps(one))
        spoil(bad)
        with pytest.raises(AssertionError):
            _hold(api, bad, api.ResourceSlice, "slice")


def test_a_card_is_told_in_the_words_of_others() -> None:
    card = gpu(
        0,
        uuid="GPU-0",
        numa_node=1,
        pcie_root="pci0000:00",
        driver_version="580.105.08",
        compute_capability="9.0",
        cuda_version="13.0",
        memory_bytes=85899345920,
        persistence_mode=True,
    )
    device = _devices(inventory(card))["GPU-0"]
    assert device["name"] == "gpu-0"
    assert device["capacity"] == {"memory": {"value": "85899345920"}}
    assert device["attributes"] == {
        "type": {"string": "gpu"},
        "id": {"string": "GPU-0"},
        "uuid": {"string": "GPU-0"},
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "vendor": {"string": "nvidia"},
        "numaNode": {"int": 1},
        "driverVersion": {"version": "580.105.8"},
        "cudaComputeCapability": {"version": "9.0.0"},
        "cudaDriverVersion": {"version": "13.0.0"},
        "persistenceMode": {"bool": True},
        "resource.kubernetes.io/pciBusID": {"string": "0000:01:00.0"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
    }


def test_what_is_wrong_is_a_taint_and_what_is_reserved_is_absent() -> None:
    sick = gpu(0, healthy=False, drained=True, reason="XID 79: " + "x" * 99)
    device = _devices(inventory(sick, gpu(1, reserved="display")))
    assert device.keys() == {"GPU-0"}
    assert device["GPU-0"]["taints"] == [
        {"key": "xce.io/unhealthy", "effect": "NoSchedule"},
        {"key": "xce.io/drained", "effect": "NoSchedule"},
    ]
    assert device["GPU-0"]["attributes"]["reason"]["string"].startswith("XID 79: xxx")


def test_what_overlaps_takes_from_one_counter(simulated) -> None:
    found = simulated("dgx-a100-mig")
    slices = _slices(found)
    units = {
        (one["name"], name): int(counter["value"])
        for part in slices
        for one in part["spec"].get("sharedCounters", ())
        for name, counter in one["counters"].items()
    }
    takes = {
        own: Counter(
            {
                (take["counterSet"], name): int(counter["value"])
                for take in device.get("consumesCounters", ())
                for name, counter in take["counters"].items()
            }
        )
        for own, device in _devices(found).items()
    }
    cards = [one for one in found.instances if one.type in ("gpu", "mig")]
    for one in cards:
        for other in cards:
            if one is not other:
                both = takes[one.id] + takes[other.id]
                fits = all(count <= units[key] for key, count in both.items())
                assert fits == (other.id not in one.overlaps)


def test_a_host_with_many_devices_has_several_slices() -> None:
    many = [gpu(number, id=f"0000:00:{number:02x}.0", type="nic") for number in range(150)]
    slices = _slices(inventory(*many))
    assert [len(one["spec"]["devices"]) for one in slices] == [64, 64, 22]
    _limits(slices)


@pytest.mark.needs("recorded")
@pytest.mark.parametrize("name", recording.SLICES)
def test_what_other_drivers_published_is_published_alike(
    name: str, recorded: Callable[[str], Path]
) -> None:
    """Cards and NICs of cloud nodes, as NVIDIA's driver and DRANET told Kubernetes of them."""
    texts = [part.read_text("utf-8") for part in recording.FOLDER.glob(f"{name}.*.yaml")]
    theirs = [one for text in texts for one in slices.devices(text)]
    ours: dict[str, dict[str, str]] = {}
    for device in _devices(look(str(recorded(name)), "")).values():
        told = {key: str(*value.values()) for key, value in device["attributes"].items()}
        ours[told["resource.kubernetes.io/pciBusID"]] = told
    same = {"dra.net/numaNode": "numaNode", "dra.net/rdmaDevice": "rdmaDevice",
            "dra.net/ifName": "ifName"}  # fmt: skip
    compared = 0
    for one in theirs:
        address = one.get("dra.net/pciAddress") or one.get("resource.kubernetes.io/pciBusID")
        for key in one.keys() & {*same, "resource.kubernetes.io/pcieRoot"} if address else ():
            assert ours[str(address)][same.get(key, key)] == one[key], (address, key)
            compared += 1
    assert compared >= len(theirs)


_VALUES = st.one_of(st.text(), st.booleans(), st.integers(), st.lists(st.text()))


@st.composite
def _strange(draw) -> list[Instance]:
    ids = draw(st.lists(st.text(), min_size=1, max_size=4, unique=True))
    return [
        gpu(
            number,
            id=own,
            type=draw(st.text(min_size=1)),
            reason=draw(st.text()),
            attributes=draw(st.dictionaries(st.text(max_size=40), _VALUES, max_size=40)),
        )
        for number, own in enumerate(ids)
    ]


@given(_strange(), st.text())
def test_any_text_keeps_to_the_rules(api, instances: list[Instance], node: str) -> None:
    slices = _slices(inventory(*instances, node=node))
    _limits(slices)
    for one in slices:
        _hold(api, one, api.ResourceSlice, "slice")


@given(st.text(alphabet="0123456789.-v", max_size=12))
def test_a_version_is_semantic_or_none(text: str) -> None:
    assert not semantic(text) or _SEMVER.fullmatch(semantic(text))
