"""The helpers' supervisor as a program: `python -m xce_nodeagent.daemon.helpers`.

It reads the configuration by itself, so that it need not believe the agent; what it makes of it
are the roles: what each helper answers, who it is, and what it may.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from xce_nodeagent.daemon import roots
from xce_nodeagent.daemon.account import check_owner, check_reporter, load, places, site
from xce_nodeagent.errors import AgentError
from xce_nodeagent.host import declared
from xce_nodeagent.host.cgroup import Mount, hierarchies
from xce_nodeagent.model.config import Config
from xce_nodeagent.model.instance import DeviceNode
from xce_nodeagent.model.plan import Backend, CgroupRef
from xce_nodeagent.model.site import Site
from xce_nodeagent.privileged import credential, folder, lock, ops, seccomp
from xce_nodeagent.privileged.binder import Binder
from xce_nodeagent.privileged.capability import Capability
from xce_nodeagent.privileged.door import Inherited, Listening
from xce_nodeagent.privileged.inherited import close_inherited
from xce_nodeagent.privileged.listener import Listener
from xce_nodeagent.privileged.notify import Notify
from xce_nodeagent.privileged.prober import Prober
from xce_nodeagent.privileged.role import Role
from xce_nodeagent.privileged.runner import Runner
from xce_nodeagent.privileged.serve import Log, Work, log_to_stderr
from xce_nodeagent.privileged.supervisor import Door, Supervisor
from xce_nodeagent.privileged.title import set_title
from xce_nodeagent.privileged.witness import Witness

AGENT_UNIT = "xce-nodeagent.service"
JOBS_UNIT = "xce-nodeagent-jobs.service"
OWN_HOME = "xce-nodeagent"
LOCK_PATIENCE = 5.0
"""Seconds within which a former binder must have ended after it was killed."""

WITNESS_NICE = 10
"""By how much the witness yields to others."""

_BINDER = frozenset(
    {
        Capability.SYS_ADMIN,  # programs, maps by their ids, `trusted.` attributes
        Capability.NET_ADMIN,  # asking which programs are attached, before kernel 6.2 or so
        Capability.DAC_OVERRIDE,  # cgroups that were delegated to another user
    }
)
_WITNESS = frozenset(
    {
        Capability.SYS_PTRACE,
        Capability.DAC_READ_SEARCH,
        Capability.CHECKPOINT_RESTORE,  # what is behind a mapping, whose descriptor may be closed
    }
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the supervisor until its agent has gone (`--fd`), or until a signal (`--socket`)."""
    asked = _parser().parse_args(arguments)
    log = log_to_stderr("xce-helpers")
    try:
        return _run(asked, log)
    except AgentError as error:
        log(error.message)
        return error.exit_status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="xce-nodeagent-helpers", description=main.__doc__)
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--fd", type=int, help="the agent's end, inherited")
    way.add_argument("--socket", action="store_true", help="wait for the agent at helpers.sock")
    parser.add_argument("--folder", required=True, help="for helpers.sock and binder.lock")
    parser.add_argument("--config", help="the configuration file")
    parser.add_argument("--simulate", default="", help="a profile, as `xce-nodeagent run` has it")
    return parser


def _run(asked: argparse.Namespace, log: Log) -> int:
    set_title("xce-helpers")
    close_inherited(() if asked.socket else (asked.fd,))
    where = places(os.environ, asked.config)
    config = load(where)
    mounted = hierarchies()
    roots.check(config, mounted, where.config)
    check_reporter(config, where.config)
    root = os.geteuid() == 0
    agent = (
        credential.account(config.agent.user, credential.AGENT_UID).uid if root else os.geteuid()
    )
    path = Path(asked.folder)
    if root:
        path.mkdir(0o755, parents=True, exist_ok=True)
        # Ours alone: whoever can put another lock there can have two binders at once.
        folder.check(asked.folder, os.geteuid())
        check_owner(where, agent)
    home = jobs_home(config, mounted)
    profile = asked.simulate or config.simulate.profile
    nodes = _simulated_nodes(profile, config) if profile and root else ()
    roles = _roles(
        config,
        home,
        mounted,
        nodes,
        declarations=site(config, where, os.geteuid()),
        lock_path=str(path / "binder.lock") if root else "",
    )
    door: Door
    if asked.socket:
        door = Listening(str(path / "helpers.sock"), agent, log)
    else:
        door = Inherited(asked.fd)
    notify = Notify(os.environ) if asked.socket else Notify({})
    return Supervisor(roles, door, log, notify=notify, watchdog=notify.watchdog).run()


def jobs_home(config: Config, mounted: Sequence[Mount]) -> CgroupRef | None:
    """Give the cgroup in which the jobs' own cgroups are made.

    What the configuration says, which was looked at; else the jobs' unit, if it runs; else a place
    of our own in the first hierarchy of v2, else of v1. None where there is neither.
    """
    if config.agent.cgroup_root:
        return roots.on(config.agent.cgroup_root, mounted)
    for mount in sorted(mounted, key=lambda m: m.backend != "cgroup2"):
        for unit in (f"system.slice/{JOBS_UNIT}", f"xce.slice/{JOBS_UNIT}"):
            if os.path.isdir(f"{mount.point}/{unit}"):
                return CgroupRef(mount.backend, f"{mount.point}/{unit}")
    order: tuple[Backend, ...] = ("cgroup2", "cgroup1")
    for backend in order:
        for mount in mounted:
            if mount.backend == backend:
                return CgroupRef(backend, f"{mount.point}/{OWN_HOME}")
    return None


def _agents_units(mounted: Sequence[Mount]) -> tuple[CgroupRef, ...]:
    """Give where the agent's unit is under systemd. Run by hand, it is where we are ourselves."""
    return tuple(
        CgroupRef(mount.backend, f"{mount.point}/{group}/{AGENT_UNIT}")
        for mount in mounted
        for group in ("system.slice", "xce.slice")
    )


def _simulated_nodes(profile: str, config: Config) -> tuple[DeviceNode, ...]:
    from xce_nodeagent.host import Host  # noqa: PLC0415  # only where something is simulated
    from xce_nodeagent.providers import simulated  # noqa: PLC0415  # the same

    directory = config.simulate.device_directory
    return simulated.nodes(Host(simulate=profile, device_directory=directory))


def _roles(
    config: Config,
    home: CgroupRef | None,
    mounted: Sequence[Mount],
    nodes: Sequence[DeviceNode],
    *,
    declarations: Site,
    lock_path: str,
) -> Mapping[ops.Role, Role]:
    allowed = [roots.on(path, mounted) for path in config.agent.cgroup_allowed_roots]
    root = os.geteuid() == 0

    kills = config.release.kill != "none"

    def take() -> object:
        held = lock.take(lock_path, LOCK_PATIENCE) if lock_path else None
        if not kills:
            # The binder before has ended, and that was the last one to be signalled.
            seccomp.install(seccomp.SIGNALS)
        return held

    def binder(_: Log) -> Work:
        return Binder(
            home=home,
            roots=[found for found in allowed if found is not None],
            own=_agents_units(mounted),
            owners=config.access.prepare_uids,
            take_lock=take,
            simulated=nodes,
            device_directory=config.simulate.device_directory,
            kills=kills,
            declared=lambda: declared.devices(declarations),
        )

    def prober(_: Log) -> Work:
        from xce_nodeagent.host import nvml  # noqa: PLC0415  # in the prober alone

        if os.path.exists(nvml.DRIVER):
            # Once it is another user, it may not be able to read the interpreter's own files.
            nvml.load_bindings()
        return Prober(nvml.probe, patience=config.agent.library_seconds)

    def listener(_: Log) -> Work:
        from xce_nodeagent.host import nvml, telemetry  # noqa: PLC0415  # in the listener alone

        if os.path.exists(nvml.DRIVER):
            nvml.load_bindings()  # see above
        return Listener(telemetry.Session, patience=config.agent.library_seconds)

    def witness(_: Log) -> Work:
        # It looks through all of /proc while jobs start and end: they come first.
        os.nice(WITNESS_NICE)
        return Witness()

    # Jobs are of any user.
    killing = frozenset({Capability.KILL}) if kills else frozenset()
    simulating = frozenset({Capability.MKNOD}) if nodes else frozenset()
    probing = credential.account("xce-prober", credential.PROBER_UID, credential.device_groups())
    witnessing = credential.Identity(credential.WITNESS_UID, credential.WITNESS_UID)
    roles = (
        Role(
            "binder",
            ops.BinderRequest,
            binder,
            seccomp.BINDER,
            None,
            _BINDER | simulating | killing,
            descriptors=True,
        ),
        Role("prober", ops.ProberRequest, prober, seccomp.PROBER, probing if root else None),
        Role(
            "listener",
            ops.ListenerRequest,
            listener,
            seccomp.PROBER,
            probing if root else None,
            descriptors=True,
        ),
        Role(
            "witness",
            ops.WitnessRequest,
            witness,
            seccomp.WITNESS,
            witnessing if root else None,
            _WITNESS,
        ),
    )
    found = {role.name: role for role in roles}
    return found | {role.name: role for role in _runner(config)}


def _runner(config: Config) -> Iterator[Role]:
    """Give the role of the runner, only where the configuration names a program."""
    reporter = config.reporter
    if not reporter.program:
        return
    root = os.geteuid() == 0
    owners = {0, os.geteuid()}

    def runner(_: Log) -> Work:
        return Runner(reporter.program, patience=reporter.timeout_seconds, owners=owners)

    identity = credential.person(reporter.user) if root else None
    yield Role("runner", ops.RunnerRequest, runner, seccomp.RUNNER, identity, programs=True)


if __name__ == "__main__":
    sys.exit(main())
