"""A caller of the agent: one question on one connection, waited for by nobody."""

from __future__ import annotations

import json
import select
import socket
from typing import Any


class Call:
    """A call on its way. `state` is asked, answered, refused, or lost: then nobody knows."""

    def __init__(self, path: str, method: str, parameters: dict[str, Any]) -> None:
        self.method = method
        self.parameters = parameters
        self.answer: dict[str, Any] = {}
        self.state = "asked"
        self._data = b""
        self._socket = socket.socket(socket.AF_UNIX)
        message = {"method": f"io.xce.NodeAgent.{method}", "parameters": parameters}
        try:
            self._socket.connect(path)
            self._socket.sendall(json.dumps(message).encode() + b"\0")
            self._socket.settimeout(0)
        except OSError:
            self._end("lost")

    @property
    def code(self) -> str:
        """The pinned code of a refusal."""
        return str(self.answer.get("code", "")) if self.state == "refused" else ""

    def fileno(self) -> int:
        return self._socket.fileno()

    def read(self) -> None:
        """Take what has come."""
        try:
            chunk = self._socket.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        self._data += chunk
        if not chunk:
            self._end("lost")
        elif self._data.endswith(b"\0"):
            answer = json.loads(self._data[:-1])
            self.answer = answer.get("parameters", {})
            self._end("refused" if "error" in answer else "answered")

    def _end(self, state: str) -> None:
        self.state = state
        self._socket.close()

    def drop(self) -> None:
        """Go away without waiting, as a worker that dies."""
        if self.state == "asked":
            self._end("lost")


def wait(calls: list[Call], milliseconds: float) -> bool:
    """Read what comes within a time; say whether every call has ended."""
    open_ones = [call for call in calls if call.state == "asked"]
    if not open_ones:
        return True
    poll = select.poll()
    by_number = {}
    for call in open_ones:
        by_number[call.fileno()] = call
        poll.register(call.fileno(), select.POLLIN)
    for number, _ in poll.poll(milliseconds):
        by_number[number].read()
    return all(call.state != "asked" for call in calls)
