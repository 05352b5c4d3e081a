"""A plain client of the socket: it says what a test wants it to."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from typing import Any, Self

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


def code(reply: dict[str, Any]) -> str:
    assert reply["error"].startswith(f"{OURS}."), reply
    assert set(reply["parameters"]) == {"code", "class", "message", "details"}
    return reply["parameters"]["code"]


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
