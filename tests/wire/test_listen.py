"""The socket's file: what may be replaced, and what is somebody else's."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from pathlib import Path

import pytest
from wire.client import Client

from xce_nodeagent.daemon.server import Limits, Server, listen
from xce_nodeagent.errors import BadConfig, Conflict


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
