"""What the server takes of a client at most, and how long it waits for one."""

from __future__ import annotations

import json
import os
import resource
import select
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from wire.client import OURS, Client, as_user, calling, code

from xce_nodeagent.daemon.server import Peer
from xce_nodeagent.model import wire


def test_ten_thousand_calls_at_once_do_not_keep_the_others_waiting(agent: str) -> None:
    with Client(agent) as many, Client(agent, timeout=2) as one:
        call = json.dumps({"method": f"{OURS}.ListBindings"}).encode() + b"\0"
        many.sock.settimeout(0)
        sent = 0
        try:
            for _ in range(10_000):
                many.sock.sendall(call)
                sent += 1
        except BlockingIOError:
            pass  # as many as the socket takes
        assert sent > 100
        assert "checks" in one.call("Doctor")["parameters"]
        many.sock.settimeout(10)
        for _ in range(sent):
            assert many.answer()["parameters"] == {"bindings": []}


def test_an_oversized_message_is_told_and_cut_off(agent: str) -> None:
    with Client(agent) as client, Client(agent) as other:
        with suppress(BrokenPipeError, ConnectionResetError):
            client.sock.sendall(b'{"method": "' + b"x" * (2 * wire.MESSAGE_LIMIT))
        reply = client.answer()
        assert code(reply) == "bad_request"
        assert str(wire.MESSAGE_LIMIT) in reply["parameters"]["message"]
        assert client.ended()
        assert "checks" in other.call("Doctor")["parameters"]


@pytest.mark.parametrize(("extra", "expected"), [(0, "unknown_instance"), (1, "bad_request")])
def test_the_limit_is_exact(client: Client, extra: int, expected: str) -> None:
    asked = {"method": f"{OURS}.Prepare", "parameters": {"job": "1", "instances": [""]}}
    room = wire.MESSAGE_LIMIT - len(json.dumps(asked)) + extra
    asked["parameters"] = {"job": "1", "instances": ["x" * room]}
    client.sock.sendall(json.dumps(asked).encode() + b"\0")
    assert code(client.answer()) == expected


def test_half_a_message_has_a_deadline_from_its_beginning(
    agents: ModuleType, tmp_path: Path
) -> None:
    with agents.running(tmp_path, "--stall", "0.4") as path, Client(path) as slow:
        until = time.monotonic() + 20
        with Client(path) as other:
            while not select.select([slow.sock], [], [], 0)[0] and time.monotonic() < until:
                with suppress(BrokenPipeError):
                    slow.sock.sendall(b" ")  # each byte in time, the message never
                other.call("Doctor")
        assert select.select([slow.sock], [], [], 0)[0], "it goes on for ever"
        reply = slow.answer()
        assert code(reply) == "bad_request"
        assert "half a message, and no more for 0.4 s" in reply["parameters"]["message"]
        assert slow.ended()


def one_is_cut_off(path: str) -> None:
    """Begin a message, and wait until the server has waited long enough for the rest of it."""
    with Client(path) as half:
        half.sock.sendall(b"{")
        assert "half a message" in half.answer()["parameters"]["message"]


def test_a_client_that_only_waits_is_left_alone(agents: ModuleType, tmp_path: Path) -> None:
    with agents.running(tmp_path, "--stall", "0.05") as path, Client(path) as idle:
        idle.send("Prepare", {"job": "waits"})
        with Client(path) as other:
            one_is_cut_off(path)  # one that came later
            other.call("Undrain", {"id": "gate"})
        assert idle.answer()["parameters"]["job"] == "waits"
        one_is_cut_off(path)
        assert "checks" in idle.call("Doctor")["parameters"]


def test_a_client_that_does_not_read_is_cut_off_and_others_are_served(
    agents: ModuleType, tmp_path: Path
) -> None:
    with agents.running(tmp_path, "--stall", "0.5") as path, Client(path) as deaf:
        call = json.dumps({"method": f"{OURS}.GetInventory"}).encode() + b"\0"
        deaf.sock.settimeout(5)
        # At most the sockets' buffers and the server's limit: never this much.
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            deaf.sock.sendall(call * 100_000)
        with Client(path) as other:
            assert "checks" in other.call("Doctor")["parameters"]


@pytest.mark.needs("root")
@pytest.mark.parametrize("limit", [("--per-uid", "2"), ("--connections", "4")])
def test_foreign_users_cannot_take_all_connections(
    agents: ModuleType, passable: Path, limit: tuple[str, str]
) -> None:
    def crowd() -> Any:
        with ExitStack() as stack:
            inside = [stack.enter_context(Client(path)) for _ in range(2)]
            first = [client.call("Doctor") for client in inside]
            refused = stack.enter_context(Client(path)).answer()
            inside[0].sock.close()
            inside[1].call("Doctor")
            return [*first, refused, *calling(path, ("Doctor", None))]

    with agents.running(passable, *limit) as path, Client(path) as worker:
        *first, refused, again = as_user(61000, crowd)
        assert all("error" not in reply for reply in [*first, again])
        assert code(refused) == "not_ready"
        assert "checks" in worker.call("Doctor")["parameters"]


def test_out_of_descriptors_it_serves_who_is_in_and_recovers(agent: str) -> None:
    with Client(agent) as inside, ExitStack() as stack:
        inside.call("Doctor")
        # A unix socket's peer credentials are those of the process that listens.
        pid = Peer.of(inside.sock).pid
        used = {int(number) for number in os.listdir(f"/proc/{pid}/fd")}
        free = min(set(range(len(used) + 1)) - used)
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, before[1]))
        try:
            late = stack.enter_context(Client(agent))
            late.send("Doctor")
            assert "checks" in inside.call("Doctor")["parameters"]
            late.sock.settimeout(0)
            with pytest.raises(BlockingIOError):
                late.answer()
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        late.sock.settimeout(10)
        assert "checks" in late.answer()["parameters"]


def test_too_many_connections_are_told_and_the_others_served(
    agents: ModuleType, tmp_path: Path
) -> None:
    with agents.running(tmp_path, "--connections", "3") as path, ExitStack() as stack:
        inside = [stack.enter_context(Client(path)) for _ in range(3)]
        for client in inside:
            client.call("Doctor")
        with Client(path) as outside:
            assert code(outside.answer()) == "not_ready"
            assert outside.ended()
        inside[0].sock.close()
        assert "checks" in inside[1].call("Doctor")["parameters"]
        with Client(path) as outside:
            assert "checks" in outside.call("Doctor")["parameters"]
