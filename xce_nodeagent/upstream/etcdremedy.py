"""What is told of an error of etcd's, and what somebody should do about it. Pure."""

from __future__ import annotations

from xce_nodeagent.upstream.etcderror import (
    Denied,
    EtcdError,
    Garbage,
    NamedCertificate,
    NoLeader,
    NoSpace,
    OtherCluster,
    TooLarge,
    Unauthenticated,
    Unreachable,
)
from xce_nodeagent.upstream.sink import Undelivered

_REMEDIES: dict[type[EtcdError], str] = {
    Unreachable: (
        "is etcd up, and does [upstream.etcd] endpoints name its client URLs? endpoints that change"
        " in the configuration file are taken without a restart"
    ),
    NoLeader: "more than half of etcd's members must be up and reach each other",
    Garbage: "[upstream.etcd] endpoints are to be client URLs of etcd 3.4 or later, not its peers'",
    NamedCertificate: (
        "where etcd has users and --client-cert-auth, its gateway takes only certificates whose"
        " subject has no CN: give the agent one, with its names in subjectAltName"
    ),
    OtherCluster: (
        "take the endpoints of other clusters out of [upstream.etcd]; where the store was made"
        " anew, set its cluster_id, or restart the agent"
    ),
    NoSpace: (
        "the database has its quota: `etcdctl compact`, `etcdctl defrag`, `etcdctl alarm disarm`,"
        " or a larger --quota-backend-bytes; the report goes on by itself"
    ),
    TooLarge: "etcd is to have --max-request-bytes and --max-txn-ops of at least its defaults",
}

_HOPELESS = (
    NoSpace, TooLarge, Garbage, OtherCluster, Unauthenticated, NamedCertificate, Denied,
)  # fmt: skip


def undelivered(error: EtcdError, *, prefix: str, user: str) -> Undelivered:
    """Give a failure as `doctor` shows it. `user` is empty where none is configured."""
    if isinstance(error, Unauthenticated):
        remedy = (
            f"set the password anew (`etcdctl user passwd {user}`), and write it to password_file"
            if user
            else "etcd wants a user: set [upstream.etcd] user and password_file"
        )
    elif isinstance(error, Denied):
        remedy = (
            f"the role of user {user or '(none)'} needs readwrite on this node's keys below"
            f" {prefix} (the exact grants are in docs/upstream.md)"
        )
    elif isinstance(error, Unreachable) and error.certificate:
        remedy = "renew the certificate: the files are read anew by themselves"
    else:
        remedy = next((text for kind, text in _REMEDIES.items() if isinstance(error, kind)), "")
    hopeless = isinstance(error, _HOPELESS)
    if isinstance(error, Unreachable):
        hopeless = error.certificate
    return Undelivered(error.reason, remedy=remedy, hopeless=hopeless)
