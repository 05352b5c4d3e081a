"""What is in doubt after a loss is withheld, however late the hardware shows itself."""

import asyncio

import pytest
from msgspec import structs

from xce_nodeagent import errors
from xce_nodeagent.binding import rebuild
from xce_nodeagent.model import wire
from xce_nodeagent.model.binding import Adopted
from xce_nodeagent.model.plan import CgroupRef
from xce_nodeagent.model.rule import READ_WRITE, Device, Rule
from xce_nodeagent.privileged.ops import Marked

HOME = CgroupRef("cgroup2", "/cg/home")


def test_a_card_that_shows_itself_late_is_withheld_for_who_is_in_doubt(node):
    cards = [Device("c", 120, 0), Device("c", 120, 1)]
    marked = Marked(
        cgroup=CgroupRef("cgroup2", "/cg/home/job-1"), mark="1\na", record=b"", released=False,
        grants=tuple(Rule(card, READ_WRITE) for card in cards), populated=True,
    )  # fmt: skip
    found = rebuild.doubtful(marked, HOME, 5.0)
    node.ledger.note(Adopted(job="1", attempt="a", binding=found))
    whole = node.inventory
    seen: set[str] = set()
    for more in ("GPU-3", "GPU-1", "GPU-0", "MIG-0"):
        seen.add(more)
        some = tuple(one for one in whole.instances if one.id in seen)
        node.inventory = structs.replace(whole, instances=some)
        rebuild.withhold(node.ledger, node.inventory)
    node.inventory = whole
    (binding,) = node.ledger.book
    assert set(binding.instances) == {"GPU-0", "GPU-1"}
    for card in ("GPU-0", "GPU-1", "MIG-0", "MIG-1"):
        with pytest.raises(errors.Busy):
            asyncio.run(node.life.prepare(wire.Prepare(job="2", attempt="a", instances=(card,))))
    asyncio.run(node.life.prepare(wire.Prepare(job="2", attempt="a", instances=("GPU-3",))))


@pytest.mark.needs("root", "cgroup2", "bpf")
@pytest.mark.parametrize("attempt", [None, "1"])
def test_what_was_released_while_nothing_was_enforced_is_taken_back_later(agent2, in_job, attempt):
    cards = agent2.instances("gpu")
    one, node = cards[0]["id"], cards[0]["devices"][0]["path"]
    prepared = agent2.call("Prepare", job="old", attempt=attempt, instances=[one])
    process = in_job(prepared["cgroup"]["v2"])
    assert process.opens(node) == "ENXIO"
    agent2.kill()
    agent2.keys = 'enforcement = "off"'
    agent2.start()
    assert agent2.call("Release", job="old")["released"]
    agent2.call("Prepare", job="new", attempt="1", instances=[one])
    agent2.kill()
    agent2.keys = ""
    agent2.start()
    assert process.opens(node) == "EPERM"
    states = {one["job"]: one["state"] for one in agent2.call("ListBindings")["bindings"]}
    assert states == {"old": "quarantined", "new": "bound"}
    process.end()
    assert agent2.call("Release", job="old")["clean"]
