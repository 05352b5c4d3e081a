"""Bindings live as the design says: idempotent, exclusive, durable, and undone whole."""

from __future__ import annotations

import asyncio

import pytest
from binding.calls import prepare, release, restart, run

from xce_nodeagent import errors
from xce_nodeagent.binding.reconcile import reconcile
from xce_nodeagent.model import wire
from xce_nodeagent.privileged.ops import Verify


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


def test_the_same_prepare_again_gets_the_same_answer_and_changes_nothing(node):
    first = prepare(node, instances=("GPU-1",), attempt="a", ports=(wire.PortAsk(count=2),))
    asked = len(node.books.asked)
    assert prepare(node, instances=("GPU-1",), attempt="a", ports=(wire.PortAsk(count=2),)) == first
    assert all(isinstance(one, Verify) for one in node.books.asked[asked:])


def test_the_same_prepare_gets_the_same_answer_after_a_crash(node):
    first = prepare(node, instances=("GPU-1",), attempt="a", request="1")
    restart(node)
    assert prepare(node, instances=("GPU-1",), attempt="a", request="1") == first


def test_slices_of_one_card_are_held_by_different_jobs(node):
    prepare(node, job="1", instances=("MIG-0",))
    prepare(node, job="2", instances=("MIG-1",))
    assert node.held() == {"MIG-0": [("1", "")], "MIG-1": [("2", "")]}


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


def test_eight_copies_of_one_prepare_get_one_answer(node):
    async def all_at_once():
        ask = wire.Prepare(job="1", attempt="a", request="2")
        return await asyncio.gather(*(node.life.prepare(ask) for _ in range(8)))

    answers = run(all_at_once())
    assert all(answer == answers[0] for answer in answers)


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
