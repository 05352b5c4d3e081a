"""Every error once: its stable code, its class, its exit status.

The class says whose fault it is and so what a caller does next; the exit status is the class as a
number from sysexits.h. Codes are never renamed or reused: other programs branch on them.

How to write a message: name the thing, say what was expected, and end with what to do. It is read
by an admin at three in the morning who does not know this code. Lower layers raise; whoever is on
top (the socket's server, the command line, a helper's loop) reports once.
"""

from __future__ import annotations

import errno
from enum import StrEnum
from typing import Any, ClassVar


class ErrorClass(StrEnum):
    """Whose fault an error is."""

    TRANSIENT = "transient"  # try again here
    NODE = "node"  # drain this node, run the job elsewhere
    JOB = "job"  # do not retry: no node of this shape can run it
    CALLER = "caller"  # the call itself is wrong
    DENIED = "denied"  # the caller may not do this
    CONFIG = "config"  # the configuration is wrong

    @property
    def exit_status(self) -> int:
        """The exit status of a command or hook that ends with an error of this class."""
        return EXIT_STATUS[self]


EXIT_STATUS = {
    ErrorClass.TRANSIENT: 75,  # EX_TEMPFAIL
    ErrorClass.NODE: 69,  # EX_UNAVAILABLE
    ErrorClass.JOB: 65,  # EX_DATAERR
    ErrorClass.CALLER: 64,  # EX_USAGE
    ErrorClass.DENIED: 77,  # EX_NOPERM
    ErrorClass.CONFIG: 78,  # EX_CONFIG
}


EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Error numbers of want: they say nothing of what was asked for, only that there was no room."""

_NO_THREAD = "can't start new thread"  # all that CPython says of clone(2): no number


def exhausted(error: BaseException | None) -> bool:
    """Say whether an error is want of descriptors or memory, which is no answer to any question."""
    return (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno in EXHAUSTED)
        or (isinstance(error, RuntimeError) and str(error) == _NO_THREAD)
    )


class AgentError(Exception):
    """The root of the tree. `details` holds facts for programs; the message is for people."""

    code: ClassVar[str]
    error_class: ClassVar[ErrorClass]

    def __init__(self, message: str, /, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    @property
    def exit_status(self) -> int:
        """The exit status of a command that ends with this error."""
        return self.error_class.exit_status


class Busy(AgentError):
    """An instance, or one that overlaps it, is held or quarantined now; `holders` says by whom."""

    code = "busy"
    error_class = ErrorClass.TRANSIENT


class Stale(AgentError):
    """The caller's generation is older than a change of what it names, or its attempt is over."""

    code = "stale"
    error_class = ErrorClass.TRANSIENT


class NotReady(AgentError):
    """The agent cannot answer yet, or cannot be reached."""

    code = "not_ready"
    error_class = ErrorClass.TRANSIENT


class Upstream(AgentError):
    """The store of a fleet's inventory cannot be reached, or refuses."""

    code = "upstream"
    error_class = ErrorClass.TRANSIENT


class NoFitNow(AgentError):
    """The request would fit this host, but other bindings are in the way."""

    code = "no_fit_now"
    error_class = ErrorClass.TRANSIENT


class NeverFits(AgentError):
    """This host can never satisfy the request."""

    code = "never_fits"
    error_class = ErrorClass.JOB


class Unhealthy(AgentError):
    """A named instance is unhealthy."""

    code = "unhealthy"
    error_class = ErrorClass.NODE


class Drained(AgentError):
    """A named instance was drained by an admin."""

    code = "drained"
    error_class = ErrorClass.NODE


class Reserved(AgentError):
    """A named instance is the host's own, and the configuration does not offer it to jobs."""

    code = "reserved"
    error_class = ErrorClass.CALLER


class UnknownInstance(AgentError):
    """A named instance is not in this host's inventory."""

    code = "unknown_instance"
    error_class = ErrorClass.NODE


class Conflict(AgentError):
    """This job and attempt hold something else, or the cgroup is bound already."""

    code = "conflict"
    error_class = ErrorClass.CALLER


class Enforcement(AgentError):
    """A rule cannot be applied or verified, or the ledger cannot be written."""

    code = "enforcement"
    error_class = ErrorClass.NODE


class Internal(AgentError):
    """A fault of ours: the log has the traceback."""

    code = "internal"
    error_class = ErrorClass.NODE


class BadRequest(AgentError):
    """The message or the request text is malformed."""

    code = "bad_request"
    error_class = ErrorClass.CALLER


class BadJobId(AgentError):
    """The job id or the attempt is not 1 to 128 bytes of the allowed characters."""

    code = "bad_job_id"
    error_class = ErrorClass.CALLER


class BadCgroup(AgentError):
    """The named cgroup is outside the allowed roots, missing, populated, or otherwise unusable."""

    code = "bad_cgroup"
    error_class = ErrorClass.CALLER


class BadPort(AgentError):
    """A port, its name, or the number of ports is wrong."""

    code = "bad_port"
    error_class = ErrorClass.CALLER


class NotPermitted(AgentError):
    """The caller's credentials do not allow this."""

    code = "not_permitted"
    error_class = ErrorClass.DENIED


class BadConfig(AgentError):
    """The configuration has faults; the message lists all of them, each with its line or key."""

    code = "bad_config"
    error_class = ErrorClass.CONFIG


BY_CODE: dict[str, type[AgentError]] = {
    error.code: error
    for error in (
        Busy, Stale, NotReady, NoFitNow, NeverFits, Unhealthy, Drained, Reserved, UnknownInstance,
        Conflict, Enforcement, Internal, BadRequest, BadJobId, BadCgroup, BadPort, NotPermitted,
        BadConfig, Upstream,
    )
}  # fmt: skip
"""The closed list, for those who turn a code from a wire back into an error."""
