"""A binding grows and shrinks, and what it gave up is nobody's until the kernel has it back."""

from __future__ import annotations

import pytest
from binding.calls import prepare, release, restart

from xce_nodeagent import errors


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


def test_a_retry_after_something_was_given_up_is_a_conflict_and_not_an_answer_without_it(node):
    prepare(node, request="2", attempt="a", uid=7)
    release(node, attempt="a", instances=("GPU-1",))
    with pytest.raises(errors.Conflict):
        prepare(node, request="2", attempt="a", uid=7)
    held = node.ledger.book.live["1", "a"].instances
    assert prepare(node, instances=held, attempt="a", uid=7).instances == held
