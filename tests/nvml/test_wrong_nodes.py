"""Nodes that are wrong on disk: who looks, when, and what is told then."""

from __future__ import annotations

import asyncio
import os
import select
from pathlib import Path

import pytest
from msgspec import structs

from xce_nodeagent.daemon import nodes
from xce_nodeagent.daemon.nodes import Nodes
from xce_nodeagent.errors import Unhealthy
from xce_nodeagent.host import Host
from xce_nodeagent.host.event import NODES, Event
from xce_nodeagent.host.nodewatch import NodeWatch
from xce_nodeagent.model.instance import DeviceNode, Instance
from xce_nodeagent.model.inventory import ControlNode, Inventory

ZERO = DeviceNode("/dev/zero", "c", 1, 5)
WRONG = DeviceNode("/dev/null", "c", 1, 5)


def card(name: str, *devices: DeviceNode) -> Instance:
    return Instance(id=name, type="gpu", provider="x", devices=devices)


def inventory(*instances: Instance) -> Inventory:
    return Inventory(source="agent", node="n", boot_id="b", instances=instances)


def test_a_prepare_that_finds_a_wrong_node_has_it_looked_at() -> None:
    told: list[Event] = []
    looking = Nodes(Host(), told.append)
    looking.look([card("a", ZERO)], [ZERO])
    assert told == []
    with pytest.raises(Unhealthy, match="/dev/null is c 1:3; it should be c 1:5"):
        looking.look([card("a", ZERO), card("b", WRONG)], [])
    assert told == [NODES]


def test_what_has_a_wrong_node_is_told_and_nothing_else_changes() -> None:
    looking = Nodes(Host())
    sound = inventory(card("a", ZERO), card("b"))
    assert looking.judge(sound) is sound
    judged = looking.judge(inventory(card("a", ZERO), card("b", WRONG))).by_id()
    assert judged["a"] == card("a", ZERO)
    assert not judged["b"].healthy
    assert "it should be c 1:5" in judged["b"].reason


def test_a_control_node_that_is_wrong_is_told_of_all_that_it_goes_with() -> None:
    told: list[Event] = []
    looking = Nodes(Host(), told.append)
    other = structs.replace(card("c", ZERO), provider="y")
    both = inventory(card("a", ZERO), card("b"), other)
    for node, granted, sick in ((ZERO, True, set()), (WRONG, False, set()),
                                (WRONG, True, {"a", "b"})):  # fmt: skip
        control = {"x": (ControlNode(node, granted),), "y": ()}
        judged = looking.judge(structs.replace(both, control=control))
        assert {one.id for one in judged.instances if not one.healthy} == sick
    with pytest.raises(Unhealthy, match="nothing can be granted: /dev/null is c 1:3"):
        looking.look([card("a", ZERO)], [ZERO, WRONG])
    assert told == [NODES]


def test_without_a_watch_what_is_wrong_is_looked_at_again(monkeypatch) -> None:
    monkeypatch.setattr(nodes, "AGAIN_SECONDS", 0.0)

    async def run() -> None:
        told: asyncio.Queue[Event] = asyncio.Queue()
        looking = Nodes(Host(), told.put_nowait)
        looking.watch(None)
        for devices, news in (((ZERO,), 0), ((WRONG,), 1), ((ZERO,), 0)):
            looking.published(looking.judge(inventory(card("a", *devices))))
            if news:
                assert await asyncio.wait_for(told.get(), 20) == NODES
            assert told.empty()
        looking.close()

    asyncio.run(run())


def told(watch: NodeWatch) -> bool:
    assert select.select([watch], [], [], 20)[0], "nothing was told"
    return watch.drain()


def test_nodes_and_folders_on_the_way_to_them_that_come_and_go_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "caps"
    node = folder / "cap1"
    watch = NodeWatch()
    try:
        watch.follow([str(node), "/dev/null"])
        folder.mkdir()
        assert told(watch)
        node.touch()
        assert told(watch)
        (folder / "other").touch()
        assert not told(watch)
        with node.open("w") as file:
            file.write("x")
        with open("/dev/null", "w", encoding="ascii") as null:
            null.write("x")
        assert not select.select([watch], [], [], 0)[0], "what is written is no news"
        (tmp_path / "new").touch()
        os.replace(tmp_path / "new", node)
        assert told(watch)
        node.unlink()
        assert told(watch)
        watch.follow(["/dev/null"])
        node.touch()
        assert not told(watch)
    finally:
        watch.close()
