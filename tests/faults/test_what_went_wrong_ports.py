"""What went wrong elsewhere with ports."""

from __future__ import annotations

import contextlib
import socket

import pytest

pytestmark = pytest.mark.needs("root", "cgroup2", "bpf")


def test_a_port_is_picked_by_a_formula_and_is_somebodys(agent, refused):
    """enroot#243, mlperf-common#9, Samudra#805: two jobs came to one number, or a third had it."""
    with contextlib.ExitStack() as opened:
        for port in (20_000, 20_002):
            stranger = opened.enter_context(socket.socket())
            stranger.bind(("127.0.0.1", port))
            stranger.listen()
        given = [
            agent.call("Prepare", job=str(number), ports=[{"count": 2}])["ports"]
            for number in range(5)
        ]
        ports = [one["port"] for held in given for one in held]
        assert len(set(ports)) == 10
        assert {20_000, 20_002}.isdisjoint(ports)
        for port, code in ((20_000, "unhealthy"), (ports[0], "busy")):
            with pytest.raises(refused) as caught:
                agent.call("Prepare", job="late", ports=[{"port": port}])
            assert caught.value.code == code


def test_a_port_is_given_again_while_its_server_still_listens(agent):
    """The same, at the other end: the job is over, and its server has not heard of that."""
    (held,) = agent.call("Prepare", job="1", ports=[{"count": 1}])["ports"]
    with socket.socket() as server:
        server.bind(("127.0.0.1", held["port"]))
        server.listen()
        assert agent.call("Release", job="1")["quarantined"] == ["ports"]
        agent.kill()
        agent.start()
        (other,) = agent.call("Prepare", job="2", ports=[{"count": 1}])["ports"]
        assert other["port"] != held["port"]
