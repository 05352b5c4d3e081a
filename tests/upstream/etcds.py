"""Real etcd on loopback: one member or several, started, killed, stopped for a while, and ended.

Ends only what it started, also when the test fails; and dies with the tests. Its data is in memory
where that can be written, for a sync of a crowded disk takes a second at times.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

DEADLINE = 30.0
_STARTED = re.compile(r'grpc_server_started_total\{grpc_method="(?P<call>\w+)".*\} (?P<count>\S+)')


def free_ports(count: int) -> list[int]:
    """Give ports of loopback that nobody had a moment ago."""
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in found]


class Etcd:
    """One member. `url` is where clients ask; `options` are etcd's own, and win over those here."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        name: str = "one",
        url: str = "",
        peer: str = "",
        cluster: str = "",
        within: Sequence[str] = (),
    ) -> None:
        if not url:
            client, other = free_ports(2)
            url, peer = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{other}"
        self.folder = folder
        self.name = name
        self.url = url
        self.peer = peer
        self.log = folder / f"{name}.log"
        self.options = list(options)
        self._cluster = cluster or f"{name}={peer}"
        self._within = list(within)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, wait: bool = True) -> Etcd:
        """Start it, on its data if it has any; wait until it answers."""
        command = [
            *("--name", self.name, "--data-dir", str(self.folder / f"{self.name}.data")),
            *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
            *("--listen-peer-urls", self.peer, "--initial-advertise-peer-urls", self.peer),
            *("--initial-cluster", self._cluster, "--logger", "zap"),
            # One alone is its own leader as soon as it may be; of several none is to be in haste.
            *("--heartbeat-interval", "50" if "," in self._cluster else "10"),
            *("--election-timeout", "500" if "," in self._cluster else "100"),
            *self.options,
        ]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self._within, "etcd", *command],
                stdout=log,
                stderr=log,
                # Its own variables would win over ours.
                env={k: v for k, v in os.environ.items() if not k.startswith("ETCD_")},
            )
        if wait:
            self.wait()
        return self

    def wait(self) -> None:
        """Wait until it answers, and has a leader."""
        _wait([self])

    def ready(self, end: float) -> bool:
        """Say whether it answers; raise where it has ended, or `end` has come."""
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"etcd ended: {self.tail()}")
        if self.healthy():
            return True
        if time.monotonic() > end:
            raise TimeoutError(f"etcd does not answer: {self.tail()}")
        return False

    def healthy(self) -> bool:
        """Say whether it answers that it is well. One that speaks TLS answers when it listens."""
        if self.url.startswith("https:"):
            host, _, port = self.url.removeprefix("https://").rpartition(":")
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
                return True
            return False
        with contextlib.suppress(OSError, ValueError):
            return bool(json.loads(self._page("/health", 2))["health"] == "true")
        return False

    def _page(self, path: str, seconds: float) -> bytes:
        with urllib.request.urlopen(self.url + path, timeout=seconds) as answer:  # noqa: S310  # its own etcd, on loopback
            return bytes(answer.read())

    def tail(self) -> str:
        """Give the end of its log."""
        return self.log.read_text("utf-8", "replace")[-2000:] if self.log.exists() else "no log"

    def kill(self) -> None:
        """Kill it at once: kill -9. Its data stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Stop it, so that it holds its connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        # Its threads stop one after the other, and answer until then.
        tasks = Path(f"/proc/{self._process.pid}/task")
        end = time.monotonic() + DEADLINE
        while any(_state(task) not in "TtXZ" for task in tasks.iterdir()):
            assert time.monotonic() < end
            time.sleep(0.001)

    def resume(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        """Kill it and start it again on its data."""
        self.kill()
        self.start()

    def wipe(self, token: str) -> None:
        """Take its data away; with a token what starts again is another cluster's.

        etcd makes a cluster's id of the members' names and URLs, and of the token.
        """
        assert self._process is None
        self.options += ["--initial-cluster-token", token] if token else []
        shutil.rmtree(self.folder / f"{self.name}.data", ignore_errors=True)

    def ctl(self, *arguments: str, text: str | None = None) -> str:
        """Ask it by etcdctl, which is no code of ours; give what it printed."""
        done = subprocess.run(
            [*self._within, "etcdctl", "--endpoints", self.url, "--dial-timeout=10s", *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
            env={**os.environ, "ETCDCTL_API": "3"},
        )
        if done.returncode:
            raise RuntimeError(f"etcdctl {arguments}: {done.stderr or done.stdout}")
        return done.stdout

    def revision(self) -> int:
        """Give its revision: it rises by one with each write."""
        found = json.loads(self.ctl("endpoint", "status", "-w", "json"))
        return int(found[0]["Status"]["header"]["revision"])

    def keys(self, prefix: str = "") -> list[str]:
        """Give the names of all keys that begin with a prefix."""
        return self.ctl("get", "--prefix", prefix, "--keys-only").split()

    def requests(self) -> Counter[str]:
        """Count what it was asked since its start, by the calls of its API."""
        lines = self._page("/metrics", 10).decode().splitlines()
        found = filter(None, map(_STARTED.match, lines))
        return Counter({one["call"]: int(float(one["count"])) for one in found})

    def metric(self, name: str) -> float:
        """Give the sum of a metric over its labels."""
        lines = self._page("/metrics", 10).decode().splitlines()
        found = [line for line in lines if line.startswith((f"{name} ", f"{name}{{"))]
        return sum(float(line.rpartition(" ")[2]) for line in found)


def _state(task: Path) -> str:
    """Give the state of a thread, as proc(5) has it; X for one that has ended."""
    try:
        return (task / "stat").read_text("ascii", "replace").rpartition(") ")[2][0]
    except OSError:
        return "X"


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Make a folder for data, in memory where that can be."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108  # not a name
    with tempfile.TemporaryDirectory(prefix="xce-etcd-", dir=memory) as name:
        yield Path(name)


TRIES = 3
_TAKEN = "address already in use"


def begin(make: Callable[[], list[Etcd]], tries: int = TRIES) -> list[Etcd]:
    """Start the members that `make` gives; others where somebody was faster to take a port."""
    for left in reversed(range(tries)):
        members = make()
        try:
            for one in members:
                one.start(wait=False)
            _wait(members)
        except BaseException as error:
            for one in members:
                one.kill()
            if not left or _TAKEN not in str(error):
                raise
            for one in members:
                one.wipe("")
                one.log.unlink()
        else:
            return members
    raise AssertionError


def _wait(members: Sequence[Etcd]) -> None:
    """Wait for all; as soon as one has ended, raise."""
    end = time.monotonic() + DEADLINE
    left = list(members)
    while left:
        left = [one for one in left if not one.ready(end)]
        time.sleep(0.02 if left else 0)


@contextlib.contextmanager
def running(*options: str, scheme: str = "http") -> Iterator[Etcd]:
    """Run one etcd."""

    def make() -> list[Etcd]:
        client, peer = free_ports(2)
        urls = {"url": f"{scheme}://127.0.0.1:{client}", "peer": f"http://127.0.0.1:{peer}"}
        return [Etcd(where, *options, **urls)]

    with folder() as where:
        (one,) = begin(make)
        try:
            yield one
        finally:
            one.kill()


@contextlib.contextmanager
def cluster(count: int = 3, *options: str) -> Iterator[list[Etcd]]:
    """Run several members of one cluster."""

    def make() -> list[Etcd]:
        ports = free_ports(2 * count)
        urls = [f"http://127.0.0.1:{port}" for port in ports[:count]]
        peers = [f"http://127.0.0.1:{port}" for port in ports[count:]]
        told = ",".join(f"m{at}={peer}" for at, peer in enumerate(peers))
        return [
            Etcd(where, *options, name=f"m{at}", url=url, peer=peer, cluster=told)
            for at, (url, peer) in enumerate(zip(urls, peers, strict=True))
        ]

    with folder() as where:
        members = begin(make)
        try:
            yield members
        finally:
            for one in members:
                one.kill()


def leader(members: Sequence[Etcd]) -> Etcd:
    """Give the member that leads."""
    for one in members:
        status = json.loads(one.ctl("endpoint", "status", "-w", "json"))[0]["Status"]
        if status["leader"] == status["header"]["member_id"]:
            return one
    raise AssertionError("nobody leads")
