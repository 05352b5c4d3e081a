"""NVIDIA's library as a stand-in under the real pynvml, asked in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xce_nodeagent.host import Host
from xce_nodeagent.provider import Found
from xce_nodeagent.providers.nvidia import PROVIDER

STUB = Path(__file__).parents[1] / "machines/nvml/nvml_stub.c"
DEADLINE = 20.0

# Each question is answered by a child, which may hang and be killed; so the library is loaded once.
SERVER = """
import json, os, sys
from xce_nodeagent.host import nvml
import pynvml
say = lambda *what: print(json.dumps(what), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    os.environ["XCE_NVML_DATA"] = asked["data"]
    os.environ["XCE_NVML_HUNG"] = asked["data"] + ".hung"
    pid = os.fork()
    if pid == 0:
        say("pid", os.getpid())
        say("answer", *nvml.probe(asked["skip"], lambda what: say("started", what)))
        os._exit(0)
    say("ended", os.waitpid(pid, 0)[1])
"""


class Library:
    """The stand-in: `ask` puts its data to it, and gives what `nvml.probe` says."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self.folder = folder
        self.started: list[str] = []
        self._process = process
        self._number = 0

    def _send(self, data: str, skip: tuple[str, ...]) -> Path:
        self._number += 1
        path = self.folder / f"{self._number}.txt"
        path.write_text(data, "latin-1")
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"data": str(path), "skip": skip}) + "\n")
        self._process.stdin.flush()
        self.started = []
        return path

    def _read(self) -> list[Any]:
        assert self._process.stdout is not None
        told: list[Any] = json.loads(self._process.stdout.readline())
        if told[0] == "started":
            self.started.append(told[1])
        return told

    def ask(self, data: str, skip: tuple[str, ...] = ()) -> tuple[str, str, dict[str, Any]]:
        """Give what the library says when this is its data."""
        self._send(data, skip)
        answer: Any = None
        while (told := self._read())[0] != "ended":
            if told[0] == "answer":
                answer = tuple(told[1:])
        assert told[1] == 0, f"the probe died: wait status {told[1]}"
        assert answer is not None
        return answer  # type: ignore[no-any-return]  # of JSON

    def hangs(self, data: str) -> str:
        """Wait until the library hangs over this data, and end it; give the function's name."""
        mark = Path(f"{self._send(data, ())}.hung")
        _, pid = self._read()
        end = time.monotonic() + DEADLINE
        while not mark.exists() or not mark.read_text("ascii"):
            assert time.monotonic() < end, "the library does not hang"
            time.sleep(0.002)
        os.kill(pid, 9)
        while self._read()[0] != "ended":
            pass
        return mark.read_text("ascii")


def compiled(folder: Path, *options: str) -> Path:
    """Compile the stand-in, for instance without some functions (`-DNAME=lacking`)."""
    path = folder / "libnvidia-ml.so.1"
    command = ["cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC", *options]
    subprocess.run([*command, "-o", path, STUB], check=True)
    return path


def serve(folder: Path) -> Iterator[Library]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        env={**os.environ, "LD_LIBRARY_PATH": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield Library(folder, process)
        assert process.stdin is not None
        process.stdin.close()
        process.kill()


def found(root: Path, answer: Any) -> Found:
    """What the provider makes of an answer."""
    return PROVIDER.discover(Host(root, probe=lambda _: answer))
