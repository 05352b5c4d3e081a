"""What a card's health is: by examples, and by what must hold whatever happens."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import json, structs

from xce_nodeagent.model import health, policy
from xce_nodeagent.model.health import SOUND, Card, Limits, Moment, Sample, Xid
from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.link import Link
from xce_nodeagent.model.policy import DEFAULT, Policy

LIMITS = Limits()
DAY = 86_400.0


def gpu(name: str, *slices: str) -> Instance:
    return Instance(id=name, type="gpu", provider="nvidia", overlaps=slices)


def mig(name: str, card: str, gpu_instance: int, compute_instance: int = 0) -> Instance:
    return Instance(
        id=name, type="mig", provider="nvidia", parent=card, overlaps=(card,),
        attributes={"gpu_instance": gpu_instance, "compute_instance": compute_instance},
    )  # fmt: skip


SLICED = (
    gpu("A", "A1", "A2", "A3"), mig("A1", "A", 1), mig("A2", "A", 2), mig("A3", "A", 2, 1),
    gpu("B", "B-share"),
    Instance(id="B-share", type="mps", provider="nvidia", parent="B", overlaps=("B",)),
    gpu("C"),
)  # fmt: skip
LINKS = (Link("nvlink", "A", "B", 4), Link("nvlink", "C", "0000:c1:00.0", 4))


def at(up: float) -> Moment:
    return Moment(up, 1_000_000.0 + up)


def after(*xids: Xid, table: policy.Table = DEFAULT, card: Card = SOUND) -> Card:
    for xid in xids:
        card = health.heard(card, xid, at(10), table)
    return card


def hit(card: Card, name: str = "A", table: policy.Table = DEFAULT) -> set[str]:
    return set(health.told(SLICED, LINKS, {name: card}, table))


def run(*samples: tuple[float, Sample], card: Card = SOUND, limits: Limits = LIMITS) -> Card:
    for up, sample in samples:
        card = health.measured(card, sample, at(up), DEFAULT, limits)
    return card


def causes(card: Card) -> list[str]:
    return [condition.cause for condition in card.conditions]


# ---- XIDs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [8, 13, 31, 43, 45, 68, 94, 137, 154])
def test_what_an_application_did_is_not_the_cards_fault(number: int) -> None:
    assert after(Xid(number)) == SOUND


@pytest.mark.parametrize("number", [46, 48, 62, 64, 74, 79, 95, 109, 119, 120, 140, 143, 158])
def test_what_needs_a_reset_takes_the_card_and_all_that_is_made_of_it(number: int) -> None:
    assert hit(after(Xid(number))) == {"A", "A1", "A2", "A3"}
    assert hit(after(Xid(number)), "B") == {"B", "B-share"}


@pytest.mark.parametrize("number", [63, 92, 144, 163, 171, 999])
def test_what_is_to_be_watched_is_kept_and_keeps_nobody_from_the_card(number: int) -> None:
    card = after(Xid(number))
    assert causes(card) == [f"xid-{number}"]
    assert hit(card) == set()


def test_a_slice_takes_its_card_along_and_not_its_siblings() -> None:
    assert hit(after(Xid(48, 1, 0))) == {"A", "A1"}
    assert hit(after(Xid(48, 2, 0))) == {"A", "A2", "A3"}  # they share the memory
    assert hit(after(Xid(95, 1, 0))) == {"A", "A1", "A2", "A3"}  # it was not contained


def test_a_row_may_hit_one_compute_instance_alone_or_the_peers() -> None:
    table = policy.merged(
        {"xid-48": Policy("x", hits="compute"), "xid-74": Policy("x", hits="peers")}
    )
    assert hit(after(Xid(48, 2, 1)), table=table) == {"A", "A3"}
    assert hit(after(Xid(48, 2)), table=table) == {"A", "A2", "A3"}
    assert hit(after(Xid(74)), table=table) == {"A", "A1", "A2", "A3", "B", "B-share"}
    assert hit(after(Xid(74)), "B", table) == {"A", "A1", "A2", "A3", "B", "B-share"}
    assert hit(after(Xid(74)), "C", table) >= {"C"}


def test_a_slice_that_is_gone_leaves_the_fault_to_the_card() -> None:
    assert hit(after(Xid(48, 7, 0))) == {"A", "A1", "A2", "A3"}


def test_the_reason_names_cause_and_remedy_and_counts_nothing() -> None:
    once, often = after(Xid(79)), after(*[Xid(79)] * 5)
    first = health.told(SLICED, LINKS, {"A": once}, DEFAULT)
    assert first["A"] == (
        "XID 79, the GPU has fallen off the bus: reboot, or switch the host off and on; undrain it"
        " if that was not needed"
    )
    assert first["A1"] == f"A: {first['A']}"
    assert health.told(SLICED, LINKS, {"A": often}, DEFAULT) == first
    assert often.conditions[0].count == 5
    inner = health.told(SLICED, LINKS, {"A": after(Xid(48, 2, 0))}, DEFAULT)
    assert "in GPU instance 2, compute instance 0" in inner["A3"]
    many = health.told(SLICED, LINKS, {"A": after(*map(Xid, (46, 48, 62, 74, 79)))}, DEFAULT)
    assert many["A"].endswith("; and 2 more")


def test_what_is_no_xid_is_nothing() -> None:
    assert after(Xid(0), Xid(-3), Xid(1 << 40)) == SOUND


def test_conditions_end_by_what_their_row_says_and_by_an_administrator() -> None:
    rows = {
        f"xid-{number}": Policy("x", ends=ends, seconds=60 if ends == "quiet" else 0)
        for number, ends in enumerate(("quiet", "reset", "reboot", "undrain"), 1001)
    }
    table = policy.merged(rows)
    card = after(*map(Xid, range(1001, 1005)), table=table)
    assert causes(health.renewed(card, table)) == ["xid-1003", "xid-1004"]
    assert causes(health.rebooted(card, at(0), table)) == ["xid-1004"]
    assert health.undrained(card) == SOUND
    assert health.due(card, table) == 70
    assert health.quiet(card, at(69.9), table) == card
    assert causes(health.quiet(card, at(70), table)) == ["xid-1002", "xid-1003", "xid-1004"]
    again = health.heard(card, Xid(1001), at(50), table)
    assert health.due(again, table) == 110


def test_undraining_a_slice_is_no_word_about_its_siblings() -> None:
    card = after(Xid(48, 1, 0), Xid(48, 2, 0), Xid(95))
    assert [c.gpu_instance for c in health.undrained(card, 1).conditions] == [2, None]


def test_the_driver_ends_what_it_asked_a_reset_for() -> None:
    asks, asks_not = Sample(recovery="reset"), Sample(recovery="none")
    card = after(Xid(48), Xid(79))
    assert causes(run((11, asks_not), card=card)) == ["xid-48", "xid-79"]  # it has not asked yet
    asked = run((11, asks), card=card)
    assert causes(asked) == ["xid-48", "xid-79", "recovery-reset"]
    assert causes(run((12, asks_not), card=asked)) == ["xid-79"]  # that one needs a reboot


@pytest.mark.parametrize("action", ["reset", "reboot", "drain-reset", "imex", "bus-reset"])
def test_a_recovery_that_the_driver_asks_for_is_a_condition_as_long_as_it_does(action: str) -> None:
    card = run((1, Sample(recovery=action)))
    assert hit(card) == {"A", "A1", "A2", "A3"}
    assert run((2, Sample(recovery="none")), card=card) == SOUND


# ---- figures ------------------------------------------------------------------------------


def hot(degrees: int) -> Sample:
    return Sample(temperature=degrees, slowdown_at=90, slowed=degrees >= 90)


def test_heat_counts_when_it_lasts_and_ends_when_it_is_cool_for_long() -> None:
    assert run((0, hot(95)), (59, hot(95))).conditions == ()
    card = run((0, hot(95)), (60, hot(95)))
    assert causes(card) == ["thermal"]
    assert causes(run((100, hot(70)), (399, hot(70)), card=card)) == ["thermal"]
    assert run((100, hot(70)), (400, hot(70)), card=card) == SOUND


def test_what_is_neither_hot_nor_cool_begins_and_ends_nothing() -> None:
    assert run((0, hot(95)), (30, hot(85)), (60, hot(95)), (119, hot(95))).conditions == ()
    card = run((0, hot(95)), (60, hot(95)))
    warm = run((100, hot(70)), (300, hot(85)), (400, hot(70)), (699, hot(70)), card=card)
    assert causes(warm) == ["thermal"]
    assert run((700, hot(70)), card=warm) == SOUND


def test_a_card_that_tells_no_temperature_is_not_hot() -> None:
    assert run((0, Sample()), (1e6, Sample())) == SOUND
    assert causes(run((0, Sample(slowed=True)), (60, Sample(slowed=True)))) == ["thermal"]


def test_a_lost_card_is_so_at_once_and_is_back_when_it_answers_for_a_while() -> None:
    card = run((0, Sample(lost="GPU is lost")))
    assert hit(card) == {"A", "A1", "A2", "A3"}
    flaps = run((30, Sample()), (60, Sample(lost="x")), (70, Sample()), (129, Sample()), card=card)
    assert causes(flaps) == ["lost"]
    assert run((130, Sample()), card=flaps).conditions == ()


def test_corrected_errors_count_by_their_rate_with_two_thresholds() -> None:
    limits = Limits(corrected_per_hour=100)
    few = [(60.0 * minute, Sample(corrected=minute)) for minute in range(600)]
    assert run(*few, limits=limits).conditions == ()  # 60 in an hour, for ten hours
    burst = run((0, Sample(corrected=5)), (60, Sample(corrected=110)), limits=limits)
    assert causes(burst) == ["corrected"]
    still = [(60 + minute * 60.0, Sample(corrected=110)) for minute in range(1, 46)]
    assert causes(run(*still[:40], card=burst, limits=limits)) == ["corrected"]
    assert run(*still, (3600, Sample(corrected=110)), card=burst, limits=limits).conditions == ()
    never = Limits(corrected_per_hour=0)
    assert run((0, Sample(corrected=0)), (1, Sample(corrected=9**9)), limits=never).conditions == ()


def test_a_counter_that_begins_anew_has_counted_all_that_it_says() -> None:
    limits = Limits(corrected_per_hour=100)
    card = run((0, Sample(corrected=5000)), (1, Sample(corrected=99)), limits=limits)
    assert (card.conditions, round(card.level)) == ((), 99)


@pytest.mark.parametrize(
    ("name", "cause", "bad"),
    [
        ("remap_failed", "remap-failed", True), ("remap_pending", "remap-pending", False),
        ("retire_pending", "retire-pending", False),
    ],
)  # fmt: skip
def test_memory_that_is_to_be_replaced(name: str, cause: str, bad: bool) -> None:
    card = run((0, Sample(**{name: True})))
    assert causes(card) == [cause]
    assert bool(hit(card)) is bad
    assert causes(run((1, Sample()), card=card)) == [cause]  # it does not answer now
    assert run((2, Sample(**{name: False})), card=card) == SOUND


def test_uncorrected_errors_are_noted_until_the_counter_begins_anew() -> None:
    card = run((0, Sample(uncorrected=2)))
    assert (causes(card), hit(card)) == (["uncorrected"], set())
    assert run((1, Sample(uncorrected=0)), card=card) == SOUND


# ---- what must hold whatever happens -------------------------------------------------------

numbers = st.sampled_from([13, 31, 32, 48, 63, 74, 79, 95, 154, 999, -1, 1 << 50])
instance_ids = st.none() | st.integers(0, 3)
xids = st.builds(Xid, numbers, instance_ids, instance_ids)
flags = st.none() | st.booleans()
counts = st.none() | st.integers(0, 50_000)
samples = st.builds(
    Sample, lost=st.sampled_from(["", "", "GPU is lost"]), temperature=st.integers(20, 110),
    slowdown_at=st.none() | st.just(90), slowed=flags, corrected=counts, uncorrected=counts,
    remap_pending=flags, remap_failed=flags, retire_pending=flags,
    recovery=st.none() | st.sampled_from(["none", "reset", "drain-p2p", "unknown"]),
)  # fmt: skip


@dataclass
class Step:
    what: str
    waited: float
    value: Xid | Sample | int | None


steps = st.lists(
    st.builds(Step, st.just("heard"), st.floats(0, 2 * DAY), xids)
    | st.builds(Step, st.just("measured"), st.floats(0, 400), samples)
    | st.builds(Step, st.sampled_from(["renewed", "rebooted", "quiet", "resumed"]),
                st.floats(0, 2 * DAY), st.none())
    | st.builds(Step, st.just("undrained"), st.floats(0, 60), instance_ids),
    max_size=40,
)  # fmt: skip


def taken(card: Card, step: Step, now: Moment) -> Card:
    match step.what, step.value:
        case "heard", Xid() as xid:
            return health.heard(card, xid, now, DEFAULT)
        case "measured", Sample() as sample:
            return health.measured(card, sample, now, DEFAULT, LIMITS)
        case "undrained", gpu_instance:
            return health.undrained(card, gpu_instance)  # type: ignore[arg-type]  # the union of what hypothesis draws
        case "renewed", _:
            return health.renewed(card, DEFAULT)
        case "rebooted", _:
            return health.rebooted(card, now, DEFAULT)
        case "quiet", _:
            return health.quiet(card, now, DEFAULT)
        case _:
            return health.resumed(card)


@given(steps)
def test_whatever_happens(history: list[Step]) -> None:
    card, up = SOUND, 0.0
    for step in history:
        up += step.waited
        before, card = card, taken(card, step, at(up))
        places = [condition.place for condition in card.conditions]
        assert len(places) == len(set(places)) <= health.CONDITIONS_LIMIT
        assert all(DEFAULT.get(c.cause, DEFAULT["xid-unknown"]).verdict != "ignore"
                   for c in card.conditions)  # fmt: skip
        # It is the same after it was written and read.
        assert json.decode(json.encode(card), type=Card) == card
        # Nobody but the card, and who is made of it, is hit.
        assert hit(card) <= {"A", "A1", "A2", "A3"}
        # Nothing is due that is over.
        assert health.due(health.quiet(card, at(up), DEFAULT), DEFAULT) is None or (
            health.due(health.quiet(card, at(up), DEFAULT), DEFAULT) > up
        )
        if step.what in ("renewed", "rebooted", "quiet", "resumed", "undrained"):
            assert set(places) <= {condition.place for condition in before.conditions}
    assert hit(health.undrained(card)) == set()
    # A cool, sound card is sound in the end, and needs no more than a reset and time.
    card = health.renewed(structs.replace(card, turning={}), DEFAULT)
    well = Sample(temperature=40, slowdown_at=90, slowed=False, corrected=card.corrected or 0,
                  uncorrected=0, remap_pending=False, remap_failed=False, retire_pending=False,
                  recovery="none")  # fmt: skip
    for _ in range(3):
        up += 2 * DAY
        card = health.quiet(health.measured(card, well, at(up), DEFAULT, LIMITS), at(up), DEFAULT)
    assert set(causes(card)) <= {"xid-79"}  # only a reboot ends that


@given(st.lists(xids, max_size=200))
def test_the_order_of_events_does_not_matter_for_who_is_hit(many: list[Xid]) -> None:
    assert hit(after(*many)) == hit(after(*reversed(many)))


@given(st.dictionaries(st.sampled_from("ABC"), st.lists(xids, max_size=5)))
def test_cards_do_not_know_of_each_other(heard: dict[str, list[Xid]]) -> None:
    cards = {name: after(*some) for name, some in heard.items()}
    together = health.told(SLICED, LINKS, cards, DEFAULT)
    alone = [health.told(SLICED, LINKS, {name: card}, DEFAULT) for name, card in cards.items()]
    assert together == {one: why for told in alone for one, why in told.items()}
