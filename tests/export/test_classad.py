from __future__ import annotations

import re
from typing import Any

import pytest
from export.conftest import PROFILES, gpu, inventory
from hypothesis import given
from hypothesis import strategies as st

from xce_nodeagent.export.classad import classad, literal
from xce_nodeagent.export.offer import in_bus_order
from xce_nodeagent.model.instance import AttributeValue

classad2 = pytest.importorskip("classad2", reason="HTCondor's parser is made for x86_64 only")


def _read(text: str) -> dict[str, Any]:
    """Read the lines with HTCondor's own parser, as condor_startd does, line by line."""
    ad = classad2.ClassAd()
    for line in text.removesuffix("\n").split("\n"):
        name, equals, value = line.partition("=")
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)
        assert equals
        assert name not in ad
        ad[name] = classad2.ExprTree(value)
    return {name: ad.eval(name) for name in ad}


@pytest.mark.parametrize("profile", PROFILES)
def test_condor_reads_every_profile(simulated, profile: str) -> None:
    found = simulated(profile)
    told = _read(classad(found))
    cut = {one.parent for one in found.instances if one.type == "mig"}
    cards = [
        one
        for one in in_bus_order(found.instances)
        if one.type in ("gpu", "mig") and one.id not in cut
    ]
    names = told.pop("DetectedGPUs")
    assert (names.split(", ") if names else []) == [one.id for one in cards]
    assert sorted(one["Id"] for one in told.values()) == sorted(one.id for one in cards)
    assert sorted(one["DeviceUuid"] for one in told.values()) == sorted(one.id for one in cards)


def test_a_card_is_told_in_the_words_of_condor() -> None:
    card = gpu(
        0,
        uuid="GPU-0",
        memory_bytes=85899345920,
        compute_capability="9.0",
        multiprocessors=132,
        ecc_mode="on",
        numa_node=1,
    )
    told = _read(classad(inventory(card)))
    assert told["DetectedGPUs"] == "GPU-0"
    assert dict(told["GPU_0"]) == {
        "Id": "GPU-0",
        "DeviceName": "NVIDIA H100 80GB HBM3",
        "DeviceUuid": "GPU-0",
        "DevicePciBusId": "0000:01:00.0",
        "Capability": 9.0,
        "ComputeUnits": 132,
        "XCENumaNode": 1,
        "ECCEnabled": True,
        "GlobalMemoryMb": 81920,
    }


def test_without_cards_none_is_detected() -> None:
    assert _read(classad(inventory(gpu(0, healthy=False)))) == {"DetectedGPUs": 0}


_PLAIN = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"))


@given(st.one_of(_PLAIN, st.booleans(), st.integers(-(1 << 62), 1 << 62), st.lists(_PLAIN)))
def test_any_value_is_read_back(value: AttributeValue) -> None:
    told = classad2.ExprTree(literal(value)).eval()
    assert (list(told) if isinstance(value, list) else told) == value


@given(st.lists(st.text(), min_size=1, unique=True), st.text())
def test_any_id_makes_an_attribute(ids: list[str], model: str) -> None:
    cards = [gpu(number, id=own, model=model) for number, own in enumerate(ids)]
    told = _read(classad(inventory(*cards)))
    assert len(told) == len(ids) + 1
