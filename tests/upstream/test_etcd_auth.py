"""A store with users: the grants of docs/upstream.md are enough, and none of them is too much."""

from __future__ import annotations

import pytest
import sinks
from etcds import running
from sinks import LEASE, made

from xce_nodeagent.upstream.etcd import Client
from xce_nodeagent.upstream.etcderror import Denied
from xce_nodeagent.upstream.etcdwatch import follow
from xce_nodeagent.upstream.report import HEAD
from xce_nodeagent.upstream.sink import Undelivered

pytestmark = pytest.mark.needs("etcd")

ROOT = ("--user", "root:secret")
PREFIX = "/xce/v1/"
QUICK = ("--bcrypt-cost", "4")  # of a password's hash, which a real store makes dear


@pytest.fixture(scope="module")
def guarded():
    """An etcd that wants users, with a role for all nodes and one for a single node."""
    with running(*QUICK) as etcd:
        etcd.ctl("user", "add", "root:secret")
        etcd.ctl("user", "grant-role", "root", "root")
        etcd.ctl("role", "add", "agents")
        etcd.ctl("role", "grant-permission", "agents", "readwrite", "--prefix", PREFIX)
        etcd.ctl("role", "add", "node-n1")
        for key, prefix in (
            ("node/n1/", True), ("live/n1", False), ("rival/n1/", True), ("shape/", True),
        ):  # fmt: skip
            options = ["--prefix"] if prefix else []
            etcd.ctl("role", "grant-permission", "node-n1", "readwrite", *options, PREFIX + key)
        etcd.ctl("role", "add", "readers")
        etcd.ctl("role", "grant-permission", "readers", "read", "--prefix", PREFIX)
        for user, role in (("agent", "agents"), ("n1", "node-n1"), ("reader", "readers")):
            etcd.ctl("user", "add", f"{user}:pw-{user}")
            etcd.ctl("user", "grant-role", user, role)
        etcd.ctl("auth", "enable")
        yield etcd


@pytest.fixture
def there(guarded):
    with sinks.place(guarded, PREFIX) as one:
        yield one


def passing(user, word=""):
    return lambda: (user, word or f"pw-{user}")


def fails(sink, report) -> Undelivered:
    with pytest.raises(Undelivered) as told:
        sink.deliver(report)
    return told.value


def names(guarded, node):
    return guarded.ctl(*ROOT, "get", "--prefix", f"{PREFIX}node/{node}/", "--keys-only").split()


@pytest.mark.parametrize("user", ["agent", "n1"])
def test_these_grants_are_enough_for_all_that_a_sink_does(there, guarded, user):
    guarded.ctl(*ROOT, "del", "--prefix", PREFIX)
    sink = there.sink(credentials=passing(user), user=user)
    sink.deliver(made("n1", jobs=3))
    assert len(names(guarded, "n1")) == len(made("n1", jobs=3).entries)
    there.clock.now += 2 * LEASE
    sink.tend()
    rival = there.sink(credentials=passing(user), user=user)
    assert "agent-1" in fails(rival, made("n1", agent="agent-2")).reason
    there.clock.now += 2 * LEASE
    sink.tend()
    assert "agent-2" in sink.note
    again = there.sink(credentials=passing(user), user=user)
    again.deliver(made("n1", 2, jobs=1))
    assert len(names(guarded, "n1")) == len(made("n1", jobs=1).entries)


def test_one_nodes_user_may_not_write_for_another(there, guarded):
    told = fails(there.sink(credentials=passing("n1"), user="n1"), made("n2"))
    assert told.hopeless
    assert "permission denied" in told.reason
    assert "user n1 needs readwrite" in told.remedy
    assert names(guarded, "n2") == []


def test_a_reader_may_not_write(there):
    told = fails(there.sink(credentials=passing("reader"), user="reader"), made("n3"))
    assert "permission denied" in told.reason


def test_a_wrong_password_and_a_right_one(there):
    words = ["wrong"]
    sink = there.sink(credentials=lambda: ("agent", words[0]), user="agent")
    for _ in range(2):
        told = fails(sink, made("n4"))
        assert told.hopeless
        assert "authentication failed" in told.reason
        assert "etcdctl user passwd agent" in told.remedy
        assert "wrong" not in told.reason + told.remedy
    words[0] = "pw-agent"  # somebody wrote it to the file
    sink.deliver(made("n4"))


def test_without_a_user(there):
    told = fails(there.sink(), made("n5"))
    assert told.hopeless
    assert "user name is empty" in told.reason
    assert "password_file" in told.remedy


def test_a_token_that_ended_is_asked_for_again(there, guarded):
    """A member that is restarted knows none of the tokens that it gave."""
    sink = there.sink(credentials=passing("agent"), user="agent")
    sink.deliver(made("n6", 1, jobs=1))
    guarded.restart()
    sink.deliver(made("n6", 2, jobs=2))
    assert len(names(guarded, "n6")) == len(made("n6", 2, jobs=2).entries)


def test_a_watch_asks_for_a_token_too(there, guarded, chance):
    sink = there.sink(credentials=passing("agent"), user="agent")
    sink.deliver(made("n7", 1, jobs=1))
    reader = Client([guarded.url], chance, credentials=passing("reader"))
    start = reader.status().header.revision
    batches = follow(reader, there.keys.node("n7"), start)
    assert next(batches).events == ()
    sink.deliver(made("n7", 2, jobs=2))
    while not (batch := next(batches)).events:
        pass
    assert batch.events[-1].kv.key == there.keys.entry("n7", HEAD)
    batches.close()
    with pytest.raises(Denied):
        next(follow(reader, b"/other/", start))
    reader.close()


def test_users_that_come_and_go():
    """The store begins to want users, and ceases to, below an agent that has one."""
    with running(*QUICK) as etcd, sinks.place(etcd, PREFIX) as there:
        sink = there.sink(credentials=passing("root", "secret"), user="root")
        sink.deliver(made("n1", 1, jobs=1))
        etcd.ctl("user", "add", "root:secret")
        etcd.ctl("user", "grant-role", "root", "root")
        etcd.ctl("auth", "enable")
        sink.deliver(made("n1", 2, jobs=2))
        etcd.ctl(*ROOT, "auth", "disable")
        sink.deliver(made("n1", 3, jobs=3))
        assert there.entries("n1") == made("n1", 3, jobs=3).entries
