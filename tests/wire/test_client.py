"""The commands' client: what it makes of answers, and of none."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from xce_nodeagent import errors
from xce_nodeagent.daemon import client


@contextmanager
def answering(path: Path, *answers: bytes) -> Iterator[str]:
    """A peer that reads one call, sends these bytes one by one, and ends the connection."""

    def serve() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.recv(1 << 20)
            for answer in answers:
                peer.sendall(answer)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield str(path)
        finally:
            thread.join(10)


def test_it_calls_and_gives_the_answer(agent: str) -> None:
    answer = client.call("Prepare", {"job": "1", "attempt": None, "instances": ["GPU-1"]}, agent)
    assert answer["instances"] == ["GPU-1"]


def test_an_error_comes_out_as_it_went_in(agent: str) -> None:
    client.call("Prepare", {"job": "1", "attempt": "a", "instances": ["GPU-1"]}, agent)
    with pytest.raises(errors.Busy) as caught:
        client.call("Prepare", {"job": "2", "instances": ["GPU-1"]}, agent)
    assert caught.value.message == "instance GPU-1 is held by job 1"
    assert caught.value.details == {"holders": [{"job": "1", "attempt": "a"}]}


def test_an_oversized_call_is_told_why(agent: str) -> None:
    with pytest.raises(errors.BadRequest, match="262144"):
        client.call("Prepare", {"job": "x" * 2_000_000}, agent)


def test_an_unknown_method_is_told(agent: str) -> None:
    with pytest.raises(errors.BadRequest, match="MethodNotFound"):
        client.call("FromTheFuture", {}, agent)


@pytest.mark.parametrize("make", ["missing", "refusing"])
def test_no_agent_is_not_ready(tmp_path: Path, make: str) -> None:
    path = tmp_path / "s"
    if make == "refusing":
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(path))
    why = "no socket" if make == "missing" else "Connection refused"
    with pytest.raises(errors.NotReady, match=f"no agent.*{why}"):
        client.call("Doctor", {}, str(path))


def test_a_full_queue_is_waited_for_and_then_not_ready(tmp_path: Path) -> None:
    """Whatever else the machine does, it is not less than it waits."""
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as other:
        listener.bind(path)
        listener.listen(0)  # room for one that waits
        other.connect(path)
        began = time.monotonic()
        with pytest.raises(errors.NotReady, match="temporarily unavailable"):
            client.call("Doctor", {}, path)
        assert time.monotonic() - began > 0.5


def test_a_silent_agent_is_waited_for_as_long_as_told(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        with pytest.raises(errors.NotReady, match=r"has not answered for 0\.2 s"):
            client.call("Doctor", {}, path, timeout=0.2)


def test_an_answer_in_pieces_is_put_together(tmp_path: Path) -> None:
    pieces = [bytes([byte]) for byte in b'{"parameters": {"checks": []}}\0']
    with answering(tmp_path / "s", *pieces) as path:
        assert client.call("Doctor", {}, path) == {"checks": []}


@pytest.mark.parametrize("answer", [b"", b'{"parameters"', b"nonsense"])
def test_an_end_without_an_answer_is_not_ready(tmp_path: Path, answer: bytes) -> None:
    with answering(tmp_path / "s", answer) as path, pytest.raises(errors.NotReady):
        client.call("Doctor", {}, path)


@pytest.mark.parametrize(
    "answer", [b"{\0", b"[]\0", b"7\0", b"\xff\0", b'{"error": "x", "parameters": 7}\0', b"\0"]
)
def test_an_answer_that_is_no_varlink_is_internal(tmp_path: Path, answer: bytes) -> None:
    with answering(tmp_path / "s", answer) as path, pytest.raises(errors.Internal):
        client.call("Doctor", {}, path)


def test_importing_it_loads_no_third_party() -> None:
    script = (
        "import sys; before = set(sys.modules); import xce_nodeagent.daemon.client;"
        "print(sorted({name.split('.')[0] for name in set(sys.modules) - before}"
        " - set(sys.stdlib_module_names)))"
    )
    shown = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert shown == "['xce_nodeagent']\n"
