"""Members and an agent in networks of their own, cut off from one another by rules."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import threading

import pytest
import sinks
from etcds import Etcd, folder
from sinks import LEASE, eventually, made

from xce_nodeagent.upstream.etcdwatch import follow
from xce_nodeagent.upstream.sink import Undelivered

pytestmark = pytest.mark.needs("etcd", "netns")

CLONE_NEWNET = 0x40000000  # linux/sched.h
ADDRESSES = ["10.77.0.2", "10.77.1.2", "10.77.2.2"]


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)


class Net:
    """A namespace with the agent, that forwards between those of the members."""

    def __init__(self):
        stem = f"xce-{os.getpid()}"
        self.hub = f"{stem}-hub"
        self.names = [f"{stem}-m{at}" for at in range(len(ADDRESSES))]

    def make(self):
        for name in (self.hub, *self.names):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        on = "echo 1 > /proc/sys/net/ipv4/ip_forward"
        ip("netns", "exec", self.hub, "sh", "-c", on)
        for at, (name, address) in enumerate(zip(self.names, ADDRESSES, strict=True)):
            port, gate = f"p{at}", f"10.77.{at}.1"
            ip("-n", self.hub, "link", "add", port, "type", "veth", "peer", "eth", "netns", name)
            ip("-n", self.hub, "address", "add", f"{gate}/24", "dev", port)
            ip("-n", self.hub, "link", "set", port, "up")
            ip("-n", name, "address", "add", f"{address}/24", "dev", "eth")
            ip("-n", name, "link", "set", "eth", "up")
            ip("-n", name, "route", "add", "default", "via", gate)

    def cut(self, name, *addresses):
        """Let nothing of a namespace's own go to these addresses any more."""
        for address in addresses:
            ip("-n", name, "rule", "add", "dev", "lo", "to", address, "blackhole")

    def join(self, name, *addresses):
        for address in addresses:
            ip("-n", name, "rule", "del", "dev", "lo", "to", address, "blackhole")

    def close(self):
        for name in (self.hub, *self.names):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def inside(name, body):
    """Run this in a thread in that namespace: what it opens, and starts, is there."""
    raised = []

    def run():
        try:
            with open(f"/run/netns/{name}", "rb") as there:
                assert ctypes.CDLL(None).setns(there.fileno(), CLONE_NEWNET) == 0
            body()
        except BaseException as error:  # noqa: BLE001  # it is the test's
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


@contextlib.contextmanager
def members(net):
    told = ",".join(f"m{at}=http://{address}:2380" for at, address in enumerate(ADDRESSES))
    with folder() as where:
        every = [
            Etcd(
                where,
                name=f"m{at}",
                url=f"http://{address}:2379",
                peer=f"http://{address}:2380",
                cluster=told,
                within=["ip", "netns", "exec", name],
            )
            for at, (name, address) in enumerate(zip(net.names, ADDRESSES, strict=True))
        ]
        try:
            for one in every:
                one.start(wait=False)
            for one in every:
                one.wait()
            yield every
        finally:
            for one in every:
                one.kill()


@pytest.fixture
def net():
    one = Net()
    try:
        one.make()
        yield one
    finally:
        one.close()


def test_a_member_that_is_cut_off_from_the_others_and_an_agent_from_all(net):
    """A member that answers, but has no leader; then a partition that is longer than the lease."""

    def body():
        with members(net) as every, sinks.place(every, "/t/") as there:
            cut_off_from_the_others(net, every, there)
            cut_off_from_all(net, every, there)

    inside(net.hub, body)


def cut_off_from_the_others(net, every, there):
    urls = [one.url for one in every]
    sink = there.sink(seconds=2.0, connect_seconds=2.0)
    eventually(lambda: sink.deliver(made("n1", 1, jobs=1)))
    first = urls.index(sink._client._first())
    # The reader's watch is at the same member.
    there.reader.move(urls[first : first + 1])
    there.reader.status()
    start = there.revision()
    there.reader.move(urls)
    there.reader._endpoints.worked(urls[first])
    batches = follow(there.reader, there.keys.node("n1"), start)
    assert next(batches).events == ()

    others = [address for address in ADDRESSES if address not in urls[first]]
    net.cut(net.names[first], *others)
    for number in range(2, 5):
        eventually(lambda n=number: sink.deliver(made("n1", n, jobs=n)))
    assert sink._client._first() != urls[first]
    seen = 0
    while seen < 4:  # the head three times, and jobs
        seen += len(next(batches).events)
    assert there.reader._first() != urls[first]
    batches.close()
    net.join(net.names[first], *others)
    for one in every:
        one.wait()
    there.clock.now += LEASE / 3
    eventually(sink.tend)
    assert there.entries("n1") == made("n1", 4, jobs=4).entries


def cut_off_from_all(net, every, there):
    sink = there.sink(lease=2, seconds=1.0, connect_seconds=1.0)
    report = made("n2", 1, jobs=2)
    eventually(lambda: sink.deliver(report))
    live = there.keys.live("n2").decode()
    net.cut(net.hub, *ADDRESSES)
    told = sinks.undelivered(lambda: sink.deliver(made("n2", 2, jobs=3)))
    assert "no answer in time" in told.reason
    while every[0].keys(live):  # the store ends the lease, within a few seconds
        pass
    there.clock.now += 60
    assert sinks.undelivered(sink.tend).meanwhile > 60  # nothing to keep: tried at leisure
    net.join(net.hub, *ADDRESSES)

    def is_back():
        sink.deliver(made("n2", 3, jobs=5))
        if every[0].keys(live) != [live]:
            raise Undelivered("its lease ended again, on a slow machine")

    eventually(is_back)
    assert there.entries("n2") == made("n2", 3, jobs=5).entries
