"""What every sink owes, whatever its place is: tried with real files, receivers and stores."""

from __future__ import annotations

import contextlib
import json
import math
import threading
from pathlib import Path
from random import Random

import pytest
from certificates import Authority, server
from etcds import running
from msgspec import structs
from receivers import Receiver
from states import after, binding, scanned

from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.model.upstream import UpstreamEtcdConfig, UpstreamHttpConfig
from xce_nodeagent.upstream import etcdstore, packing
from xce_nodeagent.upstream.delivery import Delivery
from xce_nodeagent.upstream.file import FileSink
from xce_nodeagent.upstream.keys import Keys
from xce_nodeagent.upstream.newest import Newest
from xce_nodeagent.upstream.post import HttpSink
from xce_nodeagent.upstream.report import HEAD, Head, Held, Series, inventory_of
from xce_nodeagent.upstream.shape import Shape
from xce_nodeagent.upstream.sink import Undelivered

PATIENCE = 30.0
NODE = "n1"


class File:
    """A file in a folder that comes and goes."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._away = folder / "there", folder / "away"
        self._folder.mkdir()
        self.sink = FileSink(self._folder / "report.json")

    def view(self):
        told = json.loads((self._folder / "report.json").read_text("utf-8"))
        inventory = json.dumps(told).encode()
        return packing.unpack(inventory, Inventory), {
            one["job"]: tuple(one["instances"]) for one in told["bindings"]
        }

    def leave(self):
        self._folder.rename(self._away)

    def back(self):
        self._away.rename(self._folder)

    def close(self):
        pass


class Http:
    """A receiver with a certificate, which forgets all when it comes back."""

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder)
        self._context = server(authority.sign("receiver"))
        self._receiver = Receiver(self._context)
        self._port = self._receiver.port
        config = UpstreamHttpConfig(url=self._receiver.url, ca=authority.ca)
        self.sink = HttpSink(config, Random(1))  # noqa: S311  # no secret

    def view(self):
        kept = self._receiver.nodes[NODE]
        held = {n: v for n, v in kept.entries.items() if n.startswith("binding/")}
        return kept.inventory(), {one["job"]: tuple(one["instances"]) for one in held.values()}

    def leave(self):
        self._receiver.close()

    def back(self):
        self._receiver = Receiver(self._context, self._port)

    def close(self):
        self._receiver.close()


class Etcd:
    """A store that is killed, and comes back with what it had."""

    def __init__(self, folder: Path) -> None:
        self._stack = contextlib.ExitStack()
        self._member = self._stack.enter_context(running())
        config = UpstreamEtcdConfig(endpoints=(self._member.url,))
        self.sink = etcdstore.sink(config, Random(1))  # noqa: S311  # no secret
        self._reader = etcdstore.client(config, Random(2))  # noqa: S311  # no secret

    def view(self):
        keys = Keys()
        _, found = self._reader.range(keys.node(NODE))
        entries = {keys.parse(one.key).entry: one.value for one in found}
        shape = json.loads(packing.plain(entries["static"]))["shape"]
        data = self._reader.get(keys.shape(shape)).value
        held = [packing.unpack(v, Held) for n, v in entries.items() if n.startswith("binding/")]
        assert packing.unpack(entries[HEAD], Head).node == NODE
        inventory = inventory_of(entries, packing.unpack(data, Shape))
        return inventory, {one.job: one.instances for one in held}

    def leave(self):
        self._member.kill()

    def back(self):
        self._member.start()

    def close(self):
        self._reader.close()
        self._stack.close()


@pytest.fixture(
    params=[
        File,
        pytest.param(Http, marks=pytest.mark.needs("openssl")),
        pytest.param(Etcd, marks=pytest.mark.needs("etcd")),
    ],
    ids=lambda kind: kind.__name__.lower(),
)
def there(request, tmp_path):
    one = request.param(tmp_path)
    yield one
    one.sink.close()
    one.close()


def states(count: int):
    """Give inventories and bindings that come one after the other; each is another."""
    cards = [one.id for one in scanned().instances if one.type == "gpu"]
    sick = [scanned()]
    for place in range(3):
        sick.append(after(sick[-1], place, healthy=False, reason=f"XID {place}"))
    for number in range(count):
        jobs = [binding(f"j{number}-{at}", cards[at], attempt="a") for at in range(number % 5)]
        yield sick[number // 3 % len(sick)], jobs


def is_there(there, inventory, jobs) -> bool:
    found, held = there.view()
    found = structs.replace(found, source="agent", instances=tuple(map(_bare, found.instances)))
    return found == inventory and held == {one.job: one.instances for one in jobs}


def _bare(instance):
    return structs.replace(instance, held_by=None)


def test_the_place_is_what_the_report_is_after_each_change(there):
    series = Series(agent="a")
    sizes = []
    for inventory, jobs in states(16):
        report = series.next(inventory, jobs)
        sizes.append(there.sink.deliver(report))
        assert is_there(there, inventory, jobs)
        there.sink.deliver(report)
        assert is_there(there, inventory, jobs), "the same once more changes nothing"
    assert all(size > 0 for size in sizes)
    assert there.sink.tend() > 0
    assert there.sink.where
    assert there.sink.note == ""


def test_a_place_that_is_away_is_told_and_gets_the_newest_when_it_is_back(there):
    newest = Newest(Series(agent="a"))
    delivery = Delivery(there.sink, newest, Random(1), cap=1.0)  # noqa: S311  # no secret
    news = threading.Event()
    _observe(there.sink, news)
    *some, last = states(12)
    newest.tell(*some[0])
    delivery.start()
    try:
        _until(lambda: delivery.status.number, news)
        there.leave()
        newest.tell(*some[1])
        _until(lambda: delivery.status.failing, news)
        assert delivery.status.reason
        for state in some[2:]:
            newest.tell(*state)
        newest.tell(*last)
        there.back()
        _until(lambda: not delivery.status.failing and not delivery.status.lag, news)
        assert is_there(there, *last)
        assert delivery.status.deliveries <= 4, "what came in between is nowhere"
    finally:
        delivery.stop()
        assert delivery.join(PATIENCE)


def _observe(sink, news) -> None:
    """Set the event whenever the sink is done with something."""
    for name in ("deliver", "tend"):
        inner = getattr(sink, name)

        def told(*arguments, inner=inner):
            try:
                return inner(*arguments)
            finally:
                news.set()

        setattr(sink, name, told)


def _until(done, news) -> None:
    """Wait until something is so; what the sink does comes a moment before its status."""
    for _ in range(int(PATIENCE / 0.05)):
        if done():
            return
        news.wait(0.05)
        news.clear()
    pytest.fail("it did not come to pass")


def test_a_sink_is_used_only_when_it_is_asked(there):
    """Making one opens nothing: what is configured is made before privileges are given up."""
    there.leave()
    assert there.sink.tend() == math.inf
    with pytest.raises(Undelivered):
        there.sink.deliver(Series(agent="a").next(scanned(), ()))
    there.back()
