"""A running supervisor with its helpers, for the tests of this folder."""

import gc
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from xce_nodeagent.binding.helper import Helper
from xce_nodeagent.binding.supply import Supply, inherited
from xce_nodeagent.errors import Enforcement
from xce_nodeagent.privileged import ops

STAGE = Path(__file__).parent / "stage.py"
PLAIN = 65534


@pytest.fixture(autouse=True)
def collected():
    """No garbage of the tests before: its descriptors would close while a test counts its own."""
    gc.collect()


class Stage:
    """The folder, the supervisor's process, and the agent's end of its connection."""

    def __init__(self, folder, arguments=(), *, plain=False, env=None, lock=None):
        self.folder = folder
        self.lock = lock or folder / "binder.lock"
        self.journal = folder / "journal"
        self.log = folder / "log"
        self.end = None
        more = ["--plain"] if plain else []
        pass_fds = ()
        if "--socket" not in arguments:
            self.end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            more += ["--fd", str(theirs.fileno())]
            pass_fds = (theirs.fileno(),)
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(STAGE), str(self.lock), str(self.journal), *more, *arguments],
                stdin=subprocess.DEVNULL, stderr=log, pass_fds=pass_fds,
                env={**os.environ, **(env or {})},
            )  # fmt: skip
        if pass_fds:
            theirs.close()

    def children(self):
        """The supervisor's children, zombies as well: pid and state."""
        found = {}
        path = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        for pid in Path(path).read_text("ascii").split():
            try:
                stat = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
            except OSError:
                continue
            found[int(pid)] = stat.rpartition(")")[2].split()[0]
        return found

    def descriptors(self):
        """The number of the supervisor's descriptors; 0 while a helper is not ready yet.

        It is not while the supervisor waits for it at a pipe.
        """
        folder = f"/proc/{self.process.pid}/fd"
        names = [name for name in os.listdir(folder) if int(name) > 2]
        try:
            links = [os.readlink(f"{folder}/{name}") for name in names]
        except FileNotFoundError:
            return 0  # it is closing one just now
        return 0 if any(link.startswith("pipe:") for link in links) else len(links)

    def acts(self):
        """What the binders wrote into the journal: word, and pid."""
        lines = self.journal.read_text("ascii").splitlines()
        return [(line.rpartition(" ")[0], int(line.rpartition(" ")[2])) for line in lines]

    def until(self, condition, what, seconds=20):
        """Wait for something that will be so; fail when it is not."""
        end = time.monotonic() + seconds
        while not (result := condition()):
            if time.monotonic() > end:
                pytest.fail(f"not within {seconds} s: {what}\n{self.log.read_text()}")
            time.sleep(0.01)
        return result

    def stop(self):
        if self.end is not None:
            self.end.close()
        try:
            return self.process.wait(15)
        finally:
            self.process.kill()
            self.process.wait()


@asynccontextmanager
async def _helpers(stage, **options):
    """The agent's three helpers, started."""
    supply = Supply(inherited(stage.end))
    stage.end = None
    options = {"unavailable": Enforcement, "linger": 2, **options}
    made = [
        Helper(
            "binder", supply, ops.BinderAnswer,
            greeting=lambda: (ops.Take(), ops.Manage(())), **options,
        ),
        Helper("prober", supply, ops.ProberAnswer, generations=1, deadline=5),
        Helper("witness", supply, ops.WitnessAnswer),
    ]  # fmt: skip
    try:
        for helper in made:
            await helper.start()
        yield made
    finally:
        for helper in made:
            helper.close()
        supply.close()


@pytest.fixture
def helpers():
    """Start the agent's three helpers: an asynchronous context."""
    return _helpers


@pytest.fixture
def stage():
    """Start supervisors, and end them."""
    started = []
    folders = []

    def start(*arguments, plain=False, env=None, lock=None):
        folder = Path(tempfile.mkdtemp(prefix="xce-stage-", dir="/tmp"))
        folders.append(folder)
        folder.chmod(0o755)
        if plain and os.geteuid() == 0:
            os.chown(folder, PLAIN, PLAIN)
        arguments = [a.replace("FOLDER", str(folder)) for a in arguments]
        one = Stage(folder, arguments, plain=plain, env=env, lock=lock)
        started.append(one)
        return one

    yield start
    for one in started:
        if one.end is not None:
            one.end.close()
        if one.process.poll() is None:
            one.process.terminate()
        one.stop()
    for folder in folders:
        shutil.rmtree(folder)
