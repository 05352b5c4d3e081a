"""What is quarantined, and its card has gone for good: why it is held, and what ends that."""

import asyncio

import pytest
from msgspec import structs

from xce_nodeagent.binding import absence
from xce_nodeagent.daemon import doctor
from xce_nodeagent.model import wire
from xce_nodeagent.privileged.ops import Seen


def run(node, story):
    async def whole():
        await node.life.prepare(wire.Prepare(job="1", attempt="a", instances=("GPU-1",)))
        node.seen = (Seen(77, 5, "left", "c 120:1", "open", node.uptime()),)
        await release(node)
        await node.life.releases.vigil.look(10)
        instances = tuple(one for one in node.inventory.instances if one.id != "GPU-1")
        node.inventory = structs.replace(node.inventory, instances=instances)
        await story()
        await node.life.close()

    asyncio.run(whole())


def release(node):
    return node.life.releases.release(wire.Release(job="1"))


def test_it_is_told_why_it_is_held_and_what_ends_that(node):
    async def story():
        (binding,) = node.ledger.book
        text = absence.told(binding, node.inventory)
        assert "GPU-1: not in the inventory" in text
        assert "release --job 1" in text
        (check,) = doctor.shared(node.life.releases.vigil)
        assert (check.name, check.state, text in check.text) == ("absent.1", "warning", True)

    run(node, story)


def test_who_insists_frees_it_once_nobody_has_its_devices(node):
    async def story():
        again = await release(node)
        assert (again.clean, again.quarantined) == (False, ("GPU-1",))
        node.seen = ()
        await node.life.releases.vigil.look(10)  # nobody insists
        assert [one.state for one in node.ledger.book] == ["quarantined"]
        assert (await release(node)).clean
        assert list(node.ledger.book) == []

    run(node, story)


@pytest.mark.parametrize("cut", [True, False])
def test_it_stays_where_not_everybody_could_be_looked_at(node, cut):
    async def story():
        node.seen = ()
        look = node.look

        async def partly(what):
            return structs.replace(await look(what), cut=cut, unread=() if cut else (77,))

        node.look = partly
        assert not (await release(node)).clean
        node.look = look
        assert (await release(node)).clean

    run(node, story)


def test_a_look_that_did_not_ask_for_its_devices_frees_nothing(node):
    """It was on its way when the caller insisted."""

    async def story():
        node.seen = ()
        on_its_way, go_on = asyncio.Event(), asyncio.Event()
        look, asked = node.look, []

        async def slowly(what):
            asked.append(set(map(str, what.devices)))
            on_its_way.set()
            await go_on.wait()
            return await look(what)

        node.look = slowly
        vigil = node.life.releases.vigil
        first = asyncio.ensure_future(vigil.look(10))
        await on_its_way.wait()
        second = asyncio.ensure_future(release(node))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        go_on.set()
        await first
        assert (await second).clean
        assert ["c 120:1" in devices for devices in asked] == [False, True]

    run(node, story)
