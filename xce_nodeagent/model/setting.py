"""What a value in the configuration may be: a check for each kind, which gives the value."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any, get_args

from xce_nodeagent.model.declaration import PATTERN
from xce_nodeagent.model.policy import Policy, changed

Check = Callable[[Any], Any]


class Fault(Exception):
    """A value is wrong; the text says what was expected."""


class Faults(Fault):
    """Some values of a table are wrong; each has its name in front."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


def text(value: Any) -> str:
    """Take one line of text; raise Fault otherwise."""
    if not isinstance(value, str) or not value.isprintable():
        raise Fault("expected a string on one line, and nothing that a terminal would obey")
    return value


def path(value: Any) -> str:
    """Take an absolute path, or nothing; raise Fault otherwise."""
    if value == "":
        return ""
    # Some become variables of a job, which have a line each.
    if not isinstance(value, str) or not value.startswith("/") or not value.isprintable():
        raise Fault("expected an absolute path, and nothing in it that a terminal would obey")
    if ".." in value.split("/"):
        raise Fault("expected a path without '..'")
    return value.rstrip("/") or "/"


def root(value: Any) -> str:
    """Take a folder that is not the root; raise Fault otherwise."""
    folder = path(value)
    if folder == "/":
        raise Fault("expected a folder below the root of the file system")
    return folder


def roots(value: Any) -> tuple[str, ...]:
    """Take folders that are not the root; raise Fault otherwise."""
    if not isinstance(value, list):
        raise Fault("expected a list of absolute paths")
    return tuple(root(item) for item in value)


def user(value: Any) -> str:
    """Take the name of an account; raise Fault otherwise."""
    if not isinstance(value, str) or not re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", value):
        raise Fault("expected the name of an account")
    return value


def uids(value: Any) -> tuple[int, ...]:
    """Take user ids; raise Fault otherwise."""
    if not isinstance(value, list) or not all(
        type(item) is int and 0 <= item < 1 << 32 for item in value
    ):
        raise Fault("expected a list of user ids, such as [0, 991]")
    return tuple(value)


def seconds(value: Any) -> int:
    """Take a time from 0 to ten years, in whole seconds; raise Fault otherwise."""
    if type(value) is not int or not 0 <= value <= 10 * 365 * 86_400:
        raise Fault("expected a whole number of seconds, 0 (not at all) to ten years")
    return value


def patience(value: Any) -> int:
    """Take a time from a second to an hour, in whole seconds; raise Fault otherwise."""
    if type(value) is not int or not 1 <= value <= 3600:
        raise Fault("expected a whole number of seconds, 1 to 3600")
    return value


def grace(value: Any) -> int:
    """Take a time from 0 to an hour, in whole seconds; raise Fault otherwise."""
    if type(value) is not int or not 0 <= value <= 3600:
        raise Fault("expected a whole number of seconds, 0 (SIGKILL at once) to 3600")
    return value


def programs(value: Any) -> tuple[str, ...]:
    """Take names of programs; raise Fault otherwise."""
    expected = "programs' names as `ps -o comm` has them, of 1 to 15 bytes each"
    if not isinstance(value, list):
        raise Fault(f"expected a list of {expected}")
    for number, item in enumerate(value, 1):
        if not isinstance(item, str):
            raise Fault(f"entry {number}, {item!r}: expected {expected}")
        if (
            not item.isprintable() or not 0 < len(item.encode()) <= 15
        ):  # TASK_COMM_LEN is 16, with a NUL
            raise Fault(
                f"entry {number}, {item!r} ({len(item.encode())} bytes): expected {expected}"
            )
    return tuple(value)


def command(value: Any) -> tuple[str, ...]:
    """Take a program and its arguments; raise Fault otherwise."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise Fault("expected a list, such as ['/usr/local/sbin/probe', '--json']")
    if not value or not value[0].startswith("/") or any("\0" in item for item in value):
        raise Fault("expected the absolute path of a program first, then its arguments")
    return tuple(value)


def nodes(value: Any) -> tuple[str, ...]:
    """Take patterns for device nodes; raise Fault otherwise."""
    if not isinstance(value, list) or not all(
        isinstance(item, str) and re.search(PATTERN, item) for item in value
    ):
        raise Fault(
            "expected a list of paths below /dev, such as ['/dev/xdma*']; what follows /dev/ must"
            " begin with a letter or digit"
        )
    return tuple(value)


def count(value: Any) -> int:
    """Take a count; raise Fault otherwise."""
    if type(value) is not int or not 0 <= value <= 1 << 31:
        raise Fault("expected a whole number, 0 for never")
    return value


def policy(value: Any) -> dict[str, Policy]:
    """Take changes of the policy of health; raise Fault otherwise."""
    if not isinstance(value, dict):
        raise Fault("expected a table, such as { xid-31 = 'unhealthy slice quiet 3600' }")
    found, faults = changed(value)
    if faults:
        raise Faults(faults)
    return found


def globs(value: Any) -> tuple[str, ...]:
    """Take patterns for NICs; raise Fault otherwise."""
    if not isinstance(value, list) or not all(
        isinstance(item, str) and item.isprintable() and item and " " not in item for item in value
    ):
        raise Fault(
            "expected a list of ids, interfaces or RDMA devices, such as ['0000:18:00.0', 'eth*']"
        )
    return tuple(value)


def names_by_rail(value: Any) -> tuple[str, ...]:
    """Take names of NICs, an entry for each rail; raise Fault otherwise."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise Fault("expected a list of names, one entry for each rail, such as ['mlx5_0']")
    named = [name.strip() for item in value for name in item.split(",") if name.strip()]
    if twice := [name for name, count in Counter(named).items() if count > 1]:
        raise Fault(f"{', '.join(twice)}: expected each NIC on one rail")
    return tuple(value)


def port_range(value: Any) -> tuple[int, int]:
    """Take a range of ports; raise Fault otherwise."""
    if not isinstance(value, str) or not (m := re.fullmatch(r"(\d{1,5})-(\d{1,5})", value)):
        raise Fault("expected FIRST-LAST, such as '20000-20999'")
    first, last = int(m[1]), int(m[2])
    if not 1 <= first <= last <= 65_535:  # a port has 16 bits
        raise Fault("expected FIRST-LAST with 1 <= FIRST <= LAST <= 65535")
    return first, last


def profile(value: Any) -> str:
    """Take the name of a profile; raise Fault otherwise."""
    if not isinstance(value, str) or not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,63}", value):
        raise Fault("expected the name of a profile, such as 'dgx-h100'")
    return value


def one_of(choices: Any) -> Check:
    """Give a check for one of the values of a Literal."""
    allowed = get_args(choices)

    def check(value: Any) -> Any:
        if value not in allowed:
            raise Fault(f"expected one of {', '.join(map(repr, allowed))}")
        return value

    return check
