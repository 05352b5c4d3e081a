"""What is unhealthy for now alone costs no node: the caller is told to try again here."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from xce_nodeagent import errors
from xce_nodeagent.model import wire
from xce_nodeagent.model.inventory import Problem


def sick(node, reason: str, *problems: Problem) -> None:
    instances = (structs.replace(i, healthy=False, reason=reason) for i in node.inventory.instances)
    node.inventory = structs.replace(node.inventory, instances=tuple(instances), problems=problems)


def refused(node) -> str:
    with pytest.raises(errors.AgentError) as caught:
        asyncio.run(node.life.prepare(wire.Prepare(job="1", uid=1000, instances=("GPU-1",))))
    return caught.value.code


@pytest.mark.parametrize(("provider", "code"), [("cards", "not_ready"), ("another", "unhealthy")])
def test_a_card_whose_library_has_not_answered_yet(node, provider, code):
    sick(node, "", Problem(provider, "not_yet", "the library has not answered yet"))
    assert refused(node) == code


@pytest.mark.parametrize(
    ("reason", "code"),
    [("not yet: its NVLink fabric is coming up (in_progress)", "not_ready"),
     ("XID 79, fell off the bus; not yet: its NVLink fabric is coming up", "unhealthy"),
     ("its NVLink fabric: it is unhealthy", "unhealthy")],
)  # fmt: skip
def test_a_card_that_comes_right_by_itself(node, reason, code):
    sick(node, reason)
    assert refused(node) == code
