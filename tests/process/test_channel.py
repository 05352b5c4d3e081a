"""Packets, and the loop that answers them: what breaks a rule is refused whole."""

import os
import socket
import threading
from contextlib import ExitStack

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xce_nodeagent.errors import Busy
from xce_nodeagent.privileged import ops
from xce_nodeagent.privileged.channel import Channel, Violation, encode, pair
from xce_nodeagent.privileged.serve import (
    EXIT_CLOSED,
    EXIT_FAULT,
    EXIT_VIOLATION,
    Last,
    serve,
)


def descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def ends():
    before = descriptors()
    one, other = pair()
    with one, other:
        yield one, other
    assert descriptors() == before, "a descriptor leaked"


def test_a_message_of_the_limit_fits_and_one_byte_more_does_not(ends):
    one, other = Channel(ends[0]), ends[1]
    other.settimeout(5)
    longest = b"x" * ops.MESSAGE_LIMIT
    for _ in range(3):
        other.send(longest)
        assert bytes(one.receive().data) == longest
    for length in (ops.MESSAGE_LIMIT + 1, ops.MESSAGE_LIMIT + 2, ops.MESSAGE_LIMIT + 1000):
        other.send(b"x" * length)
        with pytest.raises(Violation, match="more than"):
            one.receive()
    with pytest.raises(ValueError, match="131073 bytes"):
        encode(
            ops.Verified("ok", "x" * (ops.MESSAGE_LIMIT + 1 - len(encode(ops.Verified("ok"))) - 4))
        )


def test_one_descriptor_arrives_and_is_the_receivers(ends):
    one, other = map(Channel, ends)
    reader, writer = os.pipe()
    with ExitStack() as stack:
        stack.callback(os.close, reader)
        other.send(b"here", [writer])
        os.close(writer)
        packet = one.receive()
        assert bytes(packet.data) == b"here"
        (received,) = packet.descriptors
        assert not os.get_inheritable(received)
        os.write(received, b"!")
        assert os.read(reader, 1) == b"!"
        packet.close()


@pytest.mark.parametrize("count", [2, 3, 50])
def test_more_descriptors_than_a_message_has_are_refused_and_closed(ends, count):
    one, other = ends
    socket.send_fds(other, [b"many"], [0] * count)
    before = descriptors()
    with pytest.raises(Violation, match="more than 1 descriptor"):
        Channel(one).receive()
    assert descriptors() == before


def test_a_descriptor_on_a_packet_that_is_too_long_is_closed(ends):
    one, other = ends
    socket.send_fds(other, [b"x" * (ops.MESSAGE_LIMIT + 1)], [0])
    before = descriptors()
    with pytest.raises(Violation, match="bytes"):
        Channel(one).receive()
    assert descriptors() == before


def test_the_end_is_told_apart_from_an_end_with_unread_packets(ends):
    one, other = ends
    Channel(other).send(b"x")
    one.send(b"unread")
    other.close()
    # The kernel tells the error first, and then what was sent before.
    with pytest.raises(ConnectionResetError):
        Channel(one).receive()
    assert bytes(Channel(one).receive().data) == b"x"
    assert Channel(one).receive() is None


class Echo:
    """Work that answers by the mark."""

    def __init__(self):
        self.closed = 0
        self.seen = []

    def handle(self, request, fds):
        self.seen.append((request, len(fds)))
        match request:
            case ops.Verify("violation"):
                raise Violation("out of the roots")
            case ops.Verify("busy"):
                raise Busy("held", holders=[{"job": "7", "odd": {1, 2}, "path": object}])
            case ops.Verify("last"):
                raise Last(ops.Verified("ok", "last"))
            case ops.Verify("fault"):
                raise KeyError("x")
        return ops.Verified("ok", getattr(request, "mark", ""))

    def close(self):
        self.closed += 1


def serving(packets, requests=ops.BinderRequest):
    """Serve these packets, each bytes or bytes and descriptors; give status, answers, work, log."""
    one, other = pair()
    work, log, status = Echo(), [], []
    with one, other:
        thread = threading.Thread(
            target=lambda: status.append(serve(Channel(one), requests, work, log.append))
        )
        thread.start()
        answers = []
        other.settimeout(10)
        try:
            for packet in packets:
                data, fds = packet if isinstance(packet, tuple) else (packet, [])
                if fds:
                    socket.send_fds(other, [data], fds)
                else:
                    other.send(data)
            other.shutdown(socket.SHUT_WR)
            while thread.is_alive() or answers is None:
                thread.join(0.01)
            one.close()
            while data := other.recv(ops.MESSAGE_LIMIT + 1):
                answers.append(msgspec.msgpack.decode(data, type=ops.BinderAnswer))
        except (BrokenPipeError, ConnectionResetError):
            pass
        thread.join(10)
    return status[0], answers, work, log


def ask(mark):
    return encode(ops.Verify(mark, ops.CgroupRef("cgroup2", "/x"), ()))


def test_it_answers_in_order_and_ends_cleanly_with_the_other_end():
    status, answers, work, log = serving([ask("a"), ask("b"), encode(ops.Manage(()))])
    assert (status, work.closed, log) == (EXIT_CLOSED, 1, [])
    assert [answer.fault for answer in answers] == ["a", "b", ""]


def test_pinned_errors_are_answered_and_it_goes_on():
    status, answers, _, _ = serving([ask("busy"), ask("b")])
    assert status == EXIT_CLOSED
    assert answers[0].code == "busy"
    assert answers[0].details["holders"][0]["job"] == "7"
    assert answers[1].fault == "b"


@pytest.mark.parametrize("mark", ["last", "fault"])
def test_after_a_fault_it_answers_and_ends(mark):
    status, _, work, log = serving([ask(mark), ask("never")])
    assert (status, work.closed, len(work.seen)) == (EXIT_FAULT, 1, 1)
    assert any("KeyError" in line for line in log) == (mark == "fault")


@pytest.mark.parametrize(
    "packet",
    [
        b"\xc1",
        b"x" * (ops.MESSAGE_LIMIT + 1),
        msgspec.msgpack.encode({"type": "probe", "vendor": "nvidia"}),
        msgspec.msgpack.encode({"type": "next", "role": "binder"}),
        msgspec.msgpack.encode({"type": "manage", "devices": [{"type": "x", "major": 1}]}),
        msgspec.msgpack.encode({"type": "manage"}),
        msgspec.msgpack.encode(7),
        (b"\xc1", [0]),
        (encode(ops.Manage(())), [0, 0]),
        ask("violation"),
    ],
)
def test_what_is_no_request_of_the_role_ends_it_with_a_status_of_its_own(packet):
    before = descriptors()
    status, answers, work, log = serving([packet, ask("never")])
    assert (status, answers, work.closed) == (EXIT_VIOLATION, [], 1)
    assert [request for request, _ in work.seen if request.mark != "violation"] == []
    assert "violation" in log[-1]
    assert descriptors() == before


@given(st.binary(min_size=1, max_size=200))
def test_no_bytes_crash_it(data):
    status, _, work, _ = serving([data])
    assert status == (EXIT_CLOSED if work.seen else EXIT_VIOLATION)
