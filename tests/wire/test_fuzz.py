"""Whatever a client sends, it gets pinned errors, and the others are served."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xce_nodeagent.daemon.message import error_name
from xce_nodeagent.daemon.method import METHODS
from xce_nodeagent.errors import BY_CODE
from xce_nodeagent.model import wire

PINNED = {error_name(error): error for error in BY_CODE.values()}
VARLINK = {
    "InterfaceNotFound": {"interface"},
    "MethodNotFound": {"method"},
    "MethodNotImplemented": {"method"},
    "InvalidParameter": {"parameter"},
}
WITNESS = b'{"method": "io.xce.NodeAgent.Doctor"}\0'

# A field's right values, wrong ones, and anything at all.
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    | st.integers(min_value=2**63, max_value=2**200),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)  # fmt: skip
FIELDS = st.sampled_from(
    ["job", "attempt", "uid", "instances", "request", "ports", "cgroup", "pid", "adopt", "add",
     "generation", "jobs", "id", "reason", "name", "count", "port", "interface"]
)  # fmt: skip
PLAUSIBLE = st.one_of(
    st.sampled_from(["1", "12[3]", "GPU-0", "GPU-7", "ports", "/", "a:1", ""]),
    st.lists(st.sampled_from(["GPU-0", "GPU-1", "MIG-0", "nothing"]), max_size=3),
    st.integers(-2, 70000),
    st.booleans(),
)
METHOD = st.sampled_from([*METHODS, "org.varlink.service.GetInterfaceDescription"]) | st.text(
    max_size=30
)
CALL = st.fixed_dictionaries(
    {
        "method": METHOD,
        "parameters": st.dictionaries(FIELDS, PLAUSIBLE | ANYTHING, max_size=4) | ANYTHING,
    },
    optional={"upgrade": st.booleans(), "extension": ANYTHING},
)


@pytest.fixture(scope="module")
def served(agents: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with agents.running(tmp_path_factory.mktemp("fuzz"), "--stall", "5") as path:
        yield path


def exchange(path: str, data: bytes) -> list[dict[str, Any]]:
    """Send bytes, say that this is all, and read all answers."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(path)
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass  # cut off: the reason is in what it sent
        received = b""
        try:
            while chunk := sock.recv(65536):
                received += chunk
        except ConnectionResetError:
            pass  # what came before the end has been read
    *messages, rest = received.split(b"\0")
    assert rest == b""
    return [json.loads(message) for message in messages]


def check(reply: dict[str, Any]) -> None:
    assert set(reply) <= {"parameters", "error", "continues"}
    assert isinstance(reply["parameters"], dict)
    if "error" not in reply:
        return
    if (error := PINNED.get(reply["error"])) is not None:
        assert set(reply["parameters"]) == {"code", "class", "message", "details"}
        assert reply["parameters"]["code"] == error.code != "internal"
        assert reply["parameters"]["class"] == error.error_class
        assert len(reply["parameters"]["message"]) < 2000
    else:
        interface, _, name = reply["error"].rpartition(".")
        assert interface == "org.varlink.service"
        assert set(reply["parameters"]) == VARLINK[name]


def others_are_served(path: str) -> None:
    (reply,) = exchange(path, WITNESS)
    assert "checks" in reply["parameters"]


FUZZ = settings(
    # No database: a checkout may be read-only to who runs its tests.
    max_examples=150,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@FUZZ
@given(st.lists(st.binary(max_size=200), max_size=5))
def test_any_bytes(served: str, messages: list[bytes]) -> None:
    data = b"\0".join(messages) + b"\0"
    replies = exchange(served, data)
    assert len(replies) == data.count(b"\0")
    for reply in replies:
        check(reply)
    others_are_served(served)


@FUZZ
@given(st.lists(CALL, min_size=1, max_size=4))
def test_calls_of_wrong_types(served: str, calls: list[dict[str, Any]]) -> None:
    replies = exchange(served, b"".join(json.dumps(call).encode() + b"\0" for call in calls))
    assert len(replies) == len(calls)
    for reply in replies:
        check(reply)
    others_are_served(served)


@FUZZ
@given(CALL, st.data())
def test_a_message_that_ends_in_the_middle(
    served: str, call: dict[str, Any], data: st.DataObject
) -> None:
    message = json.dumps(call).encode()
    cut = data.draw(st.integers(0, len(message)))
    assert exchange(served, message[:cut]) == []
    others_are_served(served)


@FUZZ
@given(CALL, st.data())
def test_a_message_with_a_byte_changed(
    served: str, call: dict[str, Any], data: st.DataObject
) -> None:
    message = bytearray(json.dumps(call, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(1, 255))
    (reply,) = exchange(served, bytes(message) + b"\0")
    check(reply)
    others_are_served(served)


@settings(max_examples=15, deadline=None, database=None)
@given(st.integers(-100, 300_000), st.sampled_from([b"x", b"[", b'{"a":', b" ", b"9", b"\xff"]))
def test_sizes_about_the_limit(served: str, beyond: int, filler: bytes) -> None:
    data = (filler * (wire.MESSAGE_LIMIT + beyond))[: wire.MESSAGE_LIMIT + beyond] + b"\0"
    (reply,) = exchange(served, data)
    check(reply)
    others_are_served(served)
