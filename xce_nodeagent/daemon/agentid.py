"""The agent's own id: made once, kept beside the ledger, the same over restarts and boots."""

from __future__ import annotations

import logging
import uuid
from pathlib import Path

from xce_nodeagent.host import whole

log = logging.getLogger(__name__)

NAME = "agent-id"


def agent_id(state: Path) -> str:
    """Give the id that is kept in a folder, a random one that is kept there from now on else.

    Where it can't be kept, it is this life's alone: a store takes the next life for another agent.
    """
    path = state / NAME
    try:
        return str(uuid.UUID(path.read_text("ascii").strip()))
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        log.warning("%s: there is no id in it: %s; this agent takes a new one", path, error)
    made = str(uuid.uuid4())
    try:
        whole.replace(path, f"{made}\n".encode(), sync=True)
    except OSError as error:
        log.warning("%s: the agent's id cannot be kept: %s", path, error.strerror)
    return made
