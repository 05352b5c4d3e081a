"""What one user does to the socket, and what the others notice of it: nothing that matters."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import statistics
import struct
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from xce_nodeagent.daemon.connection import Peer
from xce_nodeagent.model import wire

OURS = "io.xce.NodeAgent"
STRANGER = 61000
LINGER = 6


def message(method: str, **parameters: Any) -> bytes:
    return json.dumps({"method": f"{OURS}.{method}", "parameters": parameters}).encode() + b"\0"


def ask(path: str, method: str, timeout: float = 30, **parameters: Any) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(timeout)
        sock.connect(path)
        sock.sendall(message(method, **parameters))
        data = b""
        while not data.endswith(b"\0"):
            chunk = sock.recv(1 << 16)
            assert chunk, data
            data += chunk
    return json.loads(data[:-1])


def seconds(act: Callable[[], Any]) -> float:
    began = time.monotonic()
    act()
    return time.monotonic() - began


@contextlib.contextmanager
def stranger(act: Callable[[Callable[[], bool]], Any]) -> Iterator[Callable[[], Any]]:
    """Run `act` as another user, in a process of its own, until the block ends or result() is read.

    It is given a function that says whether to go on, and gives something for `result()`.
    """
    stop_read, stop_write = os.pipe()
    said_read, said_write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(stop_write)
            os.setgroups([])
            os.setresgid(STRANGER, STRANGER, STRANGER)
            os.setresuid(STRANGER, STRANGER, STRANGER)
            result = act(lambda: not select.select([stop_read], [], [], 0)[0])
            os.write(said_write, json.dumps(result).encode())
        finally:
            os._exit(0)
    os.close(stop_read)
    os.close(said_write)
    with open(stop_write, "wb") as stop, open(said_read, "rb") as said:
        try:

            def result() -> Any:
                stop.close()
                return json.loads(said.read())

            yield result
        finally:
            stop.close()
            said.read()
            os.waitpid(pid, 0)


@pytest.fixture
def passable() -> Iterator[Path]:
    """A folder that lets other users pass, which pytest's own do not."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)  # noqa: S103  # the other user must get to the socket
        yield Path(directory)


# ---- descriptors ----------------------------------------------------------------------------


@contextlib.contextmanager
def lingering() -> Iterator[socket.socket]:
    """A socket whose last close lasts LINGER seconds. Whoever takes it must close it."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        ours = socket.socket()
        ours.connect(listener.getsockname())
        peer, _ = listener.accept()
        ours.settimeout(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                ours.send(b"x" * 65536)
        linger(ours, LINGER)
        try:
            yield ours
        finally:
            linger(peer, 0)  # a reset, which ends the waiting of whoever still waits
            peer.close()


def linger(sock: socket.socket, how_long: int) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, how_long))


def sent(on: socket.socket, data: bytes, lasting: socket.socket) -> bool:
    """Send bytes and the descriptor; say whether the kernel let us."""
    try:
        socket.send_fds(on, [data], [lasting.fileno()])
    except OSError:
        return False
    return True


def in_front(path: str, sock: socket.socket, lasting: socket.socket) -> bool:
    """It comes with a call."""
    return sent(sock, message("Doctor"), lasting)


def behind(path: str, sock: socket.socket, lasting: socket.socket) -> bool:
    """It comes behind so many calls that it is unread when their client is cut off."""
    calls = message("GetInventory") * (wire.MESSAGE_LIMIT * 3 // 2 // len(message("GetInventory")))
    sock.sendall(calls)  # whose answers nobody reads
    return sent(sock, b"x", lasting)


def outside(path: str, sock: socket.socket, lasting: socket.socket) -> bool:
    """It comes on a connection that is refused for want of room."""
    with socket.socket(socket.AF_UNIX) as more:
        more.connect(path)
        return sent(more, message("Doctor"), lasting)


@pytest.mark.parametrize("way", [in_front, behind, outside])
@pytest.mark.parametrize("options", [(), ("--passes-rights",)], ids=["now", "before-6.16"])
def test_a_descriptor_whose_close_lasts_holds_nobody_up(
    agents: ModuleType,
    tmp_path: Path,
    options: tuple[str, ...],
    way: Callable[[str, socket.socket, socket.socket], bool],
) -> None:
    limits = ("--connections", "2", "--stall", "0.2")
    with (
        agents.running(tmp_path, *options, *limits) as path,
        lingering() as lasting,
        socket.socket(socket.AF_UNIX) as other,
        socket.socket(socket.AF_UNIX) as sock,
    ):
        other.settimeout(LINGER)
        other.connect(path)
        sock.connect(path)
        _exchange(other)  # both are in
        server = Peer.of(other).pid  # a unix socket knows who listened
        if way is not behind:
            # It must get the descriptor when nobody else has it any more.
            os.kill(server, signal.SIGSTOP)
        passed = way(path, sock, lasting)
        if not passed:
            linger(lasting, 0)
        lasting.close()
        os.kill(server, signal.SIGCONT)
        until = time.monotonic() + 0.8
        while time.monotonic() < until:
            assert seconds(lambda: _exchange(other)) < LINGER / 2


def _exchange(sock: socket.socket) -> None:
    sock.sendall(message("Doctor"))
    while not sock.recv(1 << 16).endswith(b"\0"):
        pass


def test_who_sends_a_descriptor_is_told(agents: ModuleType, tmp_path: Path) -> None:
    with (
        agents.running(tmp_path, "--passes-rights") as path,
        socket.socket(socket.AF_UNIX) as sock,
        open(os.devnull, "rb") as null,
    ):
        sock.settimeout(10)
        sock.connect(path)
        socket.send_fds(sock, [message("Doctor")], [null.fileno()])
        answer = json.loads(sock.recv(1 << 16)[:-1])
        assert answer["parameters"]["code"] == "bad_request"
        assert "descriptor" in answer["parameters"]["message"]
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(1) == b""
        assert "error" not in ask(path, "Doctor")


# ---- floods -----------------------------------------------------------------------------------

MANY = 60  # connections of one user, which is about all that they may have


def pipelining(path: str, *, knocks: int = 0) -> Callable[[Callable[[], bool]], Any]:
    """Keep many connections full of calls; give the answers of each second.

    And knock: each time that there is an answer, so many want to come in, and leave again.
    """

    def flood(go_on: Callable[[], bool]) -> float:
        call = message("ListBindings")
        poll = select.epoll()
        socks = {}
        outside: deque[socket.socket] = deque()
        for _ in range(MANY):
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(path)
            sock.settimeout(0)
            sock.send(call * 20)
            poll.register(sock.fileno(), select.EPOLLIN)
            socks[sock.fileno()] = sock
        answers, began = 0, time.monotonic()
        while go_on():
            for number, _ in poll.poll(0.1):
                count = socks[number].recv(1 << 20).count(b"\0")
                answers += count
                with contextlib.suppress(OSError):
                    socks[number].send(call * count)
            for _ in range(knocks):
                outside.append(socket.socket(socket.AF_UNIX))
                outside[-1].settimeout(0)
                with contextlib.suppress(OSError):
                    outside[-1].connect(path)
            while len(outside) > 600:
                outside.popleft().close()
        return answers / (time.monotonic() - began)

    return flood


@pytest.mark.needs("root")
@pytest.mark.parametrize("knocks", [0, 20])
def test_a_user_who_floods_does_not_keep_the_worker_waiting(
    agents: ModuleType, passable: Path, knocks: int
) -> None:
    with agents.running(passable) as path:
        for number in range(300):
            ask(path, "Prepare", job=f"b{number}")
        with stranger(pipelining(path, knocks=knocks)) as result:
            time.sleep(0.3)  # so that every connection is in
            taken = [seconds(lambda: ask(path, "Prepare", job="b0")) for _ in range(9)]
            for_all = MANY / result()  # the time in which each connection gets one answer
    # One call after the other, the worker waited for two such rounds: to be let in, to be read.
    # And with one let in for each round, for as many rounds as there are others outside.
    assert statistics.median(taken) < for_all / 2, (taken, for_all)
