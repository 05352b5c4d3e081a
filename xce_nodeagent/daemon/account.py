"""Whose the agent is: its account, its folders, and giving up every privilege."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from xce_nodeagent.errors import BadConfig, NotReady
from xce_nodeagent.model.config import Config, parse

DEFAULT_CONFIG = "/etc/xce-nodeagent/config.toml"
DEFAULT_RUNTIME = "/run/xce-nodeagent"
DEFAULT_STATE = "/var/lib/xce-nodeagent"


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
    runtime = Path(environment.get("XCE_NODEAGENT_RUNTIME_DIR") or DEFAULT_RUNTIME)
    return Places(
        config=named or DEFAULT_CONFIG,
        named=bool(named),
        runtime=runtime,
        state=Path(environment.get("XCE_NODEAGENT_STATE_DIR") or DEFAULT_STATE),
        socket=Path(environment.get("XCE_NODEAGENT_SOCKET") or runtime / "agent.sock"),
    )


def load(where: Places) -> Config:
    """Read the configuration. A missing default file is the default configuration."""
    try:
        text = Path(where.config).read_text("utf-8")
    except FileNotFoundError:
        if not where.named:
            return Config()
        raise BadConfig(f"{where.config}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(f"{where.config}: cannot be read: {error}") from None
    return parse(text, where.config)


def make_folders(where: Places, uid: int, gid: int) -> None:
    """Make the runtime and state folders, and give them to the agent's user.

    Only as root, before privileges are given up. Anyone may look into the runtime folder, which
    holds the socket; nobody else into the state.
    """
    for folder, mode in ((where.runtime, 0o755), (where.state, 0o700)):
        folder.mkdir(mode, parents=True, exist_ok=True)
        # Only the folder itself: what is in it belongs to that user, who could have put a link
        # there. The agent writes its files after it has become that user.
        os.chown(folder, uid, gid, follow_symlinks=False)
        os.chmod(folder, mode)


def claim(where: Places) -> int:
    """Take the runtime folder for this agent; give the descriptor that holds it.

    Raises NotReady when another agent has it.
    """
    path = where.runtime / "agent.lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise BadConfig(
            f"{path}: {error.strerror}: the agent, as uid {os.geteuid()}, must get to this folder"
            " and write in it; set XCE_NODEAGENT_RUNTIME_DIR to one where it can"
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise NotReady(
            f"another agent runs with {where.runtime}: stop it first, or set"
            " XCE_NODEAGENT_RUNTIME_DIR"
        ) from None
    return descriptor
