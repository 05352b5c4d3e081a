"""What doctor makes of what a witness saw."""

import asyncio

import pytest

from xce_nodeagent.daemon import doctor
from xce_nodeagent.model.rule import Device
from xce_nodeagent.privileged import ops

SEEN = ops.Seen(17, 1000, "train", "c 60:1")


class Saw:
    """A witness that saw just this."""

    def __init__(self, looked):
        self.looked = looked

    async def call(self, _):
        return self.looked


@pytest.mark.parametrize(
    ("seen", "hidden", "states"),
    [
        ((), 0, {"witness": "ok"}),
        ((), 3, {"witness": "note"}),
        ((SEEN,), 0, {"holder.17": "warning"}),
        ((SEEN,), 3, {"holder.17": "warning", "witness": "note"}),
    ],
)
def test_it_claims_no_more_than_was_seen(seen, hidden, states):
    witness = Saw(ops.Looked(seen, hidden))
    checks = asyncio.run(doctor.strangers((), (Device("c", 60, 1),), witness))
    assert {check.name: check.state for check in checks} == states
    if hidden:
        (note,) = [check for check in checks if check.state == "note"]
        assert "3 processes cannot be looked into" in note.text
        assert "nobody" not in note.text
