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
