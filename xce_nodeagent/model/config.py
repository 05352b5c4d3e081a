"""The configuration: one frozen value, read once, checked whole, all faults reported together.

Agent and supervisor each parse the file by themselves, so that neither must believe the other.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from msgspec import Struct

from xce_nodeagent.errors import BadConfig
from xce_nodeagent.model.policy import Policy, changed

EnforcementPolicy = Literal["required", "best-effort", "off"]
KillPolicy = Literal["none", "on-request", "term-then-kill"]


class AgentConfig(Struct, frozen=True, kw_only=True):
    """`[agent]`. An empty `cgroup_root` means: the jobs' unit, or a place of our own."""

    user: str = "xce-nodeagent"
    cgroup_root: str = ""
    cgroup_allowed_roots: tuple[str, ...] = ()
    enforcement: EnforcementPolicy = "required"
    attempt_memory_seconds: int = 86_400
    library_seconds: int = 60
    node: str = ""


class AccessConfig(Struct, frozen=True, kw_only=True):
    """`[access]`: who may prepare and release, by uid. Root and the agent's own user always may."""

    prepare_uids: tuple[int, ...] = (0,)


class PortsConfig(Struct, frozen=True, kw_only=True):
    """`[ports]`: no managed range without configuration."""

    range: tuple[int, int] | None = None
    guard_root: str = ""


class NicConfig(Struct, frozen=True, kw_only=True):
    """`[nic]`: which NICs jobs may have, whatever the host needs, and which it keeps.

    Each entry is a glob for an instance's id, interface, or RDMA device. `reserve` goes before
    `offer`.
    """

    offer: tuple[str, ...] = ()
    reserve: tuple[str, ...] = ()


class ReleaseConfig(Struct, frozen=True, kw_only=True):
    """`[release]`: what becomes of processes that outlive their job.

    `kill`: never ended by us, only where the release asks for it, or always; after SIGTERM they
    have `kill_grace_seconds`. `residents` are names of programs that may have devices open whoever
    holds them, such as a vendor's daemon.
    """

    kill: KillPolicy = "none"
    kill_grace_seconds: int = 10
    residents: tuple[str, ...] = ()


class EnvironmentConfig(Struct, frozen=True, kw_only=True):
    """`[environment]`: whether CUDA_VISIBLE_DEVICES names UUIDs, or indexes in PCI order."""

    visible_devices: Literal["uuid", "index"] = "uuid"


class HealthConfig(Struct, frozen=True, kw_only=True):
    """`[health]`: what makes a card unhealthy (model/health.py has the defaults' meaning).

    `policy` changes rows of the table in model/policy.py.
    """

    policy: dict[str, Policy] = {}
    thermal_seconds: int = 60
    cool_seconds: int = 300
    lost_seconds: int = 60
    corrected_per_hour: int = 10_000


class SimulateConfig(Struct, frozen=True, kw_only=True):
    """`[simulate]`: a profile whose instances are added to the real ones."""

    profile: str = ""
    device_directory: str = "/dev/xce-sim"


class UpstreamFileConfig(Struct, frozen=True, kw_only=True):
    """`[upstream.file]`: where the inventory is written; empty for nowhere."""

    path: str = ""


class Config(Struct, frozen=True, kw_only=True):
    """The whole configuration."""

    agent: AgentConfig = AgentConfig()
    access: AccessConfig = AccessConfig()
    ports: PortsConfig = PortsConfig()
    nic: NicConfig = NicConfig()
    release: ReleaseConfig = ReleaseConfig()
    environment: EnvironmentConfig = EnvironmentConfig()
    health: HealthConfig = HealthConfig()
    simulate: SimulateConfig = SimulateConfig()
    upstream_file: UpstreamFileConfig = UpstreamFileConfig()


Check = Callable[[Any], Any]


class _Fault(Exception):
    """A value is wrong; the text says what was expected."""


class _Faults(_Fault):
    """Some values of a table are wrong; each has its name in front."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


def _text(value: Any) -> str:
    if not isinstance(value, str) or "\0" in value or "\n" in value:
        raise _Fault("expected a string on one line")
    return value


def _path(value: Any) -> str:
    if value == "":
        return ""
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        raise _Fault("expected an absolute path")
    if ".." in value.split("/"):
        raise _Fault("expected a path without '..'")
    return value.rstrip("/") or "/"


def _root(value: Any) -> str:
    path = _path(value)
    if path == "/":
        raise _Fault("expected a folder below the root of the file system")
    return path


def _roots(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _Fault("expected a list of absolute paths")
    return tuple(_root(item) for item in value)


def _user(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", value):
        raise _Fault("expected the name of an account")
    return value


def _uids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(
        type(item) is int and 0 <= item < 1 << 32 for item in value
    ):
        raise _Fault("expected a list of user ids, such as [0, 991]")
    return tuple(value)


def _seconds(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= 10 * 365 * 86_400:
        raise _Fault("expected a whole number of seconds, 0 (not at all) to ten years")
    return value


def _patience(value: Any) -> int:
    if type(value) is not int or not 1 <= value <= 3600:
        raise _Fault("expected a whole number of seconds, 1 to 3600")
    return value


def _grace(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= 3600:
        raise _Fault("expected a whole number of seconds, 0 (SIGKILL at once) to 3600")
    return value


def _programs(value: Any) -> tuple[str, ...]:
    expected = "programs' names as `ps -o comm` has them, of 1 to 15 bytes each"
    if not isinstance(value, list):
        raise _Fault(f"expected a list of {expected}")
    for number, item in enumerate(value, 1):
        if not isinstance(item, str):
            raise _Fault(f"entry {number}, {item!r}: expected {expected}")
        if (
            not item.isprintable() or not 0 < len(item.encode()) <= 15
        ):  # TASK_COMM_LEN is 16, with a NUL
            raise _Fault(
                f"entry {number}, {item!r} ({len(item.encode())} bytes): expected {expected}"
            )
    return tuple(value)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= 1 << 31:
        raise _Fault("expected a whole number, 0 for never")
    return value


def _policy(value: Any) -> dict[str, Policy]:
    if not isinstance(value, dict):
        raise _Fault("expected a table, such as { xid-31 = 'unhealthy slice quiet 3600' }")
    found, faults = changed(value)
    if faults:
        raise _Faults(faults)
    return found


def _globs(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(
        isinstance(item, str) and item.isprintable() and item and " " not in item for item in value
    ):
        raise _Fault(
            "expected a list of ids, interfaces or RDMA devices, such as ['0000:18:00.0', 'eth*']"
        )
    return tuple(value)


def _port_range(value: Any) -> tuple[int, int]:
    if not isinstance(value, str) or not (m := re.fullmatch(r"(\d{1,5})-(\d{1,5})", value)):
        raise _Fault("expected FIRST-LAST, such as '20000-20999'")
    first, last = int(m[1]), int(m[2])
    if not 1 <= first <= last <= 65_535:  # a port has 16 bits
        raise _Fault("expected FIRST-LAST with 1 <= FIRST <= LAST <= 65535")
    return first, last


def _profile(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,63}", value):
        raise _Fault("expected the name of a profile, such as 'dgx-h100'")
    return value


def _one_of(choices: Any) -> Check:
    allowed = get_args(choices)

    def check(value: Any) -> Any:
        if value not in allowed:
            raise _Fault(f"expected one of {', '.join(map(repr, allowed))}")
        return value

    return check


SECTIONS: Mapping[str, tuple[str, type[Struct], Mapping[str, Check]]] = {
    "agent": (
        "agent",
        AgentConfig,
        {
            "user": _user,
            "cgroup_root": _root,
            "cgroup_allowed_roots": _roots,
            "enforcement": _one_of(EnforcementPolicy),
            "attempt_memory_seconds": _seconds,
            "library_seconds": _patience,
            "node": _text,
        },
    ),
    "access": ("access", AccessConfig, {"prepare_uids": _uids}),
    "ports": ("ports", PortsConfig, {"range": _port_range, "guard_root": _root}),
    "nic": ("nic", NicConfig, {"offer": _globs, "reserve": _globs}),
    "release": (
        "release",
        ReleaseConfig,
        {
            "kill": _one_of(KillPolicy),
            "kill_grace_seconds": _grace,
            "residents": _programs,
        },
    ),
    "environment": (
        "environment",
        EnvironmentConfig,
        {"visible_devices": _one_of(Literal["uuid", "index"])},
    ),
    "health": (
        "health",
        HealthConfig,
        {
            "policy": _policy,
            "thermal_seconds": _seconds,
            "cool_seconds": _seconds,
            "lost_seconds": _seconds,
            "corrected_per_hour": _count,
        },
    ),
    "simulate": ("simulate", SimulateConfig, {"profile": _profile, "device_directory": _root}),
    "upstream.file": ("upstream_file", UpstreamFileConfig, {"path": _path}),
}
"""Every section and key that there is: field of `Config`, its type, and a check for each key."""


def parse(text: str, name: str) -> Config:
    """Read a configuration. Raise BadConfig with all faults, each with its line or key."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # A file that is not TOML has one fault that can be told: tomllib stops at the first,
        # and its message names line and column.
        raise BadConfig(
            f"{name}: not TOML: {error}", faults=[f"{name}: not TOML: {error}"]
        ) from None
    faults: list[str] = []
    fields: dict[str, Struct] = {}
    for section, keys in _sections(document, faults):
        if section not in SECTIONS:
            known = ", ".join(f"[{known}]" for known in SECTIONS)
            faults.append(f"[{section}]: unknown section; there are {known}")
            continue
        field, kind, checks = SECTIONS[section]
        values: dict[str, Any] = {}
        for key, value in keys.items():
            if key not in checks:
                faults.append(f"[{section}] {key}: unknown key; there are {', '.join(checks)}")
                continue
            try:
                values[key] = checks[key](value)
            except _Faults as several:
                faults += [f"[{section}.{key}] {fault}" for fault in several.faults]
            except _Fault as fault:
                faults.append(f"[{section}] {key} = {value!r}: {fault}")
        fields[field] = kind(**values)
    if faults:
        lines = _key_lines(text)
        located = [f"{name}{_where(fault, lines)}: {fault}" for fault in faults]
        raise BadConfig("\n".join(located), faults=located)
    return Config(**fields)  # type: ignore[arg-type]  # SECTIONS pairs each field with its type


def _sections(
    document: Mapping[str, Any], faults: list[str]
) -> list[tuple[str, Mapping[str, Any]]]:
    found: list[tuple[str, Mapping[str, Any]]] = []
    for name, value in document.items():
        if not isinstance(value, dict):
            faults.append(f"{name}: expected a section, [{name}]; a key must stand in one")
        elif any(section.startswith(f"{name}.") for section in SECTIONS):
            found += [
                (f"{name}.{inner}", keys if isinstance(keys, dict) else {})
                for inner, keys in value.items()
            ]
        else:
            found.append((name, value))
    return found


def _key_lines(text: str) -> dict[tuple[str, str], int]:
    """Find the line of each section and key, for messages; good enough for plain TOML."""
    lines: dict[tuple[str, str], int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[\s*([^\]\[]+?)\s*\]", line):
            section = header[1].replace(" ", "")
            lines.setdefault((section, ""), number)
        elif key := re.match(r"\s*([A-Za-z0-9_-]+)\s*=", line):
            lines.setdefault((section, key[1]), number)
    return lines


def _where(fault: str, lines: Mapping[tuple[str, str], int]) -> str:
    if match := re.match(r"\[([^\]]+)\](?: ([A-Za-z0-9_-]+))?", fault):
        line = lines.get((match[1], match[2] or ""))
    else:
        line = lines.get(("", fault.partition(":")[0]))
    return f":{line}" if line else ""
