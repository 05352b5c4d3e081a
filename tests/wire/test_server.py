"""The socket's server, as its clients meet it: real sockets, a process of its own."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from wire.client import OURS, Client, as_user, calling, code


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
