from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

import pytest

from xce_nodeagent.host import Host
from xce_nodeagent.host.sockdiag import PortTable
from xce_nodeagent.model.plan import HoldPort
from xce_nodeagent.provider import Grant, PortGrant
from xce_nodeagent.providers.ports import PROVIDER, Ports


@pytest.fixture
def provider() -> Iterator[Ports]:
    made = Ports()
    yield made
    made.close()


def bound(family: int, kind: int, address: str, *, listen: bool = True) -> socket.socket:
    made = socket.socket(family, kind)
    made.bind((address, 0))
    if listen and kind == socket.SOCK_STREAM:
        made.listen()
    return made


def around(port: int) -> Host:
    return Host(port_range=(max(1, port - 3), min(65535, port + 3)))


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_listener_makes_its_port_foreign(
    provider: Ports, family: int, address: str, kind: int
) -> None:
    try:
        listener = bound(family, kind, address)
    except OSError as error:
        if family == socket.AF_INET6 and error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            pytest.skip("no IPv6 on the loopback")
        raise
    with listener:
        port = listener.getsockname()[1]
        host = around(port)
        (instance,) = provider.discover(host).instances
        assert str(port) in instance.text("foreign_listeners")
        assert port in provider.in_use(host, instance)
    assert port not in provider.in_use(host, instance)


def test_a_port_of_a_job_is_not_foreign(provider: Ports) -> None:
    with bound(socket.AF_INET, socket.SOCK_STREAM, "127.0.0.1") as listener:
        port = listener.getsockname()[1]
        host = Host(port_range=(port, port))
        host.held_ports = frozenset({port})
        (instance,) = provider.discover(host).instances
        assert "foreign_listeners" not in instance.attributes
        assert provider.in_use(host, instance) == {port}


def test_a_client_is_no_listener(provider: Ports) -> None:
    with (
        bound(socket.AF_INET, socket.SOCK_STREAM, "127.0.0.1") as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        port = client.getsockname()[1]
        host = Host(port_range=(port, port))
        (instance,) = provider.discover(host).instances
        assert provider.in_use(host, instance) == frozenset()


def test_a_connected_udp_socket_still_has_its_port(provider: Ports) -> None:
    with bound(socket.AF_INET, socket.SOCK_DGRAM, "127.0.0.1") as sender:
        sender.connect(("127.0.0.1", 9))
        port = sender.getsockname()[1]
        host = Host(port_range=(port, port))
        assert provider.in_use(host, provider.discover(host).instances[0]) == {port}


def test_another_range_is_another_question(provider: Ports) -> None:
    with bound(socket.AF_INET, socket.SOCK_STREAM, "127.0.0.1") as listener:
        port = listener.getsockname()[1]
        for host, expected in (
            (Host(port_range=(port, port)), {port}),
            (Host(port_range=(1, 1)), set()),
        ):
            (instance,) = provider.discover(host).instances
            assert provider.in_use(host, instance) & {port} == expected


def test_no_range_is_no_instance(provider: Ports) -> None:
    answer = provider.discover(Host())
    assert answer.state == "none"
    assert "[ports] range" in answer.reason


def test_a_recorded_machine_has_no_listeners(tmp_path, provider: Ports) -> None:
    host = Host(tmp_path, port_range=(1, 65535))
    (instance,) = provider.discover(host).instances
    assert "foreign_listeners" not in instance.attributes
    assert provider.in_use(host, instance) == frozenset()


def test_many_foreigners_are_cut_with_a_count(provider: Ports) -> None:
    sockets = [bound(socket.AF_INET, socket.SOCK_DGRAM, "127.0.0.1") for _ in range(60)]
    try:
        (instance,) = provider.discover(Host(port_range=(1, 65535))).instances
        shown = instance.text("foreign_listeners")
        # Random ports are neighbours now and then, but not so often.
        assert shown.endswith(" more)")
        assert len(shown) < 300
    finally:
        for one in sockets:
            one.close()


def test_the_plan_holds_the_ports_and_names_them() -> None:
    (instance,) = PROVIDER.discover(Host(port_range=(20000, 20999))).instances
    plan = PROVIDER.plan(
        Grant(
            instances=(instance,),
            ports=(PortGrant(20010, "http"), PortGrant(20000), PortGrant(20001)),
        )
    )
    assert plan.ports == (
        HoldPort("ports", 20010, "http"),
        HoldPort("ports", 20000),
        HoldPort("ports", 20001),
    )
    assert plan.environment == {
        "XCE_PORTS": "20000-20001,20010",
        "XCE_PORT_0": "20010",
        "XCE_PORT_1": "20000",
        "XCE_PORT_2": "20001",
        "XCE_PORT_HTTP": "20010",
    }


def test_a_table_that_failed_answers_again() -> None:
    with PortTable(1, 65535) as table:
        table._socket.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            table.in_use()
        assert isinstance(table.in_use(), frozenset)
