"""What can go wrong with etcd: a small closed set, whatever etcd's words for it are. Pure.

etcd says a gRPC code and a text; several faults share a code (NOSPACE and a request that is too
large are both ResourceExhausted), so the text decides where the code does not. The texts are those
of etcd 3.4 and, by its sources alone, 3.5 (`api/v3rpc/rpctypes/error.go`), and stand in its API.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct


class EtcdError(Exception):
    """The root: a refusal that none of the others is. The text names the place."""

    elsewhere = False
    """Whether another member might answer better."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def say(self, reason: str) -> None:
        """Have another text."""
        self.reason = reason
        self.args = (reason,)


class Unreachable(EtcdError):
    """No answer. `certificate`: a certificate is the cause, one of ours or of theirs."""

    elsewhere = True

    def __init__(self, reason: str, *, certificate: bool = False) -> None:
        super().__init__(reason)
        self.certificate = certificate


class NoLeader(EtcdError):
    """A member that answers, but has no leader, or could not have it decided in time."""

    elsewhere = True


class Garbage(EtcdError):
    """An answer, but not etcd's."""

    elsewhere = True


class OtherCluster(EtcdError):
    """A member of another cluster than the right one; `found` is its id."""

    elsewhere = True

    def __init__(self, reason: str, *, found: int) -> None:
        super().__init__(reason)
        self.found = found


class Unauthenticated(EtcdError):
    """The user or the password is wrong, or both are wanted and none is given."""


class StaleToken(EtcdError):
    """The token ended, or the member that knew it was restarted: authenticate again."""


class AuthDisabled(EtcdError):
    """The store takes no users now."""


class NamedCertificate(EtcdError):
    """Our certificate has a common name, which the gateway refuses where the store wants users."""


class Denied(EtcdError):
    """The user may not do this."""


class NoSpace(EtcdError):
    """The database has its quota: nothing is written until somebody makes space."""


class TooLarge(EtcdError):
    """A request of more bytes or operations than the store takes."""


class Compacted(EtcdError):
    """The revision asked for is gone; `revision` is the oldest that is there, 0 if not told."""

    def __init__(self, reason: str, *, revision: int = 0) -> None:
        super().__init__(reason)
        self.revision = revision


class Future(EtcdError):
    """The revision asked for has not been yet: a store from a backup, or another one."""


class LeaseGone(EtcdError):
    """The lease ended."""


class _Told(Struct):
    """An error as the gateway has it; `grpc_code` within a stream."""

    message: str = ""
    code: int = 0
    grpc_code: int = 0
    error: _Told | str = ""


# codes of gRPC (google.golang.org/grpc/codes)
_DEADLINE, _DENIED, _EXHAUSTED, _ABORTED, _UNAVAILABLE, _UNAUTHENTICATED = 4, 7, 8, 10, 14, 16

# The one refusal of the gateway's own that is no JSON.
_COMMON_NAME = b"CommonName of client sending a request against gateway"

_BY_TEXT: tuple[tuple[str, Callable[[str], EtcdError]], ...] = (
    ("database space exceeded", NoSpace),
    ("required revision has been compacted", Compacted),
    ("required revision is a future revision", Future),
    ("requested lease not found", LeaseGone),
    ("request is too large", TooLarge),
    ("message larger than max", TooLarge),
    ("too many operations", TooLarge),
    ("permission denied", Denied),
    ("user name is empty", Unauthenticated),
    ("authentication failed", Unauthenticated),
    ("user name not found", Unauthenticated),
    ("authentication is not enabled", AuthDisabled),
    ("invalid auth token", StaleToken),
    ("revision of auth store is old", StaleToken),
    ("no leader", NoLeader),
    ("not leader", NoLeader),
    ("leader changed", NoLeader),
    ("request timed out", NoLeader),
    ("server stopped", NoLeader),
    ("unhealthy cluster", NoLeader),
    # It is behind, or has no space for it, or others ask too much at once: another may do better.
    ("too many requests", NoLeader),
    ("too many learner", NoLeader),
    ("rpc not supported for learner", NoLeader),
    ("connection refused", NoLeader),  # the gateway's, to its own member
)

_BY_CODE: dict[int, Callable[[str], EtcdError]] = {
    _DEADLINE: NoLeader,
    _UNAVAILABLE: NoLeader,
    _ABORTED: NoLeader,
    _DENIED: Denied,
    _UNAUTHENTICATED: StaleToken,
    _EXHAUSTED: TooLarge,
}


def of(place: str, code: int, message: str, *, quoting: bool = True) -> EtcdError:
    """Give the error of a gRPC code and its text, which is whole; without `quoting`, not told."""
    known = next(((part, kind) for part, kind in _BY_TEXT if part in message), None)
    part, kind = known or (f"refused with code {code}", _BY_CODE.get(code, EtcdError))
    text = message.removeprefix("etcdserver: ").removeprefix("mvcc: ") if quoting else part
    return kind(f"{place}: {text}")


def read(place: str, status: int, body: bytes, *, quoting: bool = True) -> EtcdError:
    """Give the error that stands in an answer whose status is not 200."""
    try:
        told = msgspec.json.decode(body, type=_Told)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        if body.startswith(_COMMON_NAME):
            return NamedCertificate(
                f"{place}: our certificate has a CommonName, and etcd has users"
            )
        shown = f": {body.decode('utf-8', 'replace')}" if quoting else ""
        return Garbage(f"{place}: {status}, no answer of etcd's v3 gateway{shown}")
    if isinstance(told.error, _Told):
        told = told.error
    text = told.message or str(told.error)
    return of(place, told.code or told.grpc_code, text, quoting=quoting)


_TELLING: tuple[type[EtcdError], ...] = (OtherCluster, NoLeader, Garbage, Unreachable)


def worst(failures: Sequence[EtcdError]) -> EtcdError:
    """Give the most telling of the members' errors, with the reasons of all."""
    told = min(failures, key=_rank)
    reasons = [told.reason, *(one.reason for one in failures if one is not told)]
    told.say("; ".join(dict.fromkeys(reasons)))
    return told


def _rank(error: EtcdError) -> int:
    if isinstance(error, Unreachable) and error.certificate:
        return -1
    return next(at for at, kind in enumerate(_TELLING) if isinstance(error, kind))
