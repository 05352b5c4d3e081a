"""What cannot be looked into after a loss is not free, and is told."""

from __future__ import annotations

import asyncio
import os

import pytest
from msgspec import structs

from xce_nodeagent import errors
from xce_nodeagent.binding import rebuild
from xce_nodeagent.binding.recovery import recover
from xce_nodeagent.model import wire
from xce_nodeagent.model.plan import AdoptCgroup, CgroupRef, Plan

MANY = 8192 + 64
needs = pytest.mark.needs("root", "cgroup2", "bpf")


@pytest.fixture
def crowd(agent2):
    """More empty cgroups below an allowed root than are looked into; gone at the end."""
    made = [agent2.other / f"idle-{number}" for number in range(MANY)]
    for path in made:
        path.mkdir()

    def clear() -> None:
        while made:
            made.pop().rmdir()

    yield clear
    clear()


@needs
@pytest.mark.timeout(300)
@pytest.mark.parametrize("harm", ["lost", "damaged"])
def test_nothing_is_granted_before_every_cgroup_was_looked_into(
    agent2, crowd, ledger_of, refused, harm
):
    files = ledger_of(agent2)
    one, two, three, *_ = [instance["id"] for instance in agent2.instances("gpu")]
    inside = agent2.other / "zz-mine"
    inside.mkdir()
    agent2.call("Prepare", job="mine", attempt="1", instances=[one], cgroup=str(inside))
    agent2.call("Prepare", job="own", attempt="1", instances=[two])
    agent2.kill()
    if harm == "lost":
        files.lose()
    else:
        files.fold()
        files.path.write_bytes(b"no database at all" * 1000)
    agent2.start()
    for _ in range(2):
        with pytest.raises(refused, match="no new grants until") as told:
            agent2.call("Prepare", job="thief", attempt="1", instances=[three])
        assert told.value.code == "enforcement"
        (check,) = [c for c in agent2.call("Doctor")["checks"] if c["name"] == "ledger"]
        assert (check["state"], "doctor --repair" in check["remedy"]) == ("fault", True)
        agent2.kill()
        agent2.start()  # it is still so
    assert agent2.call("Release", job="own")["clean"]
    crowd()
    agent2.call("Doctor", repair=True)
    (check,) = [c for c in agent2.call("Doctor")["checks"] if c["name"] == "ledger"]
    assert check["state"] == "warning"
    with pytest.raises(refused, match="held by mine"):
        agent2.call("Prepare", job="thief", attempt="1", instances=[one])
    agent2.call("Prepare", job="thief", attempt="1", instances=[three])


@needs
def test_a_repair_adopts_what_the_ledger_does_not_know(agent2, ledger_of, refused, tmp_path):
    one, *_ = [instance["id"] for instance in agent2.instances("gpu")]
    answer = agent2.call("Prepare", job="lost", attempt="1", instances=[one])
    path = answer["cgroup"]["v2"]
    value = os.getxattr(path, "trusted.xce.binding")
    agent2.call("Release", job="lost")
    os.mkdir(path)
    value = value.replace(b'"lost"', b'"back"').replace(b"lost\n", b"back\n")
    os.setxattr(path, "trusted.xce.binding", value)
    agent2.call("Doctor", repair=True)
    assert [view["job"] for view in agent2.call("ListBindings")["bindings"]] == ["back"]
    agent2.call("Release", job="back")


class Kernel:
    """What a binder would list: nothing, all of it."""

    enforces = True

    async def marked(self, *, deep: bool) -> tuple[list[object], bool]:
        return [], True


def test_a_binding_below_a_root_that_is_configured_no_more_stays_held(node):
    """The configuration changed, and the ledger was lost in part: its fence grants what it did."""

    async def story():
        place = AdoptCgroup(CgroupRef("cgroup2", "/cg/former/job"))
        for job, card in (("there", "GPU-1"), ("gone", "GPU-2")):
            await node.life.prepare(wire.Prepare(job=job, attempt="1", instances=(card,)))
        node.life.outcomes.settle()
        binding = node.ledger.book.live["there", "1"]
        plan = Plan((place, *binding.plan.steps[1:]))
        node.ledger.book.live["there", "1"] = structs.replace(binding, plan=plan)
        node.ledger.doubted = True
        site = node.life.site
        assert await rebuild.compare(node.ledger, Kernel(), site, 5.0)
        assert node.held() == {"GPU-1": [("there", "1")]}
        assert "are not below the configured roots" in node.ledger.rebuilt.kernel
        node.books.fail = ["bad_cgroup"]
        await recover(node.ledger, node.executor, node.life)
        assert "bad_cgroup" in node.life.verification.fault(node.ledger.book.live["there", "1"])
        with pytest.raises(errors.Busy):
            await node.life.prepare(wire.Prepare(job="2", attempt="1", instances=("GPU-1",)))
        await node.life.close()

    asyncio.run(story())
