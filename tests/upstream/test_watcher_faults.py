"""The reader's own faults, and what its callbacks may do."""

from __future__ import annotations

import threading

import filling
import fleets
import pytest

from xce_nodeagent.upstream import etcdwire
from xce_nodeagent.upstream.fleet import Fleet
from xce_nodeagent.upstream.keys import Keys

pytestmark = pytest.mark.needs("etcd")

SECONDS = 30.0


@pytest.fixture
def keys(request: pytest.FixtureRequest) -> Keys:
    return Keys(f"/test/{request.node.name}/")


@pytest.mark.parametrize("what", ["apply", "fleet"])
def test_what_was_not_taken_in_is_read_again(etcd, keys: Keys, what: str, monkeypatch) -> None:
    """It is not lost, and the reader says so until it is there."""
    gone = fleets.name(3)
    with filling.client(etcd.url) as store, filling.watching(etcd.url, keys) as reader:
        filling.fill(store, fleets.state(8, keys), lease=filling.lease(store))
        reader.wait_for(lambda fleet: len(fleet.nodes) == 8, seconds=SECONDS)
        real, enter = getattr(reader._mirror, what), reader._enter
        entered: list[tuple[str, str]] = []

        def fails(*_args, **_more):
            monkeypatch.setattr(reader._mirror, what, real)
            raise RuntimeError("tried")

        def noted(phase, reason="", **more):
            entered.append((phase, reason))
            enter(phase, reason, **more)

        monkeypatch.setattr(reader, "_enter", noted)
        monkeypatch.setattr(reader._mirror, what, fails)
        every = [keys.live(gone), *(k for k in fleets.keys(3, keys) if b"/shape/" not in k)]
        filling.commit(store, [etcdwire.delete(key) for key in every])
        found = reader.wait_for(lambda fleet: gone not in fleet.nodes, seconds=SECONDS)
        assert len(found.nodes) == 7
        assert ("away", "a fault of this program: RuntimeError: tried") in entered
        assert reader.state.lists == 2
        # It goes on as before.
        filling.commit(store, [etcdwire.delete(keys.live(fleets.name(4)))])
        reader.wait_for(lambda fleet: fleet.nodes[fleets.name(4)].since > 0, seconds=SECONDS)
        with reader._condition:
            assert reader._condition.wait_for(lambda: reader.state.phase == "following", SECONDS)
        assert reader.state.reason == ""


def test_a_callback_may_close_the_reader(etcd, keys: Keys) -> None:
    told: list[Fleet] = []
    closed = threading.Event()
    with filling.client(etcd.url) as store, filling.watching(etcd.url, keys) as reader:

        def enough(fleet: Fleet) -> None:
            told.append(fleet)
            if fleet.nodes:
                reader.close()
                closed.set()

        reader.subscribe(enough)
        filling.fill(store, fleets.state(2, keys))
        assert closed.wait(SECONDS)
        assert reader.state.phase == "closed"
        count = len(told)
        filling.commit(store, [etcdwire.delete(keys.live(fleets.name(0)))])
    assert len(told) == count
    assert not any(thread.is_alive() for thread in reader._threads)
