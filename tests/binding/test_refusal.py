"""What a prepare is refused for: others hold it, it is old, wrong, or nobody's."""

from __future__ import annotations

import asyncio

import pytest
from binding.calls import prepare, run

from xce_nodeagent import errors
from xce_nodeagent.model import wire


def test_what_has_a_wrong_node_on_disk_is_chosen_by_no_count_and_refused_by_name(node):
    node.without_node = {"GPU-0", "GPU-2"}
    with pytest.raises(errors.Unhealthy, match="no node"):
        prepare(node, instances=("GPU-1", "GPU-2"))
    assert prepare(node, request="2").instances == ("GPU-1", "GPU-3")
    with pytest.raises(errors.NoFitNow):
        prepare(node, job="2", request="1")


def test_a_held_attempt_with_something_else_is_a_conflict(node):
    prepare(node, instances=("GPU-1",), attempt="a")
    with pytest.raises(errors.Conflict, match="prepared already"):
        prepare(node, instances=("GPU-2",), attempt="a")
    assert node.held() == {"GPU-1": [("1", "a")]}


def test_two_attempts_of_a_job_do_not_share_its_cgroup(node):
    prepare(node, instances=("GPU-1",), attempt="a")
    with pytest.raises(errors.Conflict, match="is still bound"):
        prepare(node, instances=("GPU-2",), attempt="b")


def test_a_held_instance_is_busy_and_says_who_has_it(node):
    prepare(node, job="1", instances=("GPU-1",))
    with pytest.raises(errors.Busy) as caught:
        prepare(node, job="2", instances=("GPU-1",))
    assert caught.value.details["holders"] == [{"job": "1", "attempt": ""}]


@pytest.mark.parametrize(("first", "second"), [("GPU-0", "MIG-1"), ("MIG-1", "GPU-0")])
def test_what_overlaps_a_held_instance_is_busy(node, first, second):
    prepare(node, job="1", instances=(first,))
    with pytest.raises(errors.Busy):
        prepare(node, job="2", instances=(second,))


def test_one_job_cannot_name_a_card_and_its_slice(node):
    with pytest.raises(errors.BadRequest, match="overlap"):
        prepare(node, instances=("GPU-0", "MIG-0"))


def test_an_unknown_instance_changes_nothing(node):
    with pytest.raises(errors.UnknownInstance):
        prepare(node, instances=("GPU-9",))
    assert not node.ledger.book.live
    assert not node.books.asked


def test_a_request_older_than_a_change_of_its_instance_is_stale(node):
    with pytest.raises(errors.Stale):
        prepare(node, instances=("GPU-1",), generation="boot-1:0".replace("boot-1", "b"))
    prepare(node, instances=("GPU-1",), generation="b:1")


def test_a_generation_that_this_node_never_had_is_stale(node):
    with pytest.raises(errors.Stale, match="not one of this node's"):
        prepare(node, instances=("GPU-1",), generation="b:99")


def test_eight_clients_for_one_card_give_one_holder(node):
    async def all_at_once():
        asks = [node.life.prepare(wire.Prepare(job=str(i), instances=("GPU-1",))) for i in range(8)]
        return await asyncio.gather(*asks, return_exceptions=True)

    results = run(all_at_once())
    assert sum(isinstance(r, wire.Prepared) for r in results) == 1
    assert sum(isinstance(r, errors.Busy) for r in results) == 7


def test_a_cgroup_outside_the_allowed_roots_is_refused_before_it_is_looked_at(node):
    with pytest.raises(errors.BadCgroup, match="not below an allowed root"):
        prepare(node, cgroup="/etc/nothing")


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        ({"job": ""}, errors.BadJobId),
        ({"job": "a/b"}, errors.BadJobId),
        ({"job": "a\nb"}, errors.BadJobId),
        ({"job": "x" * 10_000}, errors.BadJobId),
        ({"attempt": "a b"}, errors.BadJobId),
        ({"ports": (wire.PortAsk(),)}, errors.BadPort),
        ({"ports": (wire.PortAsk(count=0),)}, errors.BadPort),
        ({"ports": (wire.PortAsk(port=70_000),)}, errors.BadPort),
        ({"ports": (wire.PortAsk(count=1, name="a b"),)}, errors.BadPort),
        ({"cgroup": "relative"}, errors.BadCgroup),
        ({"cgroup": "/cg/other/../../etc"}, errors.BadCgroup),
        ({"cgroup": "/a", "pid": 1}, errors.BadRequest),
        ({"instances": ("GPU-1", "GPU-1")}, errors.BadRequest),
        ({"instances": ("ports",)}, errors.BadPort),
        ({"generation": "nonsense"}, errors.BadRequest),
    ],
)
def test_bad_input_gets_the_pinned_error_and_changes_nothing(node, ask, error):
    with pytest.raises(error):
        prepare(node, **ask)
    assert not node.ledger.book.live
    assert not node.books.asked
