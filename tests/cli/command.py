"""The program as a user starts it: from a pipe, or in a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]
COMMAND = [sys.executable, "-m", "xce_nodeagent"]


def environment(path: str, **more: str) -> dict[str, str]:
    plain = {name: text for name, text in os.environ.items() if not name.startswith("XCE_")}
    return {**plain, "XCE_NODEAGENT_SOCKET": path, "COLUMNS": "80", **more}


def command(path: str, *arguments: str, stdin: str = "", **more: str) -> Done:
    return subprocess.run(
        [*COMMAND, *arguments], env=environment(path, **more), input=stdin, text=True,
        capture_output=True, timeout=30, check=False,
    )  # fmt: skip


def in_terminal(path: str, columns: int, *arguments: str, code: str = "") -> str:
    """Run it with a terminal of so many columns as stdout; give what it wrote, without colours."""
    ours, theirs = pty.openpty()
    words = [sys.executable, "-c", code] if code else [*COMMAND, *arguments]
    with os.fdopen(ours, "rb", buffering=0) as screen:
        with subprocess.Popen(
            words, env=environment(path, COLUMNS=str(columns), TERM="xterm"), stdout=theirs,
            stdin=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            os.close(theirs)
            shown = b""
            try:
                while chunk := screen.read(65536):
                    shown += chunk
            except OSError:  # EIO: the other side has ended
                pass
        assert process.returncode == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).replace("\r\n", "\n")


def good(done: Done) -> str:
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def bindings(run: Run) -> list[Any]:
    listed: list[Any] = json.loads(good(run("jobs", "--json")))["bindings"]
    return listed
