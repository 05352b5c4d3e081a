"""Hosts in network namespaces of their own, on one bridge; nothing of it is left, or seen outside.

A namespace lives as long as the process that holds it, which dies with the tests.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import time
from collections.abc import Iterator

CLONE_NEWNET = 0x40000000  # linux/sched.h
STORE = "10.77.0.1"


class Host:
    """A host: what runs there is started by `within`."""

    def __init__(self, holder: int, cable: str) -> None:
        self.within = ["nsenter", f"--net=/proc/{holder}/ns/net"]
        self._cable = cable

    def plug(self, *, on: bool) -> None:
        """Plug its cable in, or out, at the bridge's end; called from within the network."""
        _ip("link", "set", self._cable, "up" if on else "down")


@contextlib.contextmanager
def network(count: int) -> Iterator[list[Host]]:
    """Make so many hosts, and put this thread where the bridge is, which is `STORE`."""
    libc = ctypes.CDLL(None, use_errno=True)
    with contextlib.ExitStack() as stack:
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, before)
        holders = [stack.enter_context(_held()) for _ in range(count + 1)]
        store = os.open(f"/proc/{holders[0]}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, store)
        if libc.setns(store, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        stack.callback(libc.setns, before, CLONE_NEWNET)
        _ip("link", "set", "lo", "up")
        _ip("link", "add", "bridge", "type", "bridge")
        _ip("address", "add", f"{STORE}/24", "dev", "bridge")
        _ip("link", "set", "bridge", "up")
        hosts = []
        for number, holder in enumerate(holders[1:], 2):
            cable = f"cable{number}"
            other = ("peer", "name", "up0", "netns", str(holder))
            _ip("link", "add", cable, "master", "bridge", "type", "veth", *other)
            _ip("link", "set", cable, "up")
            host = Host(holder, cable)
            for what in (
                ("link", "set", "lo", "up"),
                ("address", "add", f"10.77.0.{number}/24", "dev", "up0"),
                ("link", "set", "up0", "up"),
            ):
                subprocess.run([*host.within, "ip", *what], check=True)
            hosts.append(host)
        yield hosts


@contextlib.contextmanager
def _held() -> Iterator[int]:
    own = os.readlink("/proc/self/ns/net")
    command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sleep", "infinity"]
    with subprocess.Popen(command) as process:
        try:
            end = time.monotonic() + 10
            while os.readlink(f"/proc/{process.pid}/ns/net") == own:
                assert time.monotonic() < end, "no network namespace"
                time.sleep(0.005)
            yield process.pid
        finally:
            process.kill()


def _ip(*what: str) -> None:
    subprocess.run(["ip", *what], check=True)
