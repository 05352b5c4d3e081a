"""Bindings live as the design says: idempotent, exclusive, durable, and undone whole."""

from __future__ import annotations

import asyncio

import pytest

from xce_nodeagent import errors
from xce_nodeagent.binding.reconcile import reconcile
from xce_nodeagent.binding.recovery import recover
from xce_nodeagent.model import wire
from xce_nodeagent.privileged.ops import Verify


def run(work):
    return asyncio.run(work)


def prepare(node, job="1", **ask):
    return run(node.life.prepare(wire.Prepare(job=job, **ask)))


def release(node, job="1", **ask):
    return run(node.life.releases.release(wire.Release(job=job, **ask)))


def restart(node):
    node.crash()
    node.open()
    return run(recover(node.ledger, node.executor, node.life))


def test_a_prepare_binds_what_it_names_and_says_so(node):
    answer = prepare(node, instances=("GPU-1", "GPU-2"), attempt="a")
    assert answer.instances == ("GPU-1", "GPU-2")
    assert answer.enforcement == "cgroup2"
    assert answer.cgroup == {"v2": "/cg/home/job-1"}
    assert answer.env["XCE_JOB_ID"] == "1"
    assert answer.env["XCE_GPU_UUIDS"] == "GPU-1,GPU-2"
    mark, grants = node.books.bound["/cg/home/job-1"]
    assert mark == "1\na"
    assert [rule.device.minor for rule in grants] == [1, 2]


def test_a_job_without_cards_is_fenced_too_and_is_told_that_it_has_none(node):
    answer = prepare(node)
    assert node.books.bound["/cg/home/job-1"][1] == ()
    assert answer.env["CUDA_VISIBLE_DEVICES"] == ""
    assert answer.env["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_what_has_a_wrong_node_on_disk_is_chosen_by_no_count_and_refused_by_name(node):
    node.without_node = {"GPU-0", "GPU-2"}
    with pytest.raises(errors.Unhealthy, match="no node"):
        prepare(node, instances=("GPU-1", "GPU-2"))
    assert prepare(node, request="2").instances == ("GPU-1", "GPU-3")
    with pytest.raises(errors.NoFitNow):
        prepare(node, job="2", request="1")


def test_the_same_prepare_again_gets_the_same_answer_and_changes_nothing(node):
    first = prepare(node, instances=("GPU-1",), attempt="a", ports=(wire.PortAsk(count=2),))
    asked = len(node.books.asked)
    assert prepare(node, instances=("GPU-1",), attempt="a", ports=(wire.PortAsk(count=2),)) == first
    assert all(isinstance(one, Verify) for one in node.books.asked[asked:])


def test_the_same_prepare_gets_the_same_answer_after_a_crash(node):
    first = prepare(node, instances=("GPU-1",), attempt="a", request="1")
    restart(node)
    assert prepare(node, instances=("GPU-1",), attempt="a", request="1") == first


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


def test_slices_of_one_card_are_held_by_different_jobs(node):
    prepare(node, job="1", instances=("MIG-0",))
    prepare(node, job="2", instances=("MIG-1",))
    assert node.held() == {"MIG-0": [("1", "")], "MIG-1": [("2", "")]}


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


def test_a_release_frees_and_a_second_one_is_an_answer(node):
    prepare(node, instances=("GPU-1",), attempt="a")
    assert release(node, attempt="a") == wire.Released(released=True, clean=True)
    assert release(node, attempt="a").known is False
    assert not node.books.bound
    prepare(node, job="2", instances=("GPU-1",))


def test_a_late_retry_of_a_released_attempt_is_stale_and_a_requeue_is_welcome(node):
    prepare(node, instances=("GPU-1",), attempt="a")
    release(node, attempt="a")
    with pytest.raises(errors.Stale, match="new attempt"):
        prepare(node, instances=("GPU-1",), attempt="a")
    restart(node)
    with pytest.raises(errors.Stale):
        prepare(node, instances=("GPU-1",), attempt="a")
    prepare(node, instances=("GPU-1",), attempt="b")


def test_a_late_release_of_an_old_attempt_does_not_touch_the_new_one(node):
    prepare(node, instances=("GPU-1",), attempt="a")
    release(node, attempt="a")
    prepare(node, instances=("GPU-1",), attempt="b")
    assert release(node, attempt="a").known is False
    assert node.held() == {"GPU-1": [("1", "b")]}


def test_a_prepare_that_the_binder_refuses_leaves_nothing_and_may_be_tried_again(node):
    node.books.fail = ["enforcement"]
    with pytest.raises(errors.Enforcement):
        prepare(node, instances=("GPU-1",), attempt="a")
    assert node.held() == {}
    assert not node.books.bound
    prepare(node, instances=("GPU-1",), attempt="a")


def test_a_binder_that_is_away_all_along_leaves_a_release_to_be_done(node):
    node.books.fail = ["enforcement", "enforcement"]
    with pytest.raises(errors.Enforcement):
        prepare(node, instances=("GPU-1",), attempt="a")
    assert node.ledger.book.live["1", "a"].state == "releasing"
    with pytest.raises(errors.Busy):
        prepare(node, job="2", instances=("GPU-1",))
    assert restart(node) == {"released": 1}
    prepare(node, job="2", instances=("GPU-1",))


def test_what_is_left_in_the_cgroup_is_quarantined_until_it_is_gone(node):
    prepare(node, instances=("GPU-1",), attempt="a")
    node.books.processes["/cg/home/job-1"] = (4242,)
    answer = release(node, attempt="a")
    assert not answer.clean
    assert answer.quarantined == ("GPU-1",)
    assert [left.pid for left in answer.holders] == [4242]
    with pytest.raises(errors.Busy):
        prepare(node, job="2", instances=("GPU-1",))
    node.books.processes.clear()
    assert release(node, attempt="a").clean
    prepare(node, job="2", instances=("GPU-1",))


def test_a_port_that_still_listens_is_quarantined_and_the_cards_are_not(node):
    prepare(node, instances=("GPU-1",), attempt="a", ports=(wire.PortAsk(count=1, name="http"),))
    node.cards.listening = {20000}
    answer = release(node, attempt="a")
    assert answer.quarantined == ("ports",)
    assert [(left.pid, left.what) for left in answer.holders] == [(77, "listens on tcp 20000")]
    prepare(node, job="2", instances=("GPU-1",))
    assert prepare(node, job="3", ports=(wire.PortAsk(count=1),)).ports[0].port == 20001


def test_a_binding_grows_and_shrinks(node):
    prepare(node, instances=("GPU-1",), attempt="a")
    grown = prepare(node, instances=("GPU-2",), attempt="a", add=True)
    assert grown.instances == ("GPU-1", "GPU-2")
    assert prepare(node, instances=("GPU-2",), attempt="a", add=True) == grown
    assert prepare(node, instances=("GPU-1",), attempt="a").instances == ("GPU-1", "GPU-2")
    release(node, attempt="a", instances=("GPU-1",))
    assert node.held() == {"GPU-2": [("1", "a")]}
    assert [r.device.minor for r in node.books.bound["/cg/home/job-1"][1]] == [2]


def test_a_growth_that_fails_leaves_the_binding_as_it_was(node):
    prepare(node, instances=("GPU-1",), attempt="a")
    node.books.fail = ["enforcement"]
    with pytest.raises(errors.Enforcement):
        prepare(node, instances=("GPU-2",), attempt="a", add=True)
    assert node.held() == {"GPU-1": [("1", "a")]}
    assert [r.device.minor for r in node.books.bound["/cg/home/job-1"][1]] == [1]
    grown = prepare(node, instances=("GPU-2",), attempt="a", add=True)
    assert grown.instances == ("GPU-1", "GPU-2")


def test_growing_what_is_not_there_is_a_conflict(node):
    with pytest.raises(errors.Conflict):
        prepare(node, instances=("GPU-2",), attempt="a", add=True)


def test_reconcile_releases_what_is_not_named(node):
    for job in ("1", "2", "3"):
        prepare(node, job=job, attempt="a")
    answer = run(
        reconcile(
            node.life,
            wire.Reconcile(
                jobs=(wire.JobRef(job="1", attempt="a"), wire.JobRef(job="2"), wire.JobRef(job="9"))
            ),
            now=5.0,
        )
    )
    assert [ref.job for ref in answer.kept] == ["1", "2"]
    assert [ref.job for ref in answer.released] == ["3"]
    assert [ref.job for ref in answer.unknown] == ["9"]


def test_a_reboot_closes_all_bindings_and_touches_nothing_else(node):
    prepare(node, instances=("GPU-1",), attempt="a")
    asked = len(node.books.asked)
    node.boot = "boot-2"
    assert restart(node) == {"lost-reboot": 1}
    assert len(node.books.asked) == asked
    assert node.held() == {}


def test_a_vanished_cgroup_closes_its_binding(node):
    prepare(node, instances=("GPU-1",), attempt="a")
    node.life.outcomes.settle()
    node.ledger.flush()
    node.books.bound.clear()
    assert restart(node) == {"cgroup-vanished": 1}
    assert node.held() == {}


def test_a_retry_after_the_cgroup_vanished_binds_anew(node):
    first = prepare(node, instances=("GPU-1",), attempt="a")
    node.books.bound.clear()
    assert prepare(node, instances=("GPU-1",), attempt="a") == first
    assert "/cg/home/job-1" in node.books.bound


def test_a_retry_after_the_fence_was_taken_away_puts_it_back(node):
    prepare(node, instances=("GPU-1",), attempt="a")
    mark, grants = node.books.bound["/cg/home/job-1"]
    node.books.bound["/cg/home/job-1"] = (mark, ())
    prepare(node, instances=("GPU-1",), attempt="a")
    assert node.books.bound["/cg/home/job-1"] == (mark, grants)


def test_what_is_given_up_is_nobodys_until_the_kernel_has_taken_it_back(node):
    prepare(node, instances=("GPU-1", "GPU-2"), attempt="a")
    node.books.fail = ["enforcement"]
    release(node, attempt="a", instances=("GPU-1",))
    with pytest.raises(errors.Busy):
        prepare(node, job="2", instances=("GPU-1",))
    assert restart(node) == {"finished": 1}
    assert [r.device.minor for r in node.books.bound["/cg/home/job-1"][1]] == [2]
    prepare(node, job="2", instances=("GPU-1",))


def test_what_a_failed_growth_had_added_is_nobodys_until_it_is_taken_back(node):
    prepare(node, instances=("GPU-1",), attempt="a")
    node.books.fail = ["enforcement", "enforcement"]
    with pytest.raises(errors.Enforcement):
        prepare(node, instances=("GPU-2",), attempt="a", add=True)
    with pytest.raises(errors.Busy):
        prepare(node, job="2", instances=("GPU-2",))
    assert restart(node) == {"finished": 1}
    prepare(node, job="2", instances=("GPU-2",))


def test_giving_up_what_is_not_held_is_an_answer(node):
    prepare(node, instances=("GPU-1",), attempt="a")
    assert release(node, attempt="a", instances=("GPU-2",)).released
    assert release(node, job="9", instances=("GPU-2",)).known is False


def test_what_was_given_up_can_be_added_again(node):
    prepare(node, instances=("GPU-1",), attempt="a")
    prepare(node, instances=("GPU-2",), attempt="a", add=True)
    release(node, attempt="a", instances=("GPU-2",))
    again = prepare(node, instances=("GPU-2",), attempt="a", add=True)
    assert again.instances == ("GPU-1", "GPU-2")


def test_a_requeue_waits_for_what_its_former_attempt_left_over(node):
    prepare(node, instances=("GPU-1",), attempt="a")
    node.books.processes["/cg/home/job-1"] = (4242,)
    release(node, attempt="a")
    with pytest.raises(errors.Busy, match="left over"):
        prepare(node, instances=("GPU-2",), attempt="b")


def test_an_attempt_is_dead_for_the_configured_time(node):
    prepare(node, instances=("GPU-1",), attempt="a")
    release(node, attempt="a")
    node.uptime.now += node.life.site.attempt_memory_seconds + 1
    prepare(node, instances=("GPU-1",), attempt="a")


def test_the_order_of_the_ids_makes_no_difference(node):
    first = prepare(node, instances=("GPU-2", "GPU-1"), attempt="a")
    assert prepare(node, instances=("GPU-1", "GPU-2"), attempt="a") == first


def test_a_generation_that_this_node_never_had_is_stale(node):
    with pytest.raises(errors.Stale, match="not one of this node's"):
        prepare(node, instances=("GPU-1",), generation="b:99")


def test_one_that_cannot_be_released_does_not_keep_the_others(node):
    for job in ("1", "2", "3"):
        prepare(node, job=job, attempt="a")
    node.books.fail = ["enforcement"]
    answer = run(reconcile(node.life, wire.Reconcile(jobs=()), now=5.0))
    assert [ref.job for ref in answer.released] == ["1", "2", "3"]
    assert [ref.job for ref in answer.unclean] == ["1"]
    assert set(node.books.bound) == {"/cg/home/job-1"}


def test_an_equal_plan_is_not_taken_for_the_one_that_was_carried_out(node):
    prepare(node, instances=("GPU-1",))
    release(node)
    node.books.fail = ["enforcement"]
    with pytest.raises(errors.Enforcement):
        prepare(node, instances=("GPU-1",))
    node.life.outcomes.settle()
    assert node.held() == {}


def test_a_fence_that_differs_is_put_back(node):
    async def bound():
        await node.life.prepare(wire.Prepare(job="1", instances=("GPU-1",)))
        await asyncio.sleep(0)
        await node.life.close()

    run(bound())
    mark, _ = node.books.bound["/cg/home/job-1"]
    node.books.bound["/cg/home/job-1"] = (mark, ())
    assert restart(node) == {"repaired": 1}
    assert len(node.books.bound["/cg/home/job-1"][1]) == 1


def test_with_enforcement_off_nothing_is_asked_of_the_binder(node):
    node.policy = "off"
    restart(node)
    answer = prepare(node, instances=("GPU-1",))
    assert (answer.enforcement, answer.cgroup) == ("off", {})
    assert not node.books.asked


def test_eight_clients_for_one_card_give_one_holder(node):
    async def all_at_once():
        asks = [node.life.prepare(wire.Prepare(job=str(i), instances=("GPU-1",))) for i in range(8)]
        return await asyncio.gather(*asks, return_exceptions=True)

    results = run(all_at_once())
    assert sum(isinstance(r, wire.Prepared) for r in results) == 1
    assert sum(isinstance(r, errors.Busy) for r in results) == 7


def test_eight_copies_of_one_prepare_get_one_answer(node):
    async def all_at_once():
        ask = wire.Prepare(job="1", attempt="a", request="2")
        return await asyncio.gather(*(node.life.prepare(ask) for _ in range(8)))

    answers = run(all_at_once())
    assert all(answer == answers[0] for answer in answers)


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


def test_a_held_slice_leaves_its_sisters_free_and_its_card_not(node):
    prepare(node, instances=("MIG-0",))
    everything = node.inventory.instances
    assert node.ledger.book.unavailable(everything) == {"MIG-0", "GPU-0"}


def test_verification_puts_back_what_differs_and_closes_what_vanished(node):
    for job in ("1", "2", "3"):
        prepare(node, job=job, instances=(f"GPU-{job}",), attempt="a")
    whole = node.books.bound["/cg/home/job-1"]
    node.books.bound["/cg/home/job-1"] = (whole[0], ())
    del node.books.bound["/cg/home/job-2"]
    run(node.life.verification.run())
    assert node.books.bound["/cg/home/job-1"] == whole
    assert node.held() == {"GPU-1": [("1", "a")], "GPU-3": [("3", "a")]}


def test_a_retry_after_something_was_given_up_is_a_conflict_and_not_an_answer_without_it(node):
    prepare(node, request="2", attempt="a", uid=7)
    release(node, attempt="a", instances=("GPU-1",))
    with pytest.raises(errors.Conflict):
        prepare(node, request="2", attempt="a", uid=7)
    held = node.ledger.book.live["1", "a"].instances
    assert prepare(node, instances=held, attempt="a", uid=7).instances == held
