"""What is told of an error of etcd's, and what somebody should do about it. Pure.

Who reads a fleet and the agent that reports to it have the same errors; what helps is told to each
in its own place.
"""

from __future__ import annotations

from msgspec import Struct

from xce_nodeagent.upstream.etcderror import (
    Denied,
    EtcdError,
    Garbage,
    NamedCertificate,
    NoLeader,
    NoSpace,
    OtherCluster,
    StaleToken,
    TooLarge,
    Unauthenticated,
    Unreachable,
)
from xce_nodeagent.upstream.sink import Undelivered

_HOPELESS = (
    NoSpace, TooLarge, Garbage, OtherCluster, Unauthenticated, NamedCertificate, Denied,
)  # fmt: skip


_LOOK_AT_USER = "look at user and password_file of {section}"


class Asker(Struct, frozen=True, kw_only=True):
    """Who asked etcd: an agent, or who only `reads`.

    `user` is empty where none is configured; `section` is where the configuration is, for people.
    """

    reads: bool = False
    prefix: str
    user: str = ""
    section: str = "[upstream.etcd]"


class _Words(Struct, frozen=True):
    """What is told to an agent's admin and, where that is something else, to a fleet's reader."""

    agent: str
    reader: str = ""


_CERTIFICATE = _Words(
    "renew the certificate: the files are read anew by themselves",
    "look at ca, cert and key of {section}",
)
_NO_USER = _Words("etcd wants a user: set {section} user and password_file", _LOOK_AT_USER)
_NOTHING = _Words("", "see that it runs, or name others with --endpoint; then try again")
_WORDS: dict[type[EtcdError], _Words] = {
    Unreachable: _Words(
        "is etcd up, and does {section} endpoints name its client URLs? endpoints that change in"
        " the configuration file are taken without a restart",
        _NOTHING.reader,
    ),
    NoLeader: _Words("more than half of etcd's members must be up and reach each other"),
    Garbage: _Words(
        "{section} endpoints are to be client URLs of etcd 3.4 or later, not its peers'",
        "endpoints of {section}, or --endpoint, are to be client URLs of etcd 3.4 or later, not"
        " its peers'",
    ),
    NamedCertificate: _Words(
        "where etcd has users and --client-cert-auth, its gateway takes only certificates whose"
        " subject has no CN: give the agent one, with its names in subjectAltName",
        "where etcd has users and --client-cert-auth, its gateway takes only certificates whose"
        " subject has no CN: name one without in {section}",
    ),
    OtherCluster: _Words(
        "take the endpoints of other clusters out of {section}; where the store was made anew, set"
        " its cluster_id, or restart the agent",
        "look at endpoints and cluster_id of {section}",
    ),
    NoSpace: _Words(
        "the database has its quota: `etcdctl compact`, `etcdctl defrag`, `etcdctl alarm disarm`,"
        " or a larger --quota-backend-bytes; the report goes on by itself"
    ),
    TooLarge: _Words(
        "etcd is to have --max-request-bytes and --max-txn-ops of at least its defaults"
    ),
    Unauthenticated: _Words(
        "set the password anew (`etcdctl user passwd {user}`), and write it to password_file",
        _LOOK_AT_USER,
    ),
    StaleToken: _Words("", _LOOK_AT_USER),
    Denied: _Words(
        "the role of user {user} needs readwrite on this node's keys below {prefix} (the exact"
        " grants are in docs/upstream.md)",
        "the user of {section} needs a role with the right to read (for --forget, to write) what"
        " is below {prefix}",
    ),
}


def remedy(error: EtcdError, asker: Asker) -> str:
    """Say what helps; empty for what an agent mends by itself."""
    if isinstance(error, Unreachable) and error.certificate:
        words = _CERTIFICATE
    elif isinstance(error, Unauthenticated) and not asker.user:
        words = _NO_USER
    else:
        words = _WORDS.get(type(error), _NOTHING)
    told = (words.reader if asker.reads else "") or words.agent
    return told.format(prefix=asker.prefix, user=asker.user or "(none)", section=asker.section)


def undelivered(error: EtcdError, *, prefix: str, user: str) -> Undelivered:
    """Give a failure of an agent's as `doctor` shows it. `user` is empty for none."""
    hopeless = isinstance(error, _HOPELESS)
    if isinstance(error, Unreachable):
        hopeless = error.certificate
    told = remedy(error, Asker(prefix=prefix, user=user))
    return Undelivered(error.reason, remedy=told, hopeless=hopeless)
