"""Another boot, and other files of the kernel's, for an agent that is started."""

from __future__ import annotations

import os
import select
import sys
import time
from pathlib import Path

from agent.running import PATIENCE, Running, children

# In a mount namespace of its own, so that nobody else sees what lies over the kernel's files.
# `--` ends the pairs of what and where.
_COVERED = """
while [ "$1" != -- ]; do mount --bind "$1" "$2" || exit 99; shift 2; done
shift
exec "$@"
"""


def cover(running: Running, files: dict[str, Path]) -> None:
    """Let the next start of an agent, and its helpers, see these files in the kernel's places."""
    pairs = [text for where, what in files.items() for text in (str(what), where)]
    running.python = [
        "unshare", "--mount", "--propagation", "private", "sh", "-c", _COVERED, "sh", *pairs, "--",
        sys.executable,
    ]  # fmt: skip


def shut_down(running: Running) -> None:
    """End an agent and all that is in its cgroups, as a reboot does; the next start is a boot."""
    assert running.process is not None
    helpers = children(running.process.pid)
    running.kill()
    # A reboot ends the helpers with it; they go by themselves, and the home with the last job.
    until = time.monotonic() + PATIENCE
    while any(Path(f"/proc/{pid}").exists() for pid in helpers):
        assert time.monotonic() < until, "a helper outlives its agent"
        select.select([], [], [], 0.02)
    for top in (running.home, running.other):
        for below, _, _ in os.walk(top, topdown=False):
            if Path(below) != top:
                os.rmdir(below)
    another = running.folder / "boot_id"
    another.write_text("11111111-2222-4333-8444-555555555555\n", "ascii")
    another.chmod(0o644)
    cover(running, {"/proc/sys/kernel/random/boot_id": another})
