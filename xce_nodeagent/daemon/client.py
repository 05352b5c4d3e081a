"""A blocking client of the socket, for the commands. Standard library only, to start fast."""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import time
from typing import Any

from xce_nodeagent.errors import BY_CODE, AgentError, BadRequest, Internal, NotPermitted, NotReady

INTERFACE = "io.xce.NodeAgent"
_CONNECT_SECONDS = 0.9  # a caller hears within a second that there is no agent


def call(
    method: str,
    parameters: dict[str, Any],
    socket_path: str,
    timeout: float = 30.0,
) -> dict[str, Any]:
    """Call a method of the interface, such as `Prepare`, and give its answer.

    Parameters that are None are left out. Raise the agent's errors as they are, NotReady when
    no agent can be reached or it does not answer within `timeout` seconds. Its `details` then
    have `unanswered` where the call went out: what was asked may have been done.
    """
    given = {name: value for name, value in parameters.items() if value is not None}
    message = json.dumps({"method": f"{INTERFACE}.{method}", "parameters": given})
    with socket.socket(socket.AF_UNIX) as sock:
        _connect(sock, socket_path)
        answer = _exchange(sock, message.encode() + b"\0", socket_path, timeout)
    try:
        reply = json.loads(answer)
        if "error" in reply:
            raise _error(reply["error"], reply.get("parameters") or {})
        return reply.get("parameters") or {}
    except (ValueError, TypeError, AttributeError) as error:
        raise Internal(f"socket {socket_path}: an answer that is no Varlink: {error}") from None


def _wait_at_most(sock: socket.socket, seconds: float) -> None:
    """Let the kernel keep the time: one call for each read, and connect waits as well.

    With Python's own timeout a unix socket whose queue is full would refuse at once (EAGAIN).
    """
    micros = max(1, int(seconds * 1e6))  # 0 would mean for ever
    timeval = struct.pack("ll", *divmod(micros, 1_000_000))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)


def _connect(sock: socket.socket, path: str) -> None:
    _wait_at_most(sock, _CONNECT_SECONDS)
    try:
        sock.connect(path)
    except FileNotFoundError:
        raise NotReady(
            f"no agent: there is no socket {path}\n"
            f"start the agent with `{_start()}`, or say with --socket or XCE_NODEAGENT_SOCKET"
            " where it is",
            socket=path,
        ) from None
    except PermissionError:
        raise NotPermitted(
            f"socket {path}: user {os.geteuid()} may not connect\n"
            "the folders above it must let everybody pass (mode 0755)",
            socket=path,
        ) from None
    except OSError as error:
        if error.errno is None:  # longer than the 107 bytes of sun_path (unix(7))
            raise BadRequest(f"socket {path}: {error}; give a shorter path", socket=path) from None
        if _is_something_else(path):
            raise BadRequest(
                f"{path} is not a socket\n"
                "say with --socket or XCE_NODEAGENT_SOCKET where the agent's is",
                socket=path,
            ) from None
        see = "see `systemctl status xce-nodeagent`" if _systemd() else f"start it: `{_start()}`"
        raise NotReady(
            f"no agent: socket {path}: {error.strerror}\nthe agent has ended or is starting; {see}",
            socket=path,
        ) from None


def _is_something_else(path: str) -> bool:
    try:
        return not stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


def _systemd() -> bool:
    """Say whether systemd runs this host (sd_booted(3))."""
    return os.path.isdir("/run/systemd/system")


def _start() -> str:
    return "systemctl start xce-nodeagent" if _systemd() else "xce-nodeagent run"


def _exchange(sock: socket.socket, message: bytes, path: str, timeout: float) -> bytes:
    until = time.monotonic() + timeout
    _wait_at_most(sock, timeout)
    try:
        sock.sendall(message)
    except BlockingIOError:
        raise _late(path, timeout) from None
    except OSError:
        pass  # the agent has cut us off, and may have said why: read on
    answer = b""
    while True:
        try:
            chunk = sock.recv(262144)
        except BlockingIOError:
            raise _late(path, timeout) from None
        except OSError:
            chunk = b""
        if not chunk:
            raise NotReady(
                f"socket {path}: the agent ended the connection without an answer\n"
                "what was asked may have been done; ask again, that is safe",
                socket=path,
                unanswered=True,
            )
        answer += chunk
        if answer.endswith(b"\0"):
            return answer[:-1]
        if (left := until - time.monotonic()) <= 0:
            raise _late(path, timeout)
        _wait_at_most(sock, left)


def _late(path: str, timeout: float) -> NotReady:
    return NotReady(
        f"socket {path}: the agent has not answered for {timeout:g} s\n"
        "what was asked may still be done; ask again, that is safe",
        socket=path,
        unanswered=True,
    )


def _error(name: str, facts: dict[str, Any]) -> AgentError:
    if kind := BY_CODE.get(facts.get("code", "")):
        # A detail named as a parameter of ours must not stop us from telling the error.
        error = kind(str(facts.get("message", name)))
        error.details = dict(facts.get("details") or {})
        return error
    return BadRequest(f"the agent answered {name} {facts}; it may be of another version")
