"""Why there is no answer from a place, in words, and whose matter that is."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Callable
from typing import Any


class NoAnswer(Exception):
    """There is no answer that could be used; the text names the place and says why.

    `certificate`: a certificate is the cause, one of ours or of theirs, so that only somebody can
    help. `begun`: the request may have got there, and may have been carried out. `large`: there is
    an answer, of more bytes than may be. `late`: it did not come in time. `partial`: of a line of a
    stream, only a part did. `status` and `body` are
    those of an answer where a stream was asked for.
    """

    def __init__(
        self,
        reason: str,
        *,
        certificate: bool = False,
        begun: bool = False,
        large: bool = False,
        late: bool = False,
        status: int = 0,
        body: bytes = b"",
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.certificate = certificate
        self.begun = begun
        self.large = large
        self.late = late
        self.partial = False
        self.status = status
        self.body = body


class Unresolved(TimeoutError):
    """Nobody said in time which addresses a name has."""


def blames_certificate(error: BaseException) -> bool:
    """Say whether TLS failed by a certificate: theirs by our judgement, or ours by theirs."""
    if not isinstance(error, ssl.SSLError):
        return False
    reason = error.reason or ""
    return "CERT" in reason or reason.endswith("UNKNOWN_CA")


_SAID: dict[type[BaseException], Callable[[Any], str]] = {
    ssl.SSLCertVerificationError: lambda error: (
        f"its certificate is not accepted: {error.verify_message}"
    ),
    ssl.SSLError: lambda error: f"TLS: {(error.reason or str(error)).lower().replace('_', ' ')}",
    Unresolved: lambda _: "the name is not resolved in time",
    TimeoutError: lambda _: "no answer in time",
    socket.gaierror: lambda error: f"the name is not known: {error.strerror}",
    http.client.RemoteDisconnected: lambda _: "it ended the connection without an answer",
    http.client.IncompleteRead: lambda _: "it ended the connection within its answer",
    http.client.HTTPException: lambda error: f"no HTTP: {type(error).__name__} {error}",
}


def words(error: BaseException) -> str:
    """Give a failure as people say it; what the other side said is whole (`secret.Secrets`)."""
    for kind in type(error).__mro__:
        if kind in _SAID:
            return _SAID[kind](error)
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or repr(error)
