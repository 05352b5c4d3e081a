"""The reader of a real store: from the list on, through all that may happen to a store."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import etcds
import filling
import fleets
import pytest
from bad import BAD
from msgspec import structs
from places import place

from xce_nodeagent.upstream import etcdwire, packing, secret
from xce_nodeagent.upstream.etcd import Client
from xce_nodeagent.upstream.etcdsink import EtcdSink
from xce_nodeagent.upstream.fleet import Fleet, Node
from xce_nodeagent.upstream.keys import Keys
from xce_nodeagent.upstream.report import difference, report
from xce_nodeagent.upstream.sink import Undelivered
from xce_nodeagent.upstream.watcher import Watcher

pytestmark = pytest.mark.needs("etcd")

NODES = 60
SECONDS = 30.0
"""Until a wait is given up; nothing takes a hundredth of it."""


@pytest.fixture
def keys(request: pytest.FixtureRequest) -> Keys:
    """Keys of this test's own in the store that all share."""
    return Keys(f"/test/{request.node.name}/")


def lasting(fleet: Fleet) -> dict[str, Node]:
    return {name: structs.replace(one, since=0.0) for name, one in fleet.nodes.items()}


def drained(at: int, keys: Keys) -> list[etcdwire.Operation]:
    """Give the next report of a node: a card more is drained."""
    found = fleets.inventory(at)
    first = structs.replace(found.instances[0], drained=True, reason="tried")
    after = structs.replace(found, instances=(first, *found.instances[1:]))
    made = report(after, fleets.bindings(at, found), agent=fleets.agent(at))
    puts = difference(fleets.reported(at), made).puts
    return [etcdwire.put(keys.entry(fleets.name(at), name), data) for name, data in puts.items()]


def is_drained(at: int, by: int = 1):
    def told(fleet: Fleet) -> bool:
        node = fleet.nodes.get(fleets.name(at))
        return node is not None and sum(one.drained for one in node.totals.values()) == by

    return told


def test_it_lists_and_follows(etcd, keys: Keys) -> None:
    with filling.client(etcd.url) as store, filling.watching(etcd.url, keys) as reader:
        empty = reader.wait_for(lambda _: True, seconds=SECONDS)
        assert not empty.nodes
        filling.fill(store, fleets.state(NODES, keys), lease=filling.lease(store))
        found = reader.wait_for(lambda fleet: len(fleet.nodes) == NODES, seconds=SECONDS)
        with filling.watching(etcd.url, keys) as late:
            listed = late.wait_for(lambda fleet: bool(fleet.nodes), seconds=SECONDS)
            found = reader.wait_for(lambda f: f.digest == listed.digest, seconds=SECONDS)
            assert lasting(listed) == lasting(found) == lasting(fleets.fleet(NODES))
            assert (late.state.phase, late.state.lists, late.state.reason) == ("following", 1, "")
        assert late.state.phase == "closed"
        filling.commit(store, drained(3, keys))
        after = reader.wait_for(is_drained(3), seconds=SECONDS)
        same = [name for name in found.nodes if after.nodes[name] is found.nodes[name]]
        assert len(same) == NODES - 1
        assert not is_drained(3)(found)
        assert after.revision > found.revision
        assert reader.state.lists == 1
        assert reader.state.heard >= reader.state.since > 0


def test_every_fleet_is_told_once_and_in_order(etcd, keys: Keys) -> None:
    told: list[Fleet] = []
    with filling.client(etcd.url) as store, filling.watching(etcd.url, keys) as reader:
        cancel = reader.subscribe(told.append)
        reader.subscribe(lambda _: 1 / 0)  # one that fails is its own business
        for at in range(8):
            filling.fill(store, {k: (v, 0) for k, v in fleets.keys(at, keys).items()})
        last = reader.wait_for(lambda fleet: len(fleet.nodes) == 8, seconds=SECONDS)
        reader.wait_for(lambda _: told[-1].revision >= last.revision, seconds=SECONDS)
        cancel()
    revisions = [fleet.revision for fleet in told]
    assert revisions == sorted(set(revisions))
    assert told[-1].nodes == last.nodes


def test_a_lease_that_ends_is_seen_and_counts_after_the_grace_time(etcd, keys: Keys) -> None:
    name = fleets.name(0)
    with filling.client(etcd.url) as store, filling.watching(etcd.url, keys, grace=0.5) as reader:
        lease = filling.lease(store)
        filling.fill(store, fleets.state(2, keys), lease=lease)
        reader.wait_for(lambda f: len(f.nodes) == 2 and f.nodes[name].available, seconds=SECONDS)
        seen: list[tuple[bool, bool]] = []
        reader.subscribe(lambda f: seen.append((f.nodes[name].available, f.nodes[name].since > 0)))
        store.revoke(lease)
        gone = reader.wait_for(lambda fleet: not fleet.nodes[name].available, seconds=SECONDS)
        assert gone.nodes[name].bindings == fleets.fleet(2).nodes[name].bindings
        assert (True, True) in seen  # within the grace time
        again = filling.lease(store)
        filling.commit(store, [etcdwire.put(keys.live(name), fleets.live(0), again)])
        reader.wait_for(lambda fleet: fleet.nodes[name].eligible, seconds=SECONDS)


def test_two_agents_of_one_name_are_told_and_neither_flaps(etcd, keys: Keys) -> None:
    """The first keeps the name; who reads knows both."""
    name = fleets.name(0)
    first = fleets.reported(0)
    head = structs.replace(first.head, agent="other", boot_id="else", generation="else:1")
    second = structs.replace(
        first, head=head, entries={**first.entries, "head": packing.pack(head)}
    )
    with contextlib.ExitStack() as stack:
        sinks = [
            EtcdSink(stack.enter_context(filling.client(etcd.url)), keys, lease_seconds=30)
            for _ in range(2)
        ]
        reader = stack.enter_context(filling.watching(etcd.url, keys))
        sinks[0].deliver(first)
        reader.wait_for(lambda f: bool(f.nodes) and f.nodes[name].eligible, seconds=SECONDS)
        with pytest.raises(Undelivered, match=fleets.agent(0)):
            sinks[1].deliver(second)
        told = reader.wait_for(lambda f: bool(f.nodes[name].rivals), seconds=SECONDS).nodes[name]
        assert [(one.agent, one.boot_id) for one in told.rivals] == [("other", "else")]
        assert told.eligible
        assert told.head == first.head
        for one in sinks:
            one.close()


def test_rubbish_in_the_store_stops_nobody(etcd, keys: Keys) -> None:
    """One value of each kind that no agent writes, in one node each, and keys that are none."""
    below = keys.prefix
    with (
        filling.client(etcd.url) as store,
        filling.watching(etcd.url, keys, settle=0.2) as reader,
    ):
        filling.fill(store, fleets.state(NODES, keys), lease=filling.lease(store))
        bad = [(name, value) for name, value, _ in BAD.values() if len(value) < 1 << 20]
        hurt = {fleets.name(at) for at in range(len(bad))}
        for at, (name, value) in enumerate(bad):
            key = keys.entry(fleets.name(at), name)
            filling.commit(store, [etcdwire.put(key, value)])
        for key in (b"node/", b"node/\xff/head", b"\x00", b"live/a%zz", b"shape/" + b"g" * 64):
            filling.commit(store, [etcdwire.put(below + key, b"\xff")])
        filling.commit(store, drained(50, keys))
        found = reader.wait_for(
            lambda f: is_drained(50)(f) and hurt == {n for n in f.nodes if f.nodes[n].faults},
            seconds=SECONDS,
        )
        assert "5 keys" in found.faults[0]
        assert all(found.nodes[name].inventory is not None for name in found.nodes.keys() - hurt)
        with filling.watching(etcd.url, keys) as late:
            listed = late.wait_for(lambda fleet: bool(fleet.nodes), seconds=SECONDS)
        assert lasting(listed) == lasting(found)


class Way:
    """A way to the store that can be cut."""

    def __init__(self, target: str) -> None:
        self._target = target.removeprefix("http://").rpartition(":")
        self._open = True
        self._ends: list[socket.socket] = []

    def serve(self, one: socket.socket, _number: int) -> None:
        if not self._open:
            return
        with socket.create_connection((self._target[0], int(self._target[2]))) as other:
            self._ends += [one, other]
            back = threading.Thread(target=self._pump, args=(other, one))
            back.start()
            self._pump(one, other)
            back.join()

    @staticmethod
    def _pump(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        self._open = False
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._open = True


@contextlib.contextmanager
def cuttable(url: str) -> Iterator[tuple[str, Way]]:
    way = Way(url)
    with place(way.serve) as one:
        yield one.url, way
        way.cut()


def until(reader: Watcher, phase: str) -> None:
    """Wait until the reader stands so."""
    with reader._condition:
        assert reader._condition.wait_for(lambda: reader.state.phase == phase, SECONDS)


@pytest.mark.parametrize("forgotten", [False, True])
def test_what_happened_while_the_way_was_cut_is_seen(etcd, keys: Keys, forgotten: bool) -> None:
    """With a compaction meanwhile all is read again, and what is gone by then is gone."""
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(filling.client(etcd.url))
        url, way = stack.enter_context(cuttable(etcd.url))
        filling.fill(store, fleets.state(8, keys), lease=filling.lease(store))
        reader = stack.enter_context(filling.watching(url, keys))
        before = reader.wait_for(lambda fleet: len(fleet.nodes) == 8, seconds=SECONDS)
        until(reader, "following")
        way.cut()
        until(reader, "away")
        assert reader.state.reason
        assert reader.snapshot is before
        filling.commit(store, drained(3, keys))
        every = [keys.live(fleets.name(7)), *fleets.keys(7, keys)]
        filling.commit(store, [etcdwire.delete(k) for k in every if b"/shape/" not in k])
        if forgotten:
            store.compact(store.range(keys.prefix)[0])
        way.mend()
        after = reader.wait_for(is_drained(3), seconds=SECONDS)
        after = reader.wait_for(lambda fleet: len(fleet.nodes) == 7, seconds=SECONDS)
        until(reader, "following")
        assert reader.state.lists == 1 + forgotten
        assert after.nodes[fleets.name(0)] is before.nodes[fleets.name(0)]


@pytest.mark.parametrize("writes", [0, 200], ids=["behind", "ahead"])
def test_a_store_that_was_made_anew_is_read_anew(keys: Keys, writes: int) -> None:
    """Its revisions say nothing of the old one's, whether they are behind those or ahead."""
    with etcds.running() as etcd:
        with filling.client(etcd.url) as store:
            filling.fill(store, fleets.state(8, keys), lease=filling.lease(store))
        with filling.watching(etcd.url, keys) as reader:
            before = reader.wait_for(lambda fleet: len(fleet.nodes) == 8, seconds=SECONDS)
            etcd.kill()
            until(reader, "away")
            assert reader.snapshot is before
            etcd.wipe("another")
            etcd.start()
            with filling.client(etcd.url) as store:
                for _ in range(writes):
                    filling.commit(store, [etcdwire.put(b"/elsewhere", b"")])
                filling.fill(store, fleets.state(3, keys), lease=filling.lease(store))
            after = reader.wait_for(lambda fleet: len(fleet.nodes) == 3, seconds=SECONDS)
            assert after.cluster != before.cluster
            assert lasting(after) == lasting(fleets.fleet(3))


def test_who_waits_is_told_why_there_is_nothing(keys: Keys) -> None:
    with filling.watching(f"http://127.0.0.1:{etcds.free_ports(1)[0]}", keys) as reader:
        until(reader, "away")
        with pytest.raises(TimeoutError, match=r"the reader is away: .*refused"):
            reader.wait_for(lambda _: True, seconds=0.1)
        assert reader.snapshot.revision == 0


def test_a_password_that_cannot_be_read_is_told_and_taken_when_it_is_there(
    keys: Keys, tmp_path: Path
) -> None:
    password = tmp_path / "password"
    with etcds.running("--bcrypt-cost", "4") as etcd:
        with filling.client(etcd.url) as store:
            filling.fill(store, fleets.state(3, keys))
        etcd.ctl("user", "add", "root:secret")
        etcd.ctl("user", "grant-role", "root", "root")
        etcd.ctl("auth", "enable")
        store = Client(
            [etcd.url],
            Random(1),  # noqa: S311  # an order
            credentials=lambda: ("root", secret.read(password)),
        )
        with Watcher(store, keys) as reader:
            until(reader, "away")
            assert str(password) in reader.state.reason
            password.write_text("secret\n")
            password.chmod(0o600)
            reader.wait_for(lambda fleet: len(fleet.nodes) == 3, seconds=SECONDS)
            until(reader, "following")
            assert reader.state.reason == ""


MASTER = """
import sys
sys.path.insert(0, {tests!r})
from upstream import filling
from xce_nodeagent.upstream.keys import Keys
with filling.watching({url!r}, Keys({prefix!r})) as reader:
    reader.subscribe(lambda fleet: print(len(fleet.nodes), fleet.digest, flush=True))
    sys.stdin.read()
"""


def test_a_master_that_is_killed_comes_back_to_the_same(etcd, keys: Keys) -> None:
    """From the store alone: who reported is gone by then, and so are their leases."""
    told = []
    with filling.client(etcd.url) as store:
        lease = filling.lease(store)
        filling.fill(store, fleets.state(NODES, keys), lease=lease)
        tests = str(Path(__file__).parents[1])
        code = MASTER.format(tests=tests, url=etcd.url, prefix=keys.prefix.decode())
        for _ in range(2):
            with subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as master:
                assert master.stdout is not None
                told.append(master.stdout.readline().split())
                os.kill(master.pid, signal.SIGKILL)
            with contextlib.suppress(Exception):
                store.revoke(lease)
    expected = fleets.fleet(NODES)
    assert told == [[str(NODES), expected.digest]] * 2
    with filling.watching(etcd.url, keys) as reader:
        found = reader.wait_for(lambda fleet: bool(fleet.nodes), seconds=SECONDS)
    asleep = {n: fleets.away(one, since=0.0) for n, one in expected.nodes.items()}
    assert lasting(found) == asleep
    bindings = [binding for node in found.nodes.values() for binding in node.bindings]
    assert len(bindings) > NODES / 4
    assert packing.pack(bindings) == packing.pack([b for n in asleep.values() for b in n.bindings])
