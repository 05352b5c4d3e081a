"""The loop of a helper: one request, one answer, in order, until the other end is closed.

It blocks in the kernel while there is nothing to do.
"""

from __future__ import annotations

import errno
import os
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from xce_nodeagent.errors import AgentError, Internal, NotReady, exhausted
from xce_nodeagent.privileged.channel import Channel, Violation, decode, encode
from xce_nodeagent.privileged.ops import EXHAUSTED, Failed

EXIT_CLOSED = 0
"""The other end was closed: all is well."""
EXIT_FAULT = 70  # EX_SOFTWARE
"""A fault of ours, or of a library. It was answered; the next helper starts afresh."""
EXIT_VIOLATION = 76  # EX_PROTOCOL
"""A request that is no request of this role, is too long, or leaves the roots."""

Log = Callable[[str], None]


class Last(Exception):  # it is no failure of ours
    """Raised by a helper's work that must end: give this answer first."""

    def __init__(self, answer: msgspec.Struct) -> None:
        super().__init__(answer)
        self.answer = answer


class Work(Protocol):
    """What a helper does. The descriptors are closed when `handle` returns."""

    def handle(self, request: Any, fds: Sequence[int]) -> msgspec.Struct:
        """Carry out a request.

        An AgentError becomes a `Failed`, Last an answer with which the helper ends; Violation ends
        it without one.
        """
        ...

    def close(self) -> None:
        """Let go of everything. What is enforced stays."""
        ...


def log_to_stderr(role: str) -> Log:
    """Give a log that writes lines with the role and pid in front."""

    def log(message: str) -> None:
        line = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in message)
        try:
            os.write(2, f"{role}[{os.getpid()}]: {line}\n".encode(errors="replace"))
        except OSError:
            return  # nobody reads the log any more, and the work goes on

    return log


def serve(channel: Channel, requests: Any, work: Work, log: Log) -> int:
    """Answer requests of the type `requests`; give the exit status."""
    decoder = msgspec.msgpack.Decoder(requests)
    try:
        while (packet := channel.receive()) is not None:
            try:
                request = decode(decoder, packet.data)
                if packet.cut:
                    full = OSError(errno.EMFILE, "a descriptor came and there is no room for it")
                    answer, fault = _out_of(request, full, log), True
                else:
                    answer, fault = _answer(work, request, packet.descriptors, log)
            finally:
                packet.close()
            channel.send(answer)
            if fault:
                return EXIT_FAULT
    except Violation as violation:
        log(f"violation, ending: {violation}")
        return EXIT_VIOLATION
    except (BrokenPipeError, ConnectionResetError):
        return EXIT_CLOSED  # nobody waits for the answer
    finally:
        work.close()
    return EXIT_CLOSED


def _answer(
    work: Work, request: msgspec.Struct, descriptors: Sequence[int], log: Log
) -> tuple[bytes, bool]:
    """Give the answer's bytes, and whether a fault of ours ends this helper."""
    try:
        return encode(work.handle(request, descriptors)), False
    except AgentError as error:
        if exhausted(error.__cause__):
            return _out_of(request, error.__cause__, log), True
        return encode(Failed(error.code, error.message, error.details)), False
    except Violation:
        raise
    except Last as last:
        return encode(last.answer), True
    except Exception as error:  # noqa: BLE001  # whatever it is, the agent must be told
        if exhausted(error):
            return _out_of(request, error, log), True
        for line in traceback.format_exc().splitlines():
            log(line)
        message = f"{type(request).__name__}: {type(error).__name__}: {error}; the log has more"
        return encode(Failed(Internal.code, message[:1000])), True


def _out_of(request: msgspec.Struct, error: BaseException | None, log: Log) -> bytes:
    """Give the answer of a helper that has no descriptors or memory left: another does it again.

    It ends by that: what it lacks may have leaked, or somebody gave this one less than the others.
    """
    why = f"{type(request).__name__}: {str(error) or type(error).__name__}"
    log(f"out of descriptors or memory, ending: {why}")
    return encode(Failed(NotReady.code, why[:1000], {EXHAUSTED: True}))
