"""What is told of a node that changed."""

from __future__ import annotations

import pytest
from msgspec import structs

from xce_nodeagent.cli.fleet.news import news
from xce_nodeagent.cli.fleet.view import Job, NodeView, Tally, Wrong


def job(name, attempt="1", state="bound"):
    return Job(job=name, attempt=attempt, state=state, instances=())


def ill(name, reason="", state="unhealthy"):
    return Wrong(id=name, type="gpu", state=state, reason=reason)


CARDS = (Tally(type="gpu", model="NVIDIA X", total=8, free=8),)
NODE = NodeView(name="n1", boot_id="b1", program="0.1", instances=CARDS, jobs=(job("1"),))


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, "reported anew"),
        ({"state": "stale"}, "was ok"),
        ({"jobs": (job("1"), job("2"))}, "job 2:1 began"),
        ({"jobs": ()}, "job 1:1 ended"),
        ({"jobs": (job("1", "2"),)}, "job 1:2 began; job 1:1 ended"),
        ({"jobs": (job("1", state="quarantined"),)}, "job 1:1 quarantined"),
        (
            {"jobs": tuple(job(str(number)) for number in range(1, 7))},
            "job 2:1, 3:1, 4:1 and 2 more began",
        ),
        ({"state": "unhealthy", "wrong": (ill("g", "XID 79"),)}, "was ok; g unhealthy: XID 79"),
        ({"wrong": (ill("g", state="drained"),)}, "g drained"),
        ({"wrong": tuple(map(ill, "abcd"))}, "a unhealthy; b unhealthy; c unhealthy; and 1 more"),
        ({"rivals": ("agent x",)}, "agent x claims its name, too"),
        ({"boot_id": "b2", "generation": "b2:1"}, "booted anew"),
        ({"generation": "b1:9", "instances": ()}, "had 8 NVIDIA X"),
        ({"program": "0.2"}, "0.1 became 0.2"),
    ],
)
def test_what_is_new_is_told(changed, told):
    assert news(NODE, structs.replace(NODE, **changed)) == told


def test_what_is_well_again_is_told():
    before = structs.replace(NODE, wrong=(ill("g", "XID 79"), ill("h")))
    assert news(before, structs.replace(before, wrong=(ill("h"),))) == "g well again"


def test_a_node_that_is_new_is_told_with_what_is_wrong():
    assert news(None, NODE) == "new"
    assert news(None, structs.replace(NODE, wrong=(ill("g", "XID 79"),))) == (
        "new; g unhealthy: XID 79"
    )
