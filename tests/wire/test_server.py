"""The socket's server, as its clients meet it: real sockets, a process of its own."""

from __future__ import annotations

import json
import os
import resource
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import pytest

from xce_nodeagent.daemon.server import Limits, Peer, Server, listen
from xce_nodeagent.errors import BadConfig, Conflict
from xce_nodeagent.model import wire

OURS = "io.xce.NodeAgent"


class Client:
    """A plain client: sends what it is told to, and reads one answer at a time."""

    def __init__(self, path: str, timeout: float = 10) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(timeout)
        self.sock.connect(path)
        self._read = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, method: str, parameters: Any = None, **call: Any) -> None:
        message = {"method": method if "." in method else f"{OURS}.{method}", **call}
        if parameters is not None:
            message["parameters"] = parameters
        self.sock.sendall(json.dumps(message).encode() + b"\0")

    def answer(self) -> dict[str, Any]:
        while b"\0" not in self._read:
            chunk = self.sock.recv(65536)
            if not chunk:
                raise EOFError(self._read)
            self._read += chunk
        message, _, self._read = self._read.partition(b"\0")
        return json.loads(message)

    def call(self, method: str, parameters: Any = None, **call: Any) -> dict[str, Any]:
        self.send(method, parameters, **call)
        return self.answer()

    def ended(self) -> bool:
        """Whether the server ends the connection (waits for it)."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True


@pytest.fixture
def client(agent: str) -> Iterator[Client]:
    with Client(agent) as connected:
        yield connected


def code(reply: dict[str, Any]) -> str:
    assert reply["error"].startswith(f"{OURS}."), reply
    assert set(reply["parameters"]) == {"code", "class", "message", "details"}
    return reply["parameters"]["code"]


def test_a_job_is_prepared_listed_and_released(client: Client) -> None:
    asked = {"job": "12[3]", "attempt": "1", "uid": 1000, "instances": ["GPU-1", "GPU-2"]}
    prepared = client.call("Prepare", asked)["parameters"]
    assert prepared["instances"] == ["GPU-1", "GPU-2"]
    assert prepared["env"]["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-2"
    assert client.call("Prepare", asked)["parameters"] == prepared
    (listed,) = client.call("ListBindings")["parameters"]["bindings"]
    assert (listed["job"], listed["uid"], listed["env"]) == ("12[3]", 1000, {})
    one = client.call("GetBinding", {"job": "12[3]"})["parameters"]["binding"]
    assert one["env"] == prepared["env"]
    assert client.call("Release", {"job": "12[3]"})["parameters"]["clean"] is True
    assert client.call("ListBindings")["parameters"] == {"bindings": []}


def test_errors_have_their_name_code_class_and_details(client: Client) -> None:
    client.call("Prepare", {"job": "1", "attempt": "a", "instances": ["GPU-0"]})
    reply = client.call("Prepare", {"job": "2", "instances": ["MIG-0"]})
    assert reply["error"] == f"{OURS}.Busy"
    assert reply["parameters"]["class"] == "transient"
    assert reply["parameters"]["details"] == {"holders": [{"job": "1", "attempt": "a"}]}
    assert code(client.call("Prepare", {"job": "2", "instances": ["GPU-99"]})) == "unknown_instance"
    assert code(client.call("Prepare", {"job": "2", "instances": ["GPU-7"]})) == "unhealthy"
    assert code(client.call("Prepare", {"job": "a/b"})) == "bad_job_id"


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({}, "job"),
        ({"job": 1}, "job"),
        ({"job": "1", "nonsense": 1}, "nonsense"),
        ({"job": "1", "ports": [{"count": "2"}]}, "ports[0].count"),
        ({"job": "1", "instances": "GPU-0"}, "instances"),
        ({"job": "1", "instances": [None]}, "instances[0]"),
        ({"job": "1", "uid": -1}, "uid"),
        ({"job": "1", "uid": 2**32 - 1}, "uid"),
        ({"job": "1", "uid": 2**80}, "uid"),
        ({"job": "1", "pid": 0}, "pid"),
        ([], ""),
        (7, ""),
    ],
)
def test_malformed_parameters_name_the_field(client: Client, parameters: Any, field: str) -> None:
    reply = client.call("Prepare", parameters)
    assert code(reply) == "bad_request"
    assert reply["parameters"]["details"]["field"] == field
    assert field.partition("[")[0] in reply["parameters"]["message"]


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"Prepare"',
        b"{}",
        b'{"method": 7}',
        b'{"method": "io.xce.NodeAgent.Doctor", "more": 1}',
        b"\xff\xfe",
        b'{"method": "\xff"}',
        b"[" * 100_000,
        b'{"method": "io.xce.NodeAgent.Doctor", "parameters": ' + b"[" * 100_000,
        b'{"method": "io.xce.NodeAgent.Doctor", "parameters": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
def test_a_message_that_is_no_call_is_answered_and_the_next_one_served(
    client: Client, message: bytes
) -> None:
    client.sock.sendall(message + b"\0")
    assert code(client.answer()) == "bad_request"
    assert "checks" in client.call("Doctor")["parameters"]


def test_null_and_missing_parameters_are_the_same(client: Client) -> None:
    client.sock.sendall(b'{"method": "io.xce.NodeAgent.Doctor", "parameters": null}\0')
    assert client.answer() == client.call("Doctor")


def test_optional_fields_may_be_null(client: Client) -> None:
    asked = {"job": "1", "attempt": None, "instances": None, "ports": None, "adopt": None}
    assert client.call("Prepare", asked)["parameters"]["attempt"] == ""


def test_the_protocols_own_errors(client: Client) -> None:
    varlink = "org.varlink.service"
    assert client.call("Nonsense") == {
        "error": f"{varlink}.MethodNotFound", "parameters": {"method": f"{OURS}.Nonsense"},
    }  # fmt: skip
    assert client.call("com.example.Other.Thing") == {
        "error": f"{varlink}.InterfaceNotFound", "parameters": {"interface": "com.example.Other"},
    }  # fmt: skip
    reply = client.call(f"{varlink}.GetInterfaceDescription", {"interface": 7})
    assert reply == {
        "error": f"{varlink}.InvalidParameter", "parameters": {"parameter": "interface"},
    }  # fmt: skip
    reply = client.call("Doctor", upgrade=True)
    assert reply["error"] == f"{varlink}.MethodNotImplemented"


def test_it_describes_itself(client: Client) -> None:
    info = client.call("org.varlink.service.GetInfo")["parameters"]
    assert info["interfaces"] == [OURS, "org.varlink.service"]
    for interface in info["interfaces"]:
        asked = {"interface": interface}
        reply = client.call("org.varlink.service.GetInterfaceDescription", asked)
        assert f"\ninterface {interface}\n" in reply["parameters"]["description"]


def test_a_oneway_call_is_done_and_not_answered(client: Client) -> None:
    client.send("Prepare", {"job": "1", "instances": ["GPU-3"]}, oneway=True)
    client.send("Prepare", {"job": 1}, oneway=True)
    client.send("Nonsense", oneway=True)
    client.send("Prepare", {"job": "fault-later"}, oneway=True)
    (binding,) = client.call("ListBindings")["parameters"]["bindings"]
    assert binding["instances"] == ["GPU-3"]


def test_calls_of_one_connection_are_answered_in_order_and_others_do_not_wait(agent: str) -> None:
    with Client(agent) as first, Client(agent) as second:
        first.send("Prepare", {"job": "waits-1"})
        first.send("Prepare", {"job": "quick"})
        assert code(second.call("GetBinding", {"job": "quick"})) == "bad_request"
        second.call("Undrain", {"id": "gate"})
        assert first.answer()["parameters"]["job"] == "waits-1"
        assert first.answer()["parameters"]["job"] == "quick"


def test_a_call_goes_on_when_its_client_has_gone(agent: str) -> None:
    with Client(agent) as gone:
        gone.send("Prepare", {"job": "waits", "instances": ["GPU-1"]})
    with Client(agent) as client:
        client.call("Undrain", {"id": "gate"})
        deadline = time.monotonic() + 5
        while not (held := client.call("ListBindings")["parameters"]["bindings"]):
            assert time.monotonic() < deadline
        assert held[0]["instances"] == ["GPU-1"]


def test_a_client_that_has_said_all_still_gets_its_answers(client: Client) -> None:
    client.send("Prepare", {"job": "yields"})
    client.send("Prepare", {"job": "quick"})
    client.sock.shutdown(socket.SHUT_WR)
    assert client.answer()["parameters"]["job"] == "yields"
    assert client.answer()["parameters"]["job"] == "quick"
    assert client.ended()


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
        began = time.monotonic()
        with Client(path) as other:
            for byte in b'{"method":':
                try:
                    slow.sock.sendall(bytes([byte]))  # each byte in time, the message never
                except BrokenPipeError:
                    break
                other.call("Doctor")
                time.sleep(0.1)
        assert code(slow.answer()) == "bad_request"
        assert slow.ended()
        assert 0.4 <= time.monotonic() - began < 5


def test_a_client_that_only_waits_is_left_alone(agents: ModuleType, tmp_path: Path) -> None:
    with agents.running(tmp_path, "--stall", "0.05") as path, Client(path) as idle:
        idle.send("Prepare", {"job": "waits"})
        with Client(path) as other:
            time.sleep(0.2)  # four deadlines long
            other.call("Undrain", {"id": "gate"})
        assert idle.answer()["parameters"]["job"] == "waits"
        time.sleep(0.2)
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


def test_a_stream_gives_each_change(agent: str) -> None:
    with Client(agent) as watcher, Client(agent) as client:
        first = watcher.call("GetInventory", more=True)
        assert first["continues"] is True
        assert first["parameters"]["schema"] == "xce.inventory/v1"
        client.call("Drain", {"id": "GPU-4", "reason": "noisy fan"})
        then = watcher.answer()
        assert then["continues"] is True
        (drained,) = [i for i in then["parameters"]["instances"] if i["drained"]]
        assert (drained["id"], drained["reason"]) == ("GPU-4", "noisy fan")
        assert then["parameters"]["generation"] != first["parameters"]["generation"]


def test_a_stream_that_is_read_slowly_gives_the_newest(agent: str) -> None:
    with Client(agent) as watcher, Client(agent) as client:
        watcher.call("GetInventory", more=True)
        changes = 300  # more than a socket's buffer takes
        for number in range(changes):
            client.call("Drain", {"id": "GPU-4", "reason": f"reason {number}"})
        seen = []
        while not seen or seen[-1] != f"reason {changes - 1}":
            (drained,) = [i for i in watcher.answer()["parameters"]["instances"] if i["drained"]]
            seen.append(drained["reason"])
        assert len(seen) < changes
        numbers = [int(reason.split()[1]) for reason in seen]
        assert numbers == sorted(set(numbers))


def test_a_fault_of_ours_is_internal_and_logged_once(agents: ModuleType, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with agents.running(tmp_path, log=log) as path, Client(path) as client:
        for job in ("fault", "fault-later"):
            reply = client.call("Prepare", {"job": job})
            assert code(reply) == "internal"
            assert "ZeroDivisionError" in reply["parameters"]["message"]
            assert "a fault that a test asked for" not in reply["parameters"]["message"]
        assert code(client.call("Prepare", {"job": "no-json"})) == "internal"
        assert "checks" in client.call("Doctor")["parameters"]
    assert log.read_text().count("ZeroDivisionError: a fault that a test asked for") == 2


def as_user(uid: int, act: Callable[[], Any]) -> Any:
    """Do something as another user, in a process of its own; give what it gave."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(reading)
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            os.write(writing, json.dumps(act()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(data)


def calling(path: str, *calls: tuple[str, Any]) -> list[dict[str, Any]]:
    with Client(path) as client:
        return [client.call(*call) for call in calls]


@pytest.fixture
def passable() -> Iterator[Path]:
    """A folder that lets other users pass, which pytest's own do not."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)  # noqa: S103  # the other user must get to the socket
        yield Path(directory)


@pytest.mark.needs("root")
def test_a_foreign_user_may_look_and_not_touch(agents: ModuleType, passable: Path) -> None:
    with agents.running(passable) as path:
        touching = [
            ("Prepare", {"job": "1"}), ("Prepare", {"job": 1}), ("Release", {"job": "1"}),
            ("Reconcile", {"jobs": []}), ("Drain", {"id": "GPU-1", "reason": ""}),
            ("Undrain", {"id": "GPU-1"}),
        ]  # fmt: skip
        replies = as_user(61000, lambda: calling(path, *touching))
        assert [code(reply) for reply in replies] == ["not_permitted"] * len(touching)
        assert replies[0]["parameters"]["details"] == {"uid": 61000}
        looking = [("GetInventory", None), ("ListBindings", None), ("Doctor", None)]
        replies = as_user(61000, lambda: calling(path, *looking))
        assert all("error" not in reply for reply in replies)


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


def test_an_agent_that_stops_tells_who_waits(agents: ModuleType, tmp_path: Path) -> None:
    with agents.running(tmp_path) as path:
        client = Client(path)
        client.send("Prepare", {"job": "waits"})
        client.send("Prepare", {"job": "behind"})
        with Client(path) as other:
            other.call("Doctor")  # so that the first has been taken
    with client:
        assert code(client.answer()) == "not_ready"
        assert client.ended()


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


class TestListen:
    def test_a_stale_socket_is_replaced_and_everybody_may_connect(self, tmp_path: Path) -> None:
        path = str(tmp_path / "s")
        with closing(listen(path)):
            assert os.stat(path).st_mode & 0o777 == 0o666
            with pytest.raises(Conflict, match="another agent"):
                listen(path)
        with closing(listen(path)), Client(path):
            pass

    @pytest.mark.parametrize("kind", ["file", "folder", "link"])
    def test_what_is_no_socket_is_left_alone(self, tmp_path: Path, kind: str) -> None:
        path, kept = tmp_path / "s", tmp_path / "kept"
        kept.write_text("precious")
        if kind == "file":
            path.write_text("precious")
        elif kind == "folder":
            path.mkdir()
        else:
            path.symlink_to(kept)
        before = os.lstat(path)
        with pytest.raises(BadConfig, match=f"socket {path}: .* no socket .* move it away"):
            listen(str(path))
        assert os.lstat(path) == before
        assert kept.read_text() == "precious"

    @pytest.mark.parametrize("name", ["none/s", "x" * 200, "file/s"])
    def test_where_no_socket_can_be_made_is_told(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "file").touch()
        path = str(tmp_path / name)
        with pytest.raises(BadConfig, match=r"cannot be made: .* set XCE_NODEAGENT") as caught:
            listen(path)
        assert path in caught.value.message

    def test_a_server_needs_no_more_descriptors_than_it_may_have(self) -> None:
        with socket.socket(socket.AF_UNIX) as sock:
            limits = Limits(connections=1 << 30)
            assert Server(None, sock, version="0", limits=limits)._most < 1 << 30
