"""What earlier and later versions wrote on the cgroups of their bindings: it is read, for ever.

The samples are those of `samples/make.py`: labels, and the bindings that they are of as their own
version read them. The oldest are a mark alone; from `2-first` on there is a record behind it.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from ledger.test_sweep import Kernel

from xce_nodeagent.binding import rebuild, record
from xce_nodeagent.model.binding import Binding
from xce_nodeagent.model.plan import HoldPort, Plan, SetEnv
from xce_nodeagent.model.rule import Device, Rule
from xce_nodeagent.privileged.label import Label
from xce_nodeagent.privileged.ops import RECORD_LIMIT, Marked

SAMPLES = Path(__file__).parent / "samples"
NEWEST = "2-excluded"
BINDING = "trusted.xce.binding"
CARD_1 = (Rule(Device("c", 120, 1), 6),)


class Sample(NamedTuple):
    """A label, the version it is from, what it is of, and what it is to be read as."""

    version: str
    name: str
    value: str
    written: Binding
    binding: Binding

    @property
    def recorded(self) -> bool:
        """Whether the binding can be had from it."""
        return self.name not in ("mark", "no record")

    @property
    def released(self) -> bool:
        """Whether the binding was released."""
        return self.name.endswith("released")


def samples() -> list[Sample]:
    """Read all of them."""
    found: list[Sample] = []
    for path in sorted(SAMPLES.glob("*.json")):
        if path.stem != "formats":
            told = json.loads(path.read_text("utf-8"))
            live = {one["job"]: one for one in told["read"]["live"]}
            for name, value in told["labels"].items():
                job = name.removesuffix(" released")
                then = live.get(job, live["grown"])
                # A record has nothing of what changes while the plan stays the same.
                lasting = {"state": "bound", "reason": "", "changed": then["since"]}
                read = msgspec.convert(then | lasting | {"left": [], "leaving": []}, Binding)
                written = msgspec.convert(then, Binding)
                found.append(Sample(path.stem, name, value, written, read))
    return found


ALL = samples()
RECORDED = [sample for sample in ALL if sample.recorded]
TODAY = [
    sample for sample in RECORDED if sample.version == NEWEST and not sample.name.startswith("long")
]


def named(sample: Sample) -> str:
    return f"{sample.version}: {sample.name}"


def record_of(sample: Sample) -> bytes:
    return Label.read(sample.value.encode()).record


def newest(name: str) -> Sample:
    return next(one for one in ALL if (one.version, one.name) == (NEWEST, name))


def test_there_is_every_form_that_ever_landed():
    forms = {(one.version, one.name.removeprefix(one.binding.job).strip()) for one in ALL}
    assert {(v, "mark") for v in ("1-first", "1", "1-up")} <= forms
    for version in ("2-first", "2", "2-born", NEWEST):
        assert {(version, kind) for kind in ("", "released", "long", "no record")} <= forms
    fields = {frozenset(json.loads(record_of(one))) for one in RECORDED}
    assert frozenset(Binding.__struct_fields__) in fields
    assert len(fields) == 3  # `kill` and `born` came one after the other


@pytest.mark.parametrize("sample", RECORDED, ids=named)
def test_a_label_is_read_as_the_version_that_wrote_it_meant_it(sample):
    label = Label.read(sample.value.encode())
    assert (label.mark, label.released) == (sample.binding.mark, sample.released)
    binding = record.decode(label.record, label.mark)
    wanted = sample.binding
    if sample.name.startswith("long"):
        # Without the variables it is short enough.
        steps = tuple(step for step in wanted.plan.steps if not isinstance(step, SetEnv))
        wanted = msgspec.structs.replace(wanted, plan=Plan(steps))
    assert binding == wanted
    assert record.decode(record.encode(binding), label.mark) == binding


@pytest.mark.parametrize("sample", [one for one in ALL if not one.recorded], ids=named)
def test_a_mark_alone_says_whose_it_is_and_no_more(sample):
    label = Label.read(sample.value.encode())
    assert label == Label(sample.binding.mark, b"", released=False)
    with pytest.raises(ValueError, match="Input data was truncated"):
        record.decode(label.record, label.mark)


@pytest.mark.parametrize("sample", TODAY, ids=named)
def test_what_is_written_today_is_the_newest_sample(sample):
    assert record.encode(sample.written) == record_of(sample), (
        "the record on a cgroup has changed: make a new sample, see samples/make.py, and name it in"
        " NEWEST; the others stay as they are"
    )


def test_a_record_leaves_out_what_would_make_it_too_long():
    binding = newest("grown").written
    variable = Plan((*binding.plan.steps, SetEnv("XCE_LONG", "x" * RECORD_LIMIT)))
    short = record.encode(msgspec.structs.replace(binding, plan=variable))
    assert short == record_of(newest("long"))
    name = "n" * RECORD_LIMIT
    ports = Plan((*binding.plan.steps, HoldPort("ports", 20999, name)))
    assert record.encode(msgspec.structs.replace(binding, plan=ports)) == b""


def rebuilt(node: Any, sample: Sample, grants: tuple[Rule, ...] | None) -> Binding:
    """Compare a ledger that was lost with a kernel that has this."""
    label = Label.read(sample.value.encode())
    step = sample.binding.plan.cgroup
    marked = Marked(step.cgroup, label.mark, label.record, label.released, grants, populated=True)
    assert asyncio.run(rebuild.compare(node.ledger, Kernel(marked), node.life.site, 5.0))
    rebuild.withhold(node.ledger, node.inventory)
    (binding,) = node.ledger.book
    return binding


@pytest.fixture
def node(make_node, tmp_path):
    made = make_node(tmp_path)
    yield made
    made.ledger.close()


@pytest.mark.parametrize("sample", RECORDED, ids=named)
def test_a_lost_ledger_has_a_binding_again_from_any_record(node, sample):
    binding = rebuilt(node, sample, CARD_1)
    assert binding.state == ("releasing" if sample.released else "bound")
    assert not binding.doubtful
    assert (binding.asks, binding.instances) == (sample.binding.asks, sample.binding.instances)
    assert set(node.held()) == set(binding.instances)


@pytest.mark.parametrize("sample", [one for one in ALL if not one.recorded], ids=named)
def test_of_a_mark_alone_what_the_kernel_grants_is_withheld(node, sample):
    binding = rebuilt(node, sample, CARD_1)
    assert (binding.state, binding.doubtful) == ("bound", True)
    assert (binding.key, binding.instances) == (sample.binding.key, ("GPU-1",))


def later(value: Any) -> Any:
    """Give a record as a later version may write it: with fields more, at every place."""
    if isinstance(value, dict):
        known = {key: later(one) for key, one in value.items() if key != "ports"}
        # What is asked for of ports takes no unknown fields, for a caller's mistakes.
        return {"aft": {"it": [1]}} | known | {key: value[key] for key in value if key == "ports"}
    return [later(one) for one in value] if isinstance(value, list) else value


def test_fields_of_a_later_version_are_passed_over(node):
    sample = newest("shrunk")
    text = json.dumps(later(json.loads(record_of(sample)))).encode()
    assert text.count(b'"aft"') > 5
    assert record.decode(text, sample.binding.mark) == sample.binding
    value = Label(sample.binding.mark, text).value().decode()
    assert rebuilt(node, sample._replace(value=value), CARD_1) == sample.binding


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("plan", {"steps": [{"type": "freeze", "cgroup": "x"}]}),
        ("kill", "kill-at-once"),
        ("instances", None),
        ("asks", [{"ports": [{"count": 1, "protocol": "udp"}]}]),
    ],
)
def test_what_a_later_version_means_otherwise_is_in_doubt_and_withheld(node, place, value):
    """What a step means cannot be passed over: only what the kernel grants is known then."""
    sample = newest("grown")
    text = json.dumps(json.loads(record_of(sample)) | {place: value}).encode()
    changed = sample._replace(value=Label(sample.binding.mark, text).value().decode())
    binding = rebuilt(node, changed, CARD_1)
    assert (binding.doubtful, binding.instances) == (True, ("GPU-1",))


def aged(value: Any, like: Any) -> Any:
    """Give a record with those fields only that a sample has at the same place."""
    if isinstance(value, dict):
        return {key: aged(one, like[key]) for key, one in value.items() if key in like}
    if isinstance(value, list) and like and isinstance(like[0], dict):
        of = {one.get("type"): one for one in like}
        return [aged(one, of[one.get("type")]) for one in value]
    return value


def rewrite(path: str, change: Any) -> bytes:
    """Have a cgroup's record as another version would have written it; give the value before."""
    before = os.getxattr(path, BINDING)
    label = Label.read(before)
    changed = json.dumps(change(json.loads(label.record)), separators=(",", ":")).encode()
    assert changed != label.record
    os.setxattr(path, BINDING, label._replace(record=changed).value())
    return before


@pytest.mark.needs("root", "cgroup2", "bpf")
def test_an_agent_that_lost_its_ledger_goes_on_with_records_of_the_oldest_and_of_a_later_version(
    agent2, ledger_of, jobs, in_job, refused
):
    first = next(one for one in RECORDED if (one.version, one.name) == ("2-first", "adopted"))
    oldest = json.loads(record_of(first))
    assert {"born", "kill"}.isdisjoint(oldest)
    one, two, three, *_ = [card["id"] for card in agent2.instances("gpu")]
    nodes = {card["id"]: card["devices"][0]["path"] for card in agent2.instances("gpu")}

    def prepared(job, card):
        ask = {"instances": [card], "ports": [{"count": 1, "name": "http"}], "uid": 4711}
        path = agent2.call("Prepare", job=job, attempt="1", **ask)["cgroup"]["v2"]
        process = in_job(path)
        assert process.opens(nodes[card]) == "ENXIO"
        return path, process

    old, in_old = prepared("old", one)
    left, in_left = prepared("left", two)
    new, in_new = prepared("new", three)
    assert not agent2.call("Release", job="left", attempt="1")["clean"]
    before = jobs(agent2)
    agent2.kill()
    ledger_of(agent2).lose()
    was = rewrite(old, lambda told: aged(told, oldest))
    rewrite(left, lambda told: aged(told, oldest))
    rewrite(new, later)
    agent2.start()
    assert jobs(agent2) == before
    check = next(c for c in agent2.call("Doctor")["checks"] if c["name"] == "ledger")
    assert "3 adopted" in check["text"]
    assert "in doubt" not in check["text"]
    assert (in_old.opens(nodes[one]), in_old.opens(nodes[three])) == ("ENXIO", "EPERM")
    assert (in_new.opens(nodes[three]), in_left.opens(nodes[two])) == ("ENXIO", "EPERM")
    for held in (one, two, three):
        with pytest.raises(refused, match="held by"):
            agent2.call("Prepare", job="thief", attempt="1", instances=[held])
    # They bear today's form again.
    again = json.loads(Label.read(os.getxattr(old, BINDING)).record)
    assert again == json.loads(Label.read(was).record) | {"born": 0.0}
    assert set(json.loads(Label.read(os.getxattr(new, BINDING)).record)) == set(again)
    for process in (in_old, in_new, in_left):
        process.end()
    for job in ("old", "new", "left"):
        assert agent2.call("Release", job=job, attempt="1")["clean"]
    agent2.call("Prepare", job="next", attempt="1", instances=[one, two, three])
