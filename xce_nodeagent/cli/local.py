"""What can be seen of this host without the agent: its inventory, and what `doctor` can check.

This takes the libraries of discovery, so it is loaded only where it is needed.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from xce_nodeagent.daemon import doctor, portchecks, roots
from xce_nodeagent.daemon.account import load, places, site
from xce_nodeagent.daemon.app import unknown_profile, with_simulation
from xce_nodeagent.discovery import scan
from xce_nodeagent.errors import BadConfig
from xce_nodeagent.host import Host, cgroup
from xce_nodeagent.model.config import AgentConfig, Config
from xce_nodeagent.model.inventory import Inventory, advance
from xce_nodeagent.model.site import Reported
from xce_nodeagent.model.wire import Check
from xce_nodeagent.providers import all_providers

UID_WITHOUT_ACCOUNT = 61499
"""The agent's uid where its account is missing; the privileged layer has the number."""


def look(sysroot: str | None, simulate: str) -> Inventory:
    """Discover here and now, or in a recorded machine. Raise BadConfig."""
    config = load(places(os.environ, None)) if sysroot is None else Config()
    return _look(with_simulation(config, simulate), sysroot)


def _look(config: Config, sysroot: str | None = None) -> Inventory:
    host = Host(
        "/" if sysroot is None else sysroot,
        live=sysroot is None,
        simulate=config.simulate.profile,
        device_directory=config.simulate.device_directory,
        port_range=config.ports.range,
        nic=config.nic,
        rails=config.rails,
        mps=config.mps,
    )
    if sysroot is None:
        host.site = site(config, places(os.environ, None), os.geteuid())
        if config.reporter.program:
            host.report = lambda: Reported("none", "only the agent runs the site's reporter")
    found, _, _ = advance(scan(host, all_providers()), {}, 0)
    return found


def checks_without(reason: str, environ: Mapping[str, str]) -> list[dict[str, Any]]:
    """Give the checks of a `doctor` that reaches no agent; `reason` is the client's message."""
    why, _, remedy = reason.removeprefix("no agent: ").partition("\n")
    checks = [Check(name="agent", state="fault", text=f"not reachable: {why}", remedy=remedy)]
    where = places(environ, None)
    config = Config()
    try:
        config = load(where)
    except BadConfig as error:
        checks += [
            Check(name="configuration", state="fault", text=fault, remedy="repair it, then start")
            for fault in error.details.get("faults", [error.message])
        ]
    else:
        there = "" if os.path.exists(where.config) else ": there is none, so all is as by default"
        checks.append(Check(name="configuration", state="ok", text=f"{where.config}{there}"))
    checks += _cgroups(config, where.config)
    uid = _account(config.agent.user)
    checks.append(_about_account(config.agent.user, uid))
    checks.append(_folder("runtime", where.runtime, uid, "XCE_NODEAGENT_RUNTIME_DIR"))
    checks.append(_folder("state", where.state, uid, "XCE_NODEAGENT_STATE_DIR"))
    checks += _files(where.runtime, uid)
    checks += _files(where.state, uid)
    profile = config.simulate.profile
    wrong = unknown_profile(where.config, profile)
    if wrong:
        checks = [one for one in checks if (one.name, one.state) != ("configuration", "ok")]
        remedy = "repair it, then start"
        checks.append(Check(name="simulate", state="fault", text=wrong, remedy=remedy))
        simulate = msgspec.structs.replace(config.simulate, profile="")
        config = msgspec.structs.replace(config, simulate=simulate)
    elif profile:
        checks.append(Check(name="simulate", state="note", text=f"profile {profile}"))
    found = doctor.discovery(_look(with_simulation(config, "")))
    checks += [one for one in found if not wrong or one.name != "discovery.simulated"]
    checks += portchecks.checks(Host(port_range=config.ports.range))
    return [msgspec.to_builtins(check) for check in checks]


def _cgroups(config: Config, name: str) -> Iterable[Check]:
    mounted = cgroup.hierarchies()
    policy = config.agent.enforcement
    if policy == "off" or not mounted:
        yield doctor.enforcement(config, None)
        return
    points = ", ".join(f"{mount.backend} at {mount.point}" for mount in mounted)
    yield Check(name="cgroups", state="ok", text=f"can fence devices: {points}")
    try:
        roots.check(config, mounted, name)
    except BadConfig as error:
        for fault in error.details["faults"]:
            yield Check(name="cgroups", state="fault", text=fault)


def _account(user: str) -> int:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return UID_WITHOUT_ACCOUNT


def _about_account(user: str, uid: int) -> Check:
    if uid == UID_WITHOUT_ACCOUNT:
        return Check(
            name="account",
            state="note",
            text=f"there is no {user}: an agent that root starts by hand runs as uid {uid}",
            remedy=(
                f"systemd-sysusers makes it from the installed sysusers.d/{user}.conf"
                if user == AgentConfig().user
                else f"`useradd --system {user}` makes it, or name another as [agent] user"
            ),
        )
    return Check(name="account", state="ok", text=f"{user} (uid {uid})")


def _folder(name: str, path: Path, uid: int, variable: str) -> Check:
    """Judge a folder as the start will: it must be the agent's, root's, or our own."""
    try:
        found = path.stat()
    except FileNotFoundError:
        text = f"{path} is not there yet: the agent makes it when it starts"
        return Check(name=name, state="note", text=text)
    except OSError as error:
        remedy = f"set {variable} to another"
        return Check(name=name, state="fault", text=f"{path}: {error.strerror}", remedy=remedy)
    if not stat.S_ISDIR(found.st_mode):
        return Check(
            name=name,
            state="fault",
            text=f"{path} is no folder",
            remedy=f"move it away, or set {variable} to another",
        )
    text = f"{path}, of uid {found.st_uid}"
    if found.st_uid not in (0, uid, os.geteuid()):
        return Check(
            name=name,
            state="fault",
            text=f"{text}; expected uid {uid}, which the agent runs as, or root",
            remedy=f"chown it, or set {variable} to another",
        )
    return Check(name=name, state="ok", text=text)


FILES = ("agent.lock", "ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.reserve")
"""What the agent must be able to read and write in its folders, where it is there."""


def _files(folder: Path, uid: int) -> Iterable[Check]:
    """Judge what is in a folder: the agent must be able to read and write it.

    Who runs an agent as a plain user is its user.
    """
    owners = {uid} if os.geteuid() == 0 else {uid, os.geteuid()}
    for name in FILES:
        path = folder / name
        try:
            found = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            text = f"what is in {folder} cannot be seen: {error.strerror}: ask again as root"
            yield Check(name=folder.name, state="note", text=text)
            return
        mode = stat.S_IMODE(found.st_mode)
        if found.st_uid not in owners:
            yield Check(
                name=name,
                state="fault",
                text=f"{path} is of uid {found.st_uid}; expected uid {uid}, the agent's",
                remedy=f"give it back: chown -R {uid} {folder}",
            )
        elif mode & 0o600 != 0o600:
            yield Check(
                name=name,
                state="fault",
                text=f"{path} has mode {mode:04o}; the agent must read and write it",
                remedy=f"chmod u+rw {path}",
            )
