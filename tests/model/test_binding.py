"""The table of a binding's life, and the steps of a plan."""

from __future__ import annotations

import typing

import pytest
from msgspec import structs

from xce_nodeagent.model import binding as b
from xce_nodeagent.model.instance import DeviceNode
from xce_nodeagent.model.plan import (
    AllowDevice,
    CgroupRef,
    DenyDevice,
    FreePort,
    HoldPort,
    MakeCgroup,
    Plan,
    RemoveCgroup,
    SetEnv,
    Step,
    inverse,
)
from xce_nodeagent.model.wire import LeftOver

COMMITTED = b.Committed(
    job="1",
    attempt="a",
    ask=b.Ask(),
    instances=("x",),
    excluded=(),
    plan=Plan(),
    generation="b:1",
    enforcement="off",
)
EVENTS = {
    b.Committed: COMMITTED,
    b.Changed: b.Changed(
        job="1",
        attempt="a",
        asks=(b.Ask(),),
        instances=("x", "y"),
        excluded=(),
        plan=Plan(),
        generation="b:1",
    ),
    b.Bound: b.Bound(job="1", attempt="a"),
    b.Failed: b.Failed(job="1", attempt="a", code="busy", message="m"),
    b.ReleaseIntended: b.ReleaseIntended(job="1", attempt="a"),
    b.Released: b.Released(job="1", attempt="a"),
    b.Withheld: b.Withheld(
        job="1",
        attempt="a",
        instances=("x",),
        plan=Plan(),
        left=(LeftOver(7, "has c 1:1 open"),),
        generation="b:1",
        enforcement="cgroup2",
        since=0.5,
    ),
    b.Cleaned: b.Cleaned(job="1", attempt="a"),
    b.Lost: b.Lost(job="1", attempt="a", reason="lost-reboot"),
    b.Ended: b.Ended(job="1", attempt="a"),
    b.Adopted: b.Adopted(
        job="1", attempt="a", binding=structs.replace(b.follow(None, COMMITTED, 1.0), state="bound")
    ),
}


def in_state(state: b.State) -> b.Binding:
    fresh = b.follow(None, COMMITTED, 1.0)
    return structs.replace(fresh, state=state)


def test_the_table_knows_every_event_and_every_state():
    assert set(EVENTS) == set(typing.get_args(b.BindingEvent))
    states = set(typing.get_args(b.State)) - {"ended"}
    assert set(b.TABLE) == states | {None}


@pytest.mark.parametrize("state", [None, *typing.get_args(b.State)])
@pytest.mark.parametrize("kind", list(EVENTS))
def test_an_event_leads_where_the_table_says_or_nowhere(state, kind):
    before = in_state(state) if state else None
    row = b.TABLE.get(state, {})
    if kind in row:
        assert b.follow(before, EVENTS[kind], 2.0).state == row[kind]
    else:
        with pytest.raises(b.InvalidTransition):
            b.follow(before, EVENTS[kind], 2.0)


def test_every_step_has_its_inverse_and_a_plan_is_undone_backwards():
    node = DeviceNode("/dev/x", "c", 120, 0)
    cgroup = CgroupRef("cgroup2", "/cg/job-1")
    plan = Plan((MakeCgroup(cgroup), AllowDevice(node), SetEnv("A", "1"), HoldPort("ports", 5)))
    assert plan.undo() == (FreePort("ports", 5), DenyDevice(node), RemoveCgroup(cgroup))
    assert inverse(SetEnv("A", "1")) is None
    assert len(typing.get_args(Step)) == 5
