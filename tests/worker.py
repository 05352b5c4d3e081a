"""What makes tests strangers to one another when several processes run them (`./dev test -n 3`).

A file's tests stay together, for they share its fixtures; files that would see each other on the
host stay together, too. And each process has a network of its own: a port that a test listens on
is nobody else's.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

CLONE_NEWNET = 0x40000000  # linux/sched.h

TOGETHER = {
    # They open the kernel's own zero, full and random, or look who on the host has them open.
    "release": "opened",
    "process/test_witness.py": "opened",
    "cli": "opened",
    "hooks": "opened",
    "privileged/test_fences.py": "opened",
    # Trees of recorded machines, which are made once.
    "recorded": "recorded",
    # One image, which is made from the network when there is none.
    "systemd": "image",
}

HOST = ("image", "providers/test_nic.py")
"""What is to see the host's own network."""

LONGEST = ("opened", "soak/test_soak.py", "bench/test_bench_smoke.py", "image")
"""What begins first, so that nobody waits for it in the end."""


def group(path: str) -> str:
    """Say with which other tests those of a file run in one process, one after another."""
    inside = path.removeprefix("tests/")
    return TOGETHER.get(inside) or TOGETHER.get(inside.split("/")[0]) or inside


class Deal(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Deals out the tests by groups, in the order in which they were collected."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid.partition("::")[0])


def _group(item: pytest.Item) -> str:
    return group(item.nodeid.partition("::")[0])


class Worker:
    """One of the processes that run tests."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._host = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._own = self._host
        if os.geteuid() == 0 and self._libc.unshare(CLONE_NEWNET) == 0:
            self._own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put first what takes longest; all else is in a random order."""
        items.sort(key=lambda item: _group(item) not in LONGEST)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Run a test in the network that it needs."""
        there = self._host if _group(item) in HOST else self._own
        if self._libc.setns(there, CLONE_NEWNET) and self._own != self._host:
            raise OSError(ctypes.get_errno(), "setns")
        return (yield)
