"""Where metrics are asked for: who may, and whose socket is never taken away."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path

import pytest
from metrics.served import free_port

from xce_nodeagent.daemon import listening


def test_a_socket_is_for_its_user_and_group(tmp_path) -> None:
    path = tmp_path / "m.sock"
    with listening.listen(f"unix:{path}"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    listening.leave(f"unix:{path}")
    assert not path.exists()


def test_one_that_was_left_behind_is_replaced(tmp_path) -> None:
    where = f"unix:{tmp_path}/m.sock"
    listening.listen(where).close()
    with listening.listen(where):
        pass


def test_one_that_somebody_answers_at_is_not(tmp_path) -> None:
    where = f"unix:{tmp_path}/m.sock"
    with listening.listen(where), pytest.raises(FileExistsError, match="somebody answers"):
        listening.listen(where)
    assert (tmp_path / "m.sock").exists()


def test_one_that_is_too_busy_to_answer_is_not_and_nobody_waits_for_it(
    tmp_path, monkeypatch
) -> None:
    """A connect() to a queue that is full blocks for as long as it may."""
    path = tmp_path / "m.sock"
    waits = []
    plain = socket.socket.settimeout

    def note(sock, seconds) -> None:
        waits.append(seconds)
        plain(sock, seconds)

    with socket.socket(socket.AF_UNIX) as busy, contextlib.ExitStack() as stack:
        busy.bind(str(path))
        busy.listen(0)
        for _ in range(2):  # one is let in although it waits for nobody
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.settimeout(0)
            with contextlib.suppress(BlockingIOError):
                client.connect(str(path))
        with pytest.raises(BlockingIOError):
            client.connect(str(path))
        monkeypatch.setattr(socket.socket, "settimeout", note)
        with pytest.raises(FileExistsError, match="somebody answers"):
            listening.listen(f"unix:{path}")
    assert waits == [0]
    assert path.exists()


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_what_is_no_socket_is_not(tmp_path, kind) -> None:
    path: Path = tmp_path / "m.sock"
    other = tmp_path / "other"
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        listening.listen(f"unix:{other}").close()
        path.symlink_to(other)
    else:
        path.write_text("somebody's")
    with pytest.raises(FileExistsError, match="no socket"):
        listening.listen(f"unix:{path}")
    assert path.is_symlink() or path.exists()


@pytest.mark.needs("root")
def test_one_of_somebody_elses_is_not(tmp_path) -> None:
    path = tmp_path / "m.sock"
    listening.listen(f"unix:{path}").close()
    os.chown(path, 12345, -1)
    with pytest.raises(FileExistsError, match="uid 12345"):
        listening.listen(f"unix:{path}")
    assert path.exists()


def test_a_path_that_is_too_long_has_words(tmp_path) -> None:
    with pytest.raises(OSError, match="too long"):
        listening.listen(f"unix:{tmp_path}/{'x' * 108}")


@pytest.mark.parametrize(
    ("host", "family"), [("127.0.0.1", socket.AF_INET), ("[::1]", socket.AF_INET6)]
)
def test_a_port(host, family) -> None:
    try:
        port = free_port(family)
    except OSError:
        pytest.skip("there is no IPv6 here")
    with listening.listen(f"{host}:{port}") as one:
        assert one.getsockname()[:2] == (host.strip("[]"), port)
        with pytest.raises(OSError, match="in use"):
            listening.listen(f"{host}:{port}")
