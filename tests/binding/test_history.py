"""Random histories: whatever comes in which order, and wherever it dies, the promises hold."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path

import pytest
from binding.node import Node
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from xce_nodeagent.binding.recovery import recover
from xce_nodeagent.errors import AgentError
from xce_nodeagent.model import wire
from xce_nodeagent.model.inventory import overlapping

JOBS = st.sampled_from(["1", "2", "3"])
ATTEMPTS = st.sampled_from(["a", "b"])
CARDS = st.sets(st.sampled_from(["GPU-0", "GPU-1", "GPU-2", "MIG-0", "MIG-1"]), max_size=3).map(
    lambda names: tuple(sorted(names))
)
PORTS = st.sampled_from([None, (wire.PortAsk(count=2),), (wire.PortAsk(port=20003),)])


class History(RuleBasedStateMachine):
    """A node, and beside it what its callers were told."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.node = Node(Path(self.folder.name))
        self.promised: dict[tuple[str, str], wire.Prepared] = {}
        self.over: set[tuple[str, str]] = set()

    def teardown(self) -> None:
        self.node.crash()
        self.folder.cleanup()

    def ask(self, job, attempt, cards, ports, *, add):
        return asyncio.run(
            self.node.life.prepare(
                wire.Prepare(job=job, attempt=attempt, instances=cards, ports=ports, add=add)
            )
        )

    @rule(job=JOBS, attempt=ATTEMPTS, cards=CARDS, ports=PORTS, add=st.booleans())
    def prepare(self, job, attempt, cards, ports, add):
        with contextlib.suppress(AgentError):
            answer = self.ask(job, attempt, cards, ports, add=add)
            assert (job, attempt) not in self.over, "a released attempt came back"
            assert set(cards) <= set(answer.instances)
            self.promised[job, attempt] = answer

    @rule(job=JOBS, attempt=ATTEMPTS, cards=CARDS, failures=st.integers(1, 2))
    def prepare_with_a_binder_that_fails(self, job, attempt, cards, failures):
        self.node.books.fail = ["enforcement"] * failures
        try:
            answer = self.ask(job, attempt, cards, None, add=False)
        except AgentError:
            if (job, attempt) not in self.node.ledger.book.live:
                self.promised.pop((job, attempt), None)
        else:
            self.promised[job, attempt] = answer
        finally:
            self.node.books.fail = []

    @rule(job=JOBS, attempt=ATTEMPTS)
    def release(self, job, attempt):
        asyncio.run(self.node.life.releases.release(wire.Release(job=job, attempt=attempt)))
        if self.promised.pop((job, attempt), None):
            self.over.add((job, attempt))

    @precondition(lambda self: self.promised)
    @rule(data=st.data())
    def shrink(self, data):
        key = data.draw(st.sampled_from(sorted(self.promised)))
        held = [i for i in self.promised[key].instances if i != "ports"]
        if held:
            away = data.draw(st.sampled_from(held))
            asyncio.run(
                self.node.life.releases.release(
                    wire.Release(job=key[0], attempt=key[1], instances=(away,))
                )
            )
            stays = tuple(i for i in self.promised[key].instances if i != away)
            self.promised[key] = wire.Prepared(
                **{
                    **{f: getattr(self.promised[key], f) for f in wire.Prepared.__struct_fields__},
                    "instances": stays,
                }
            )

    @rule()
    def crash(self):
        """Die without a word: what was not committed is lost, what was acknowledged is not."""
        self.node.crash()
        self.node.open()
        asyncio.run(recover(self.node.ledger, self.node.executor, self.node.life))

    @rule()
    def reboot(self):
        self.node.crash()
        self.node.boot += "x"
        self.node.books.bound.clear()
        self.node.open()
        asyncio.run(recover(self.node.ledger, self.node.executor, self.node.life))
        self.promised.clear()

    @invariant()
    def nothing_is_held_twice(self):
        instances = self.node.inventory.by_id()
        held: dict[str, tuple[str, str]] = {}
        for binding in self.node.ledger.book:
            for instance in binding.instances:
                if instance == "ports":
                    continue
                for other in overlapping(instances, instance):
                    assert held.get(other, binding.key) == binding.key, instance
                held[instance] = binding.key
        ports = [h.port for binding in self.node.ledger.book for h in binding.plan.ports]
        assert len(ports) == len(set(ports))

    @invariant()
    def what_was_acknowledged_is_there(self):
        book = self.node.ledger.book
        for key, answer in self.promised.items():
            assert key in book.live
            assert set(book.live[key].instances) == set(answer.instances)

    @invariant()
    def the_kernel_has_what_the_ledger_says_and_nothing_else(self):
        expected = {
            b.plan.cgroup.cgroup.path: (b.mark, b.plan.grants)
            for b in self.node.ledger.book
            if b.plan.cgroup and b.state in ("committed", "bound")
        }
        owed = {
            b.plan.cgroup.cgroup.path
            for b in self.node.ledger.book
            if b.plan.cgroup and b.state == "releasing"
        }
        have = {p: b for p, b in self.node.books.bound.items() if p not in owed}
        assert have == expected


@pytest.mark.timeout(180)
def test_no_history_breaks_a_promise():
    run_state_machine_as_test(
        History,
        settings=settings(
            max_examples=60,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
