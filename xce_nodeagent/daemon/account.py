"""What the agent finds on its host: its configuration and its folders, and its claim to them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pwd
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from xce_nodeagent.errors import BadConfig, NotReady
from xce_nodeagent.model import place
from xce_nodeagent.model.config import Config, parse
from xce_nodeagent.model.site import Site
from xce_nodeagent.privileged import credential, folder


class Places(Struct, frozen=True, kw_only=True):
    """Where the agent's files are. `named` says whether the configuration was named by a person."""

    config: str
    named: bool
    runtime: Path
    state: Path
    socket: Path


def places(environment: Mapping[str, str], config: str | None) -> Places:
    """Read the pinned variables; what they do not say is the default."""
    named = config or environment.get("XCE_NODEAGENT_CONFIG", "")
    runtime = Path(environment.get("XCE_NODEAGENT_RUNTIME_DIR") or place.RUNTIME)
    return Places(
        config=named or place.CONFIG,
        named=bool(named),
        runtime=runtime,
        state=Path(environment.get("XCE_NODEAGENT_STATE_DIR") or place.STATE),
        socket=Path(environment.get("XCE_NODEAGENT_SOCKET") or runtime / place.SOCKET_NAME),
    )


def load(where: Places) -> Config:
    """Read the configuration. A missing default file is the default configuration."""
    try:
        with open(where.config, encoding="utf-8") as file:
            found = os.fstat(file.fileno())
            text = file.read()
    except FileNotFoundError:
        if not where.named:
            return Config()
        raise BadConfig(f"{where.config}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(f"{where.config}: cannot be read: {error}") from None
    if stat.S_ISREG(found.st_mode) and found.st_mode & stat.S_IWOTH:
        raise BadConfig(
            f"{where.config}: anybody can write to it (mode {stat.S_IMODE(found.st_mode):04o}), and"
            " it says what root does: chmod o-w it, and look what it says"
        )
    return parse(text, where.config)


def site(config: Config, where: Places, *owners: int) -> Site:
    """Say where the site declares instances; `owners` may write the files, beside root."""
    folder = config.declared.directory or f"{os.path.dirname(os.path.abspath(where.config))}/"
    if not config.declared.directory:
        folder += "instances.d"
    return Site(folder, frozenset({0, *owners}), config.reporter.nodes)


def check_reporter(config: Config, name: str) -> None:
    """Raise BadConfig where the reporter's user is nobody, or one of ours; `name` is the file's.

    Who is the agent's user could ask for helpers in the agent's place.
    """
    user = config.reporter.user
    if not config.reporter.program:
        return
    try:
        uid = pwd.getpwnam(user).pw_uid
    except KeyError:
        why = "there is no such account"
    else:
        agent = credential.account(config.agent.user, credential.AGENT_UID).uid
        prober = credential.account("xce-prober", credential.PROBER_UID).uid
        if uid not in (agent, prober, credential.WITNESS_UID) or os.geteuid():
            return
        why = "the agent's own accounts are for the agent alone: name another"
    fault = f"{name}: [reporter] user = {user!r}: {why}"
    raise BadConfig(fault, faults=[fault])


def check_owner(where: Places, agent: int) -> None:
    """Refuse, with BadConfig, a configuration of the agent's own: root must not believe the agent.

    What is missing is nobody's.
    """
    with contextlib.suppress(FileNotFoundError):
        if agent != os.geteuid() and os.stat(where.config).st_uid == agent:
            raise BadConfig(
                f"{where.config}: it belongs to uid {agent}, which the agent runs as, and the"
                " helpers go by it: chown it to root"
            )


def make_folders(where: Places, uid: int, gid: int) -> None:
    """Make the runtime and state folders, and give them to the agent's user.

    Only as root, before privileges are given up. Anyone may look into the runtime folder, which
    holds the socket; nobody else into the state. Raises BadConfig where a third could put
    something in their place.
    """
    for path, mode in ((where.runtime, 0o755), (where.state, 0o700)):
        folder.make(str(path), uid, gid, mode)


@contextlib.contextmanager
def claimed(where: Places) -> Iterator[None]:
    """Have the runtime and the state folder for this agent alone.

    Two agents with one state would each give the same card away: neither sees what the other
    wrote. Raises NotReady when another agent has one of them.
    """
    with contextlib.ExitStack() as stack:
        for path, variable in (
            (where.runtime, "XCE_NODEAGENT_RUNTIME_DIR"),
            (where.state, "XCE_NODEAGENT_STATE_DIR"),
        ):
            stack.callback(os.close, _locked(path, variable))
        yield


def _locked(within: Path, variable: str) -> int:
    path = within / "agent.lock"
    try:
        descriptor = _lock_file(path)
    except OSError as error:
        uid = os.geteuid()
        try:
            theirs = bool(os.listdir(within))
        except FileNotFoundError:
            theirs = False
        except OSError:
            theirs = True
        remedy = (
            f"give the files back to that user: chown -R {uid} {within}"
            if theirs and error.errno in (errno.EACCES, errno.EPERM)
            else f"set {variable} to one where it can"
        )
        raise BadConfig(
            f"{path}: {error.strerror}: the agent, as uid {uid}, must get to this folder and read"
            f" and write in it: {remedy}"
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise NotReady(
            f"another agent runs with {within}: stop it first, or set {variable}"
        ) from None
    return descriptor


def _lock_file(path: Path) -> int:
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o600)
    except OSError as error:
        # Running jobs need an agent also where nothing can be written.
        if error.errno not in (errno.EROFS, errno.ENOSPC):
            raise
        return os.open(path, os.O_RDONLY | flags)
