"""Want of descriptors says nothing: not that nobody has a device, nor what the kernel takes."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from xce_nodeagent.model.rule import Device
from xce_nodeagent.privileged import ops
from xce_nodeagent.privileged.fences import Fences
from xce_nodeagent.privileged.witness import Witness

HOLDER = "import os, sys; os.open('/dev/full', os.O_RDONLY); print(flush=True); sys.stdin.read()"
LISTENER = (
    "import socket, sys; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen();"
    "print(s.getsockname()[1], flush=True); sys.stdin.read()"
)


def with_fewer(act: Callable[[], object], most: int) -> Iterator[object]:
    """Do it with 0, 1, 2, ... free descriptors; give what comes of each: a value or an errno."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open("/", os.O_RDONLY)
    os.close(lowest)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    for limit in range(lowest, highest + most):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        try:
            found = act()
        except OSError as error:
            found = error.errno
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        yield found


@pytest.fixture
def child():
    """Start a process that says a line when it is ready; ended and reaped at the end."""
    started = []

    def start(code: str) -> tuple[int, str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process.pid, process.stdout.readline().strip()

    yield start
    for process in started:
        process.communicate(timeout=10)


def test_who_has_a_device_is_seen_or_nobody_is_told_of(child):
    pid, _ = child(HOLDER)

    def look() -> object:
        looked = Witness().handle(ops.Look(devices=(Device("c", 1, 7),)), ())
        return [one.how for one in looked.seen if one.pid == pid], pid in looked.unread

    found = list(with_fewer(look, 5))
    assert errno.EMFILE in found
    assert [one for one in found if one not in (errno.EMFILE, (["open"], False))] == []
    assert (["open"], False) in found


def test_who_listens_is_seen_or_nobody_is_told_of(child):
    pid, port = child(LISTENER)

    def look() -> object:
        looked = Witness().handle(ops.Look(ports=(int(port),)), ())
        return [one.pid for one in looked.seen]

    assert set(map(str, with_fewer(look, 5))) == {str(errno.EMFILE), str([pid])}


@pytest.mark.needs("root", "cgroup2", "bpf")
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM])
@pytest.mark.parametrize("call", ["map_create", "prog_load", "bind_map", "attach"])
def test_a_binder_that_lacks_room_does_not_settle_for_less(world2, monkeypatch, number, call):
    """It would take a program for each job, or leave no anchor, as if the kernel were old."""

    def none(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    world2.binder._roots.make_home()
    monkeypatch.setattr(f"xce_nodeagent.privileged.bpfcall.{call}", none)
    fences = Fences(proc=world2.binder._proc, shared=True)
    with world2.binder._roots.home() as home, pytest.raises(OSError, match=os.strerror(number)):
        fences.open(home, lambda _: ())
    fences.close()
