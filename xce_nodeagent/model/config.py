"""The configuration: one frozen value, read once, checked whole, all faults reported together.

Agent and supervisor each parse the file by themselves, so that neither must believe the other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from xce_nodeagent.errors import BadConfig
from xce_nodeagent.model import setting, share, toml, upstream
from xce_nodeagent.model.policy import Policy
from xce_nodeagent.model.share import MpsConfig
from xce_nodeagent.model.upstream import (
    FleetConfig,
    MetricsConfig,
    UpstreamEtcdConfig,
    UpstreamFileConfig,
    UpstreamHttpConfig,
)

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


class RailsConfig(Struct, frozen=True, kw_only=True):
    """`[rails]`: which NICs are on which rail.

    Entry k of `nics` names those of rail k: an instance's id, interface or RDMA device, several
    with commas, none with an empty entry. Without it, `by` says whether structure decides
    (model/rail.py has the rule) or nobody.
    """

    by: Literal["structure", "none"] = "structure"
    nics: tuple[str, ...] = ()


class DeclaredConfig(Struct, frozen=True, kw_only=True):
    """`[declared]`: where the files of declared instances are; empty: beside the configuration."""

    directory: str = ""


class ReporterConfig(Struct, frozen=True, kw_only=True):
    """`[reporter]`: a program of the site's that prints declared instances as JSON.

    `program` is an absolute path and its arguments. `nodes` are patterns for the device nodes that
    it may name: without any it can report none.
    """

    program: tuple[str, ...] = ()
    user: str = "nobody"
    interval_seconds: int = 60
    timeout_seconds: int = 10
    nodes: tuple[str, ...] = ()


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


class Config(Struct, frozen=True, kw_only=True):
    """The whole configuration."""

    agent: AgentConfig = AgentConfig()
    access: AccessConfig = AccessConfig()
    ports: PortsConfig = PortsConfig()
    nic: NicConfig = NicConfig()
    rails: RailsConfig = RailsConfig()
    declared: DeclaredConfig = DeclaredConfig()
    reporter: ReporterConfig = ReporterConfig()
    release: ReleaseConfig = ReleaseConfig()
    environment: EnvironmentConfig = EnvironmentConfig()
    health: HealthConfig = HealthConfig()
    mps: MpsConfig = MpsConfig()
    simulate: SimulateConfig = SimulateConfig()
    upstream_file: UpstreamFileConfig = UpstreamFileConfig()
    upstream_http: UpstreamHttpConfig = UpstreamHttpConfig()
    upstream_etcd: UpstreamEtcdConfig = UpstreamEtcdConfig()
    metrics: MetricsConfig = MetricsConfig()
    fleet: FleetConfig = FleetConfig()


SECTIONS: Mapping[str, tuple[str, type[Struct], Mapping[str, setting.Check]]] = {
    "agent": (
        "agent",
        AgentConfig,
        {
            "user": setting.user,
            "cgroup_root": setting.root,
            "cgroup_allowed_roots": setting.roots,
            "enforcement": setting.one_of(EnforcementPolicy),
            "attempt_memory_seconds": setting.seconds,
            "library_seconds": setting.patience,
            "node": setting.text,
        },
    ),
    "access": ("access", AccessConfig, {"prepare_uids": setting.uids}),
    "ports": ("ports", PortsConfig, {"range": setting.port_range, "guard_root": setting.root}),
    "nic": ("nic", NicConfig, {"offer": setting.globs, "reserve": setting.globs}),
    "rails": (
        "rails",
        RailsConfig,
        {"by": setting.one_of(Literal["structure", "none"]), "nics": setting.names_by_rail},
    ),
    "declared": ("declared", DeclaredConfig, {"directory": setting.root}),
    "reporter": (
        "reporter",
        ReporterConfig,
        {
            "program": setting.command,
            "user": setting.user,
            "interval_seconds": setting.patience,
            "timeout_seconds": setting.patience,
            "nodes": setting.nodes,
        },
    ),
    "release": (
        "release",
        ReleaseConfig,
        {
            "kill": setting.one_of(KillPolicy),
            "kill_grace_seconds": setting.grace,
            "residents": setting.programs,
        },
    ),
    "environment": (
        "environment",
        EnvironmentConfig,
        {"visible_devices": setting.one_of(Literal["uuid", "index"])},
    ),
    "health": (
        "health",
        HealthConfig,
        {
            "policy": setting.policy,
            "thermal_seconds": setting.seconds,
            "cool_seconds": setting.seconds,
            "lost_seconds": setting.seconds,
            "corrected_per_hour": setting.count,
        },
    ),
    "mps": ("mps", MpsConfig, {"pipe_directory": setting.root, "shares": share.table}),
    "simulate": (
        "simulate",
        SimulateConfig,
        {"profile": setting.profile, "device_directory": setting.root},
    ),
    **upstream.SECTIONS,
}
"""Every section and key that there is: field of `Config`, its type, and a check for each key."""


def parse(text: str, name: str) -> Config:
    """Read a configuration. Raise BadConfig with all faults, each with its line or key."""
    try:
        document = toml.read(text)
    except ValueError as error:
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
            except setting.Faults as several:
                faults += [f"[{section}.{key}] {fault}" for fault in several.faults]
            except setting.Fault as fault:
                faults.append(f"[{section}] {key} = {value!r}: {fault}")
        try:
            fields[field] = kind(**values)
        except setting.Fault as fault:  # each key is right, and together they are not
            faults.append(f"[{section}]: {fault}")
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
