from __future__ import annotations

import re

import pytest
from export.conftest import PROFILES, gpu, inventory
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from xce_nodeagent.export.prometheus import metrics
from xce_nodeagent.model.instance import Holder
from xce_nodeagent.model.inventory import Problem


def _read(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Read an exposition with Prometheus' own client; refuse what it is lenient about."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    assert text.endswith("\n")
    for family in text_string_to_metric_families(text):
        assert family.type == "gauge"
        assert family.documentation
        assert family.name not in found
        found[family.name] = {}
        for sample in family.samples:
            assert re.fullmatch(r"xce_[a-z_]+", sample.name)
            key = tuple(sorted(sample.labels.items()))
            assert key not in found[family.name]
            found[family.name][key] = sample.value
    return found


@pytest.mark.parametrize("profile", PROFILES)
def test_prometheus_reads_every_profile(simulated, profile: str) -> None:
    found = simulated(profile)
    told = _read(metrics(found))
    assert len(told["xce_instance_info"]) == len(found.instances)
    by_type = {dict(key)["type"]: value for key, value in told["xce_instances"].items()}
    assert sum(by_type.values()) == len(found.instances)
    # There is no more of each than there are instances: nothing grows with jobs.
    assert all(len(series) <= len(found.instances) for series in told.values())


def test_values() -> None:
    card = gpu(
        0,
        memory_bytes=80 << 30,
        row_remap_pending=True,
        drained=True,
        held_by=(Holder("4711", "1"),),
    )
    nic = gpu(1, type="nic", id="nic0", speed_mbps=400_000)
    problem = Problem("amd", "error", "x")
    told = _read(metrics(inventory(card, nic, problems=(problem, problem))))
    own = (("id", "GPU-0"), ("type", "gpu"))
    assert told["xce_instance_memory_bytes"] == {own: 80 << 30}
    assert told["xce_instance_row_remap_pending"] == {own: 1}
    assert told["xce_instance_drained"][own] == 1
    assert told["xce_instance_held"] == {own: 1}
    speed = told["xce_instance_link_speed_bytes_per_second"]
    assert speed == {(("id", "nic0"), ("type", "nic")): 50e9}
    assert len(told["xce_inventory_problem"]) == 1
    assert "4711" not in metrics(inventory(card))


@given(st.text(), st.text(), st.text(), st.text())
def test_any_text_is_read_back(own: str, model: str, kind: str, boot: str) -> None:
    text = metrics(inventory(gpu(0, id=own, type=kind, model=model)))
    (labels,) = (dict(key) for key in _read(text)["xce_instance_info"])
    assert (labels["id"], labels["model"], labels["type"]) == (own, model, kind)
