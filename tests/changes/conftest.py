"""Machines that change, recorded and real."""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Iterator

import pytest

CLONE_NEWNET = 0x40000000


class Network:
    """A network namespace of the test's own."""

    def __init__(self) -> None:
        self.fd = -1
        thread = threading.Thread(target=self._enter)
        thread.start()
        thread.join()
        if self.fd < 0:
            raise OSError("the network namespace could not be made")

    def _enter(self) -> None:
        # A namespace is a thread's: this one lives on in the descriptor.
        if ctypes.CDLL(None).unshare(CLONE_NEWNET) == 0:
            self.fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    def make(self, kind):
        """Call `kind` inside, and give what it gives: a socket remembers where it was made."""
        made = []

        def work() -> None:
            ctypes.CDLL(None).setns(self.fd, CLONE_NEWNET)
            made.append(kind())

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return made[0]

    def ip(self, *lines: str, family: int = 4) -> None:
        """Have these commands done inside, by one process."""
        inside = ["nsenter", f"--net=/proc/{os.getpid()}/fd/{self.fd}", "ip"]
        subprocess.run(
            [*inside, *(["-6"] if family == 6 else []), "-batch", "-"],
            input="\n".join(lines) + "\n",
            text=True,
            check=True,
            timeout=60,
        )

    def close(self) -> None:
        os.close(self.fd)


@pytest.fixture
def network() -> Iterator[Network]:
    """A network namespace that goes with the test."""
    made = Network()
    yield made
    made.close()
