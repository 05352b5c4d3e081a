"""`xce-nodeagent run`: the composition root, in the order that privilege demands.

    read the configuration, every fault told            nothing is touched yet
    make the folders, start the supervisor              as root, when run by hand
    import everything, look at the hardware once        only root may read the interpreter
    become the agent's user, drop every capability
    install the filter: no fork, no exec, for ever
    open the ledger and the socket, greet the helpers, serve

Under systemd the agent is not root and finds the helpers' supervisor at its socket.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import signal
import socket
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from xce_nodeagent.daemon import roots
from xce_nodeagent.daemon.account import (
    Places,
    check_reporter,
    claimed,
    load,
    make_folders,
    places,
    site,
)
from xce_nodeagent.errors import BadConfig
from xce_nodeagent.host import cgroup
from xce_nodeagent.model.config import Config
from xce_nodeagent.model.name import printable

if TYPE_CHECKING:
    from xce_nodeagent.binding.supply import Dial
    from xce_nodeagent.host.linkmonitor import LinkMonitor
    from xce_nodeagent.host.sitewatch import SiteWatch
    from xce_nodeagent.host.udev import Monitor
    from xce_nodeagent.model.site import Site

log = logging.getLogger(__name__)

SIMULATED_PORTS = (20_000, 20_999)
"""The range of `--simulate` where none is configured."""


def main(*, config: str | None, simulate: str, verbose: bool) -> int:
    """Run the agent until a signal ends it; give the exit status. Raises AgentError at the start.

    `config` is the file's path, None for the default; `simulate` names a profile whose instances
    are added to the real ones.
    """
    where = places(os.environ, config)
    loaded = load(where)
    settings = with_simulation(loaded, simulate)
    if wrong := unknown_profile("" if simulate else where.config, settings.simulate.profile):
        raise BadConfig(wrong)
    roots.check(settings, cgroup.hierarchies(), where.config)
    check_reporter(settings, where.config)
    _log_to_stderr(verbose)
    return _run(settings, where, simulate)


def with_simulation(config: Config, profile: str) -> Config:
    """Give the configuration as `--simulate` changes it."""
    profile = profile or config.simulate.profile
    if not profile:
        return config
    ports = config.ports
    if ports.range is None:
        ports = structs.replace(ports, range=SIMULATED_PORTS)
    return structs.replace(
        config, ports=ports, simulate=structs.replace(config.simulate, profile=profile)
    )


def unknown_profile(config: str, profile: str) -> str:
    """Say that there is no such profile, "" where there is. `config` is the file that names it."""
    from xce_nodeagent.providers.simulated import names  # noqa: PLC0415  # only where one is named

    if not profile or profile in names():
        return ""
    where = f"{config}: [simulate] profile" if config else "--simulate"
    return f"{where}: {profile!r}: there is no such profile; there are {', '.join(names())}"


def _run(config: Config, where: Places, simulate: str) -> int:
    from xce_nodeagent.binding import supply  # noqa: PLC0415  # after the faults of the config
    from xce_nodeagent.privileged import credential, notify, seccomp  # noqa: PLC0415  # see above
    from xce_nodeagent.privileged.inherited import close_inherited  # noqa: PLC0415  # see above

    close_inherited()
    identity = None
    sock = helpers_socket(where)
    supervisor: tuple[socket.socket, int] | None = None
    if os.geteuid() == 0:
        identity = credential.account(config.agent.user, credential.AGENT_UID)
        if identity.uid == credential.AGENT_UID:
            log.info("there is no account %s: running as uid %d", config.agent.user, identity.uid)
        make_folders(where, identity.uid, identity.gid)
    else:
        make_folders_of_own(where)
    helpers_are_root = identity is not None or _is_socket(sock)
    if not helpers_are_root and config.agent.enforcement == "required":
        raise BadConfig(
            "without root no job can be fenced: run as root, or set [agent] enforcement = 'off'"
        )
    if identity is None and _is_socket(sock):
        dial: Dial = supply.listening(str(sock))
    else:
        supervisor = _start_supervisor(where, simulate)
        dial = supply.inherited(supervisor[0])
    # From here to the filter, everything that the agent will ever need is imported and read.
    from xce_nodeagent import discovery  # noqa: PLC0415  # see above
    from xce_nodeagent.daemon import loop, server, sinks  # noqa: PLC0415  # see above
    from xce_nodeagent.host import Host  # noqa: PLC0415  # see above
    from xce_nodeagent.providers import all_providers  # noqa: PLC0415  # see above

    # asyncio imports its threads late.
    importlib.import_module("concurrent.futures.thread")
    sinks.prepare(config)
    host = Host(
        simulate=config.simulate.profile,
        device_directory=config.simulate.device_directory,
        port_range=config.ports.range,
        nic=config.nic,
        rails=config.rails,
        mps=config.mps,
    )
    host.site = site(config, where, *(() if helpers_are_root else (os.geteuid(),)))
    providers = all_providers()
    # A scan imports what it needs as it goes. This one is for that; no helper is asked yet.
    host.probe = lambda _: ("not_yet", "the agent is starting", {})
    discovery.scan(host, providers)
    monitors = _monitors(host.site)
    credential.assume(identity)
    seccomp.install(seccomp.AGENT)
    _settle_memory()
    with claimed(where):
        try:
            listener = server.listen(str(where.socket))
            own_uid = os.geteuid()
            return loop.run(
                lambda: loop.Daemon(
                    config=config,
                    where=where,
                    dial=dial,
                    listener=listener,
                    host=host,
                    providers=providers,
                    notify=notify.Notify(os.environ),
                    monitors=monitors,
                    own_uid=own_uid,
                    helpers_are_root=helpers_are_root,
                )
            )
        finally:
            # A second signal must not cut short what is left to do.
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
            if supervisor is not None:
                # It ends with its helpers, and they leave nothing behind that no job needs.
                # Whoever stopped the agent may rely on that when the agent has ended.
                supervisor[0].close()
                os.waitpid(supervisor[1], 0)


def _monitors(declared: Site) -> list[Monitor | LinkMonitor | SiteWatch]:
    """Listen to what changes; say what cannot be heard."""
    from xce_nodeagent.host import linkmonitor, sitewatch, udev  # noqa: PLC0415  # see above

    found: list[Monitor | LinkMonitor | SiteWatch] = []
    try:
        found.append(sitewatch.SiteWatch(declared))
    except OSError as error:
        log.warning("declared instances that change are seen late: %s", error)
    subsystems = set(udev.SUBSYSTEMS)
    try:
        found.append(linkmonitor.LinkMonitor())
        # It tells of interfaces all that udev does. Where udev tells of each one that a container
        # gets, nobody is woken for nothing.
        subsystems.discard("net")
    except OSError as error:
        log.warning("carriers and default routes that change are seen late: %s", error)
    try:
        found.append(udev.Monitor(subsystems))
    except (OSError, ImportError) as error:  # pyudev calls a missing libudev the latter
        log.warning("changes of the hardware are not seen by themselves: %s", error)
    return found


def _settle_memory() -> None:
    """Keep the collector away from what lives for ever, and from running in every prepare.

    A full collection over a thousand bindings takes milliseconds, and would fall on a job's path.
    What a prepare allocates is freed by its count; cycles come from errors' tracebacks only.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def helpers_socket(where: Places) -> Path:
    """Give the path of the supervisor's socket: in a folder beside ours that only root writes."""
    return Path(f"{where.runtime}-helpers") / "helpers.sock"


def make_folders_of_own(where: Places) -> None:
    """Make the folders as a plain user, where they are not there yet."""
    for folder, mode in ((where.runtime, 0o755), (where.state, 0o700)):
        try:
            folder.mkdir(mode, parents=True, exist_ok=True)
        except OSError as error:
            raise BadConfig(
                f"{folder}: cannot be made: {error.strerror}; run as root, or set"
                " XCE_NODEAGENT_RUNTIME_DIR and XCE_NODEAGENT_STATE_DIR to folders of your own"
            ) from None


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return False


def _start_supervisor(where: Places, simulate: str) -> tuple[socket.socket, int]:
    """Start the supervisor with one end of a pair of sockets; give the other end, and its pid.

    This is before the filter: the last program that the agent ever starts.
    """
    from xce_nodeagent.privileged.channel import pair  # noqa: PLC0415  # see above

    ours, theirs = pair()
    with theirs:
        os.set_inheritable(theirs.fileno(), True)  # noqa: FBT003  # the standard library's own
        # -P: without it whoever may write to the current directory could have code of theirs run.
        arguments = [sys.executable, "-P", "-m", "xce_nodeagent.daemon.helpers", "--fd"]
        arguments += [str(theirs.fileno()), "--folder", str(helpers_socket(where).parent)]
        arguments += ["--config", where.config] if where.named else []
        arguments += ["--simulate", simulate] if simulate else []
        try:
            pid = os.posix_spawn(sys.executable, arguments, os.environ)
        except OSError as error:
            ours.close()
            raise BadConfig(f"the helpers' supervisor cannot be started: {error}") from None
    return ours, pid


class _Plain(logging.Formatter):
    """What callers, hardware and helpers say of themselves makes no line, and no colour."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802  # the same
        return "\n".join(map(printable, super().formatException(ei).split("\n")))


def _log_to_stderr(verbose: bool) -> None:
    """Log to stderr. Under systemd the journal adds the time; at a terminal we do."""
    time = "" if "JOURNAL_STREAM" in os.environ else "%(asctime)s "
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Plain(f"{time}xce-nodeagent: %(levelname)s: %(message)s"))
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])
    # asyncio's debug lines tell nothing of ours.
    logging.getLogger("asyncio").setLevel(logging.WARNING)
