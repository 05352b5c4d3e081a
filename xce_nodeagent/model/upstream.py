"""The configuration of what the agent tells others: sinks of reports, metrics, a fleet's reader.

Secrets are never values here, only files that have them: this file may be read by anybody.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct

from xce_nodeagent.model import setting
from xce_nodeagent.model.setting import Fault

PREFIX = "/xce/v1/"
"""Before every key in etcd; the version is that of the layout (docs/upstream.md)."""

ATTRIBUTE = "attribute:"
"""What stands before an attribute's name in `[fleet] block`."""


class UpstreamFileConfig(Struct, frozen=True, kw_only=True):
    """`[upstream.file]`: where the inventory is written; empty for nowhere."""

    path: str = ""


class UpstreamHttpConfig(Struct, frozen=True, kw_only=True):
    """`[upstream.http]`: who gets reports by POST; an empty `url` for nobody.

    `token_file` has a bearer token. `full_seconds`: how long after a whole report the next is
    whole, too, though nothing is amiss.
    """

    url: str = ""
    token_file: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""
    full_seconds: int = 3600

    def __post_init__(self) -> None:
        _pair(self.cert, self.key)
        if not self.url and any((self.token_file, self.ca, self.cert)):
            raise Fault("url is missing: token_file, ca and cert are of no use without")
        _encrypted((self.url,), tls=(self.ca, self.cert), secret=self.token_file)


class UpstreamEtcdConfig(Struct, frozen=True, kw_only=True):
    """`[upstream.etcd]`: the members of a store; without any, nothing is reported there.

    `prefix` stands before every key. A node is taken for gone when its agent was silent for
    `lease_seconds`. `cluster_id`, where it is given, is the only cluster that is the right one.
    """

    endpoints: tuple[str, ...] = ()
    prefix: str = PREFIX
    lease_seconds: int = 30
    user: str = ""
    password_file: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""
    cluster_id: str = ""

    def __post_init__(self) -> None:
        _pair(self.cert, self.key)
        if bool(self.user) != bool(self.password_file):
            raise Fault("expected both of user and password_file, or neither")
        if not self.endpoints and any((self.user, self.ca, self.cert)):
            raise Fault("endpoints are missing: user, ca and cert are of no use without")
        _encrypted(self.endpoints, tls=(self.ca, self.cert), secret=self.password_file)


class MetricsConfig(Struct, frozen=True, kw_only=True):
    """`[metrics]`: where Prometheus may ask, and the file that its node_exporter reads."""

    listen: str = ""
    textfile: str = ""
    textfile_seconds: int = 15


class FleetConfig(Struct, frozen=True, kw_only=True):
    """`[fleet]`: how a reader of the store judges nodes.

    One whose lease ended is unavailable after `grace_seconds`. `block` gives a node's switch
    block: a regular expression with one group over its name, or `attribute:NAME` of the host.
    """

    grace_seconds: int = 60
    block: str = ""


def url(value: Any) -> str:
    """Take the URL of a receiver; raise Fault otherwise."""
    if value == "":
        return ""
    _split(value)
    return str(value)


def endpoints(value: Any) -> tuple[str, ...]:
    """Take the URLs of a store's members; raise Fault otherwise."""
    if not isinstance(value, list):
        raise Fault("expected a list of URLs, such as ['https://etcd1:2379']")
    for number, item in enumerate(value, 1):
        try:
            parts = _split(item)
        except Fault as fault:
            raise Fault(f"entry {number}, {item!r}: {fault}") from None
        if parts.path not in ("", "/") or parts.query:
            raise Fault(f"entry {number}, {item!r}: expected nothing after the host and port")
    return tuple(item.rstrip("/") for item in value)


def prefix(value: Any) -> str:
    """Take what stands before every key; raise Fault otherwise."""
    told = value if isinstance(value, str) and value.endswith("/") else f"{value}/"
    if not isinstance(value, str) or not re.fullmatch(r"/([A-Za-z0-9._-]+/)+", told):
        raise Fault(
            f"expected names of letters, digits, '.', '_' and '-' between slashes, as in {PREFIX!r}"
        )
    return told


def lease(value: Any) -> int:
    """Take the time of a lease; raise Fault otherwise.

    etcd rounds shorter ones up: a new leader must have time to be chosen.
    """
    if type(value) is not int or not 2 <= value <= 3600:
        raise Fault("expected a whole number of seconds, 2 to 3600")
    return value


def cluster(value: Any) -> str:
    """Take a cluster's id; raise Fault otherwise."""
    if not isinstance(value, str) or not re.fullmatch(r"[0-9a-f]{0,20}", value):
        raise Fault(
            "expected the id in digits, as `etcdctl endpoint status -w json` has it, or in hex"
        )
    return value


def listen(value: Any) -> str:
    """Take a place to listen at that nobody outside of the host reaches; raise Fault otherwise."""
    expected = "expected 'unix:/PATH', '127.0.0.1:PORT' or '[::1]:PORT': what answers there has"
    expected += " no password, so only this host may ask"
    if value == "":
        return ""
    if not isinstance(value, str):
        raise Fault(expected)
    if value.startswith("unix:/"):
        return f"unix:{setting.root(value.removeprefix('unix:'))}"
    found = re.fullmatch(r"([0-9.]+|\[[0-9A-Fa-f:]+\]):([0-9]{1,5})", value)
    try:
        local = found is not None and ipaddress.ip_address(found[1].strip("[]")).is_loopback
    except ValueError:
        local = False
    if found is None or not local or not 1 <= int(found[2]) <= 65_535:
        raise Fault(expected)
    return value


def textfile(value: Any) -> str:
    """Take a file for node_exporter's textfile collector; raise Fault otherwise."""
    path = setting.path(value)
    if path and not path.endswith(".prom"):
        raise Fault("expected a name that ends with .prom: node_exporter reads no other file")
    return path


def grace(value: Any) -> int:
    """Take a time from 0 to an hour, in whole seconds; raise Fault otherwise."""
    if type(value) is not int or not 0 <= value <= 3600:
        raise Fault("expected a whole number of seconds, 0 to 3600")
    return value


def block(value: Any) -> str:
    """Take what gives a node's switch block; raise Fault otherwise."""
    told = setting.text(value)
    if not told or told.startswith(ATTRIBUTE):
        if told == ATTRIBUTE:
            raise Fault("expected an attribute's name after 'attribute:'")
        return told
    try:
        groups = re.compile(told).groups
    except (re.error, RecursionError, OverflowError) as error:
        raise Fault(f"expected a regular expression: {error}") from None
    if groups != 1:
        raise Fault(
            f"expected a regular expression with one group, such as '^(r[0-9]+)', found {groups};"
            " or 'attribute:NAME'"
        )
    return told


def _split(value: Any) -> SplitResult:
    expected = "expected a URL, such as 'https://host:2379'"
    if not isinstance(value, str) or not value.isascii() or not value.isprintable():
        raise Fault(expected)
    try:
        parts = urlsplit(value)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise Fault(f"{expected}: {error}") from None
    if parts.scheme not in ("http", "https") or not host or port == 0 or " " in value:
        raise Fault(expected)
    if parts.username is not None or parts.password is not None:
        raise Fault("expected no user and no password in it: name files that have them")
    if parts.fragment:
        raise Fault("expected nothing after '#'")
    return parts


def _pair(cert: str, key: str) -> None:
    if bool(cert) != bool(key):
        raise Fault("expected both of cert and key, or neither")


def in_plain(url: str) -> bool:
    """Say whether what goes to a URL can be read on its way to another host.

    Of names `localhost` alone is this one; `127.example.org` is anybody's.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    return parts.scheme == "http" and not local


def _encrypted(urls: Iterable[str], *, tls: Iterable[str], secret: str) -> None:
    """Refuse keys that plain HTTP has no use for, and a secret that all on the way could read."""
    for one in urls:
        if any(tls) and urlsplit(one).scheme != "https":
            raise Fault(f"ca, cert and key are for https, and {one} is plain")
        if secret and in_plain(one):
            raise Fault(f"expected https: to {one} what {secret} has would go in plain")


SECTIONS: Mapping[str, tuple[str, type[Struct], Mapping[str, setting.Check]]] = {
    "upstream.file": ("upstream_file", UpstreamFileConfig, {"path": setting.path}),
    "upstream.http": (
        "upstream_http",
        UpstreamHttpConfig,
        {
            "url": url,
            "token_file": setting.path,
            "ca": setting.path,
            "cert": setting.path,
            "key": setting.path,
            "full_seconds": setting.seconds,
        },
    ),
    "upstream.etcd": (
        "upstream_etcd",
        UpstreamEtcdConfig,
        {
            "endpoints": endpoints,
            "prefix": prefix,
            "lease_seconds": lease,
            "user": setting.text,
            "password_file": setting.path,
            "ca": setting.path,
            "cert": setting.path,
            "key": setting.path,
            "cluster_id": cluster,
        },
    ),
    "metrics": (
        "metrics",
        MetricsConfig,
        {"listen": listen, "textfile": textfile, "textfile_seconds": setting.patience},
    ),
    "fleet": ("fleet", FleetConfig, {"grace_seconds": grace, "block": block}),
}
"""The sections of model/config.py that are about this."""
