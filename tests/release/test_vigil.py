"""Who is found after a release: whose left-over it is, and what becomes of the instance."""

import asyncio

import pytest
from msgspec import structs

from xce_nodeagent import errors
from xce_nodeagent.binding.recovery import recover
from xce_nodeagent.model import wire
from xce_nodeagent.model.binding import Adopted
from xce_nodeagent.privileged.ops import Seen

OLD = 0.0
"""A process that began before any job."""


def run(work):
    return asyncio.run(work)


def prepare(node, job="1", attempt="a", card=1, **more):
    return run(
        node.life.prepare(
            wire.Prepare(job=job, attempt=attempt, instances=(f"GPU-{card}",), **more)
        )
    )


def release(node, job="1", **ask):
    return run(node.life.releases.release(wire.Release(job=job, **ask)))


def look(node):
    run(node.life.releases.vigil.look(10))


def seen(node, *, started=None, pid=77, card=1, comm="left", how="open"):
    """Let the witness see a process with a card; one that began just now, unless said."""
    began = node.uptime() if started is None else started
    one = Seen(pid, 5, comm, f"c 120:{card}", how, began)
    node.seen = (*node.seen, one)
    return one


def quarantined(node):
    return {
        f"{b.job}:{b.attempt}": (b.instances, [left.pid for left in b.left])
        for b in node.ledger.book
        if b.state == "quarantined"
    }


def test_who_began_while_the_job_ran_is_its_left_over(node):
    prepare(node)
    seen(node)
    assert release(node).clean
    look(node)
    assert quarantined(node) == {"1:a": (("GPU-1",), [77])}
    with pytest.raises(errors.Busy):
        prepare(node, job="2")
    node.seen = ()
    assert release(node).clean
    assert not node.ledger.book.live
    prepare(node, job="2")


def test_who_had_it_before_is_not(node):
    daemon = seen(node, started=OLD)
    look(node)
    prepare(node)
    release(node)
    look(node)
    assert quarantined(node) == {}
    # It stays out of account, also beside one that is left.
    prepare(node, job="2")
    node.seen = (daemon,)
    seen(node, pid=78)
    release(node, job="2")
    look(node)
    assert quarantined(node) == {"2:a": (("GPU-1",), [78])}


def test_who_had_it_outside_from_the_start_of_the_job_is_not(node):
    prepare(node)
    seen(node, started=OLD)
    look(node)
    release(node)
    look(node)
    assert quarantined(node) == {}


def test_who_is_older_and_was_seen_without_it_got_it_from_the_job(node):
    look(node)
    prepare(node)
    look(node)
    seen(node, started=OLD)
    release(node)
    look(node)
    assert quarantined(node) == {"1:a": (("GPU-1",), [77])}


def test_a_number_that_another_process_has_by_now_is_no_resident(node):
    seen(node, started=OLD)
    look(node)
    prepare(node)
    node.seen = ()
    seen(node)
    release(node)
    look(node)
    assert quarantined(node) == {"1:a": (("GPU-1",), [77])}


def test_programs_that_are_named_are_never_left_overs(node, tmp_path):
    node.release = type(node.release)(residents=("dcgm",))
    node.crash()
    node.open()
    prepare(node)
    seen(node, comm="dcgm")
    release(node)
    look(node)
    assert quarantined(node) == {}


def test_a_descriptor_with_which_nothing_can_be_done_holds_nothing_back(node):
    """Anybody can get one with O_PATH, also of a node that they may not open."""
    prepare(node)
    seen(node, how="path")
    release(node)
    look(node)
    assert quarantined(node) == {}


def test_what_another_got_meanwhile_stays_with_it_and_is_noted(node):
    prepare(node)
    seen(node)
    release(node)
    prepare(node, job="2")
    look(node)
    assert quarantined(node) == {}
    shared = node.life.releases.vigil.shared
    assert [(key, [one.pid for one in who]) for key, who in shared.items()] == [(("2", "a"), [77])]
    release(node, job="2")
    look(node)
    assert quarantined(node) == {"2:a": (("GPU-1",), [77])}


def test_a_slice_of_a_card_that_another_got_a_slice_of_is_told_apart(node):
    """The card is not free any more for the one that left it, and the other slice is."""
    prepare(node, card=0)
    seen(node, card=0)
    release(node)
    run(node.life.prepare(wire.Prepare(job="2", attempt="a", instances=("MIG-0",))))
    look(node)
    assert quarantined(node) == {}
    assert set(node.held()) == {"MIG-0"}


@pytest.mark.parametrize("before_the_look", [True, False])
def test_a_restart_loses_nobody(node, before_the_look):
    prepare(node)
    seen(node)
    release(node)
    if not before_the_look:
        look(node)
    node.life.outcomes.close()
    node.crash()
    node.open()

    async def start():
        await recover(node.ledger, node.executor, node.life)
        node.life.releases.vigil.start()
        await node.life.releases.vigil.look(10)

    run(start())
    assert quarantined(node) == {"1:a": (("GPU-1",), [77])}
    node.seen = ()
    assert release(node).clean


def test_without_a_witness_what_is_doubtful_stays_and_the_others_go_on(node, monkeypatch):
    prepare(node)
    seen(node)
    release(node)
    look(node)
    answers = node.look

    async def away(what):
        raise errors.NotReady("no witness")

    monkeypatch.setattr(node, "look", away)
    node.seen = ()
    late = release(node)
    assert (late.released, late.clean, late.quarantined) == (True, False, ("GPU-1",))
    assert node.life.releases.vigil.trouble == "no witness"
    prepare(node, job="2", card=2)
    assert release(node, job="2").clean
    prepare(node, job="3", card=2)
    # When it is back, all of it is looked at, also who was left by the second.
    monkeypatch.setattr(node, "look", answers)
    seen(node, card=3)
    look(node)
    assert quarantined(node) == {}
    assert node.life.releases.vigil.trouble == ""


@pytest.mark.parametrize("how", [{"cut": True}, {"unread": (77,)}])
def test_a_look_that_was_cut_short_or_could_not_see_the_holder_frees_nothing(
    node, monkeypatch, how
):
    prepare(node)
    seen(node)
    release(node)
    look(node)
    answers = node.look

    async def cut(what):
        return structs.replace(await answers(what), **how)

    node.seen = ()
    monkeypatch.setattr(node, "look", cut)
    assert not release(node).clean
    monkeypatch.setattr(node, "look", answers)
    look(node)
    assert quarantined(node) == {}


def test_of_two_quarantines_of_one_card_the_earlier_ends(node):
    """The ledger lost the end of the first: the second got the card after it was clean."""
    prepare(node)
    first = node.ledger.book.live["1", "a"]
    seen(node)
    release(node)
    look(node)
    later = structs.replace(first, job="3", since=first.since + 9, up=0.0, state="quarantined")
    node.ledger.note(Adopted(job="3", attempt="a", binding=later))
    assert set(quarantined(node)) == {"1:a", "3:a"}
    assert release(node).clean
    assert set(quarantined(node)) == {"3:a"}
    assert not release(node, job="3").clean
    node.seen = ()
    assert release(node, job="3").clean
