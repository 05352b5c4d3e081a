"""Cgroups, device nodes and processes of a test's own, in both kinds of hierarchy."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest

from xce_nodeagent.model.major import LOCAL_MAJORS
from xce_nodeagent.model.plan import Backend, CgroupRef
from xce_nodeagent.model.rule import Access, Device, Rule
from xce_nodeagent.privileged import majors
from xce_nodeagent.privileged.binder import Binder
from xce_nodeagent.privileged.ops import (
    Bind,
    BinderRequest,
    Done,
    Failed,
    Manage,
    Take,
    Taken,
    Unbind,
    Unbound,
    Verified,
    Verify,
    pack,
)

# A process that joins a cgroup and then does what it is told, so that opening costs no fork.
PRISONER = """
import os, sys
for line in sys.stdin:
    verb, *words = line.split()
    try:
        if verb == "join":
            with open(words[0] + "/cgroup.procs", "w") as procs: procs.write("0")
        elif verb == "open":
            os.close(os.open(words[0], int(words[1])))
        elif verb == "mknod":
            os.mknod(words[0], int(words[1], 8), os.makedev(int(words[2]), int(words[3])))
            os.unlink(words[0])
        elif verb == "mkdir":
            os.mkdir(words[0])
        print("ok", flush=True)
    except OSError as error:
        print(error.errno, flush=True)
"""


class Prisoner:
    """A process in a cgroup; ended and reaped when the `with` ends."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", PRISONER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stdin.close()
        assert self.process.wait(10) == 0
        self.process.stdout.close()

    def _tell(self, *words: object) -> str:
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        return answer if answer == "ok" else errno.errorcode[int(answer)]

    def join(self, cgroup: str) -> None:
        assert self._tell("join", cgroup) == "ok"

    def mkdir(self, path: str) -> None:
        assert self._tell("mkdir", path) == "ok"

    def open(self, path: Path | str, flags: int) -> str:
        return self._tell("open", path, flags)

    def mknod(self, device: Device) -> str:
        mode = stat.S_IFCHR if device.type == "c" else stat.S_IFBLK
        return self._tell("mknod", self._scratch / "new", f"{mode:o}", device.major, device.minor)

    def may(self, node: Path, device: Device, access: Access) -> bool:
        """Try an access for real. Behind these nodes is no driver: ENXIO means let through."""
        if access == Access.MKNOD:
            answer = self.mknod(device)
        else:
            flags = {
                Access.READ: os.O_RDONLY,
                Access.WRITE: os.O_WRONLY,
                Access.READ | Access.WRITE: os.O_RDWR,
            }[access]
            answer = self.open(node, flags)
        assert answer in {"ok", "ENXIO", "EPERM"}
        return answer != "EPERM"


ACCESSES = (Access.READ, Access.WRITE, Access.READ | Access.WRITE, Access.MKNOD)


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """A folder in which device nodes work."""
    if not os.statvfs(tmp_path).f_flag & os.ST_NODEV:
        yield tmp_path
        return
    folder = Path(f"/dev/xce-test-{os.getpid()}")
    folder.mkdir()
    yield folder
    for node in folder.iterdir():
        node.unlink()
    folder.rmdir()


@pytest.fixture
def prisoner(scratch: Path) -> Iterator[Prisoner]:
    with Prisoner(scratch) as one:
        yield one


@pytest.fixture(scope="session")
def local_majors() -> tuple[int, int]:
    """Two majors for local use that no driver of this host has."""
    taken = majors.character_drivers(Path("/proc"))
    first, second, *_ = (major for major in LOCAL_MAJORS if major not in taken)
    return first, second


@pytest.fixture
def nodes(scratch: Path, local_majors: tuple[int, int]) -> dict[Device, Path]:
    """Six devices, and a node for each."""
    made = {}
    for major in local_majors:
        for minor in (0, 1, 255):
            path = scratch / f"node-{major}-{minor}"
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
            made[Device("c", major, minor)] = path
    return made


class World:
    """A home and an allowed root of a test's own, in one kind of hierarchy, and a binder."""

    def __init__(self, backend: Backend, mount: Path, *, shared: bool = True) -> None:
        self.backend = backend
        self.shared = shared
        self.base = mount / f"xce-test-{os.getpid()}-{next(_numbers)}"
        self.base.mkdir()
        self.roots = self.base / "roots"
        self.roots.mkdir()
        self.home = CgroupRef(backend, f"{self.base}/home")
        self.known: tuple[CgroupRef, ...] = ()
        self.devices: tuple[Device, ...] = ()
        self.binder = self.new_binder()

    def new_binder(self, **changes: object) -> Binder:
        arguments = {
            "home": self.home,
            "roots": (CgroupRef(self.backend, str(self.roots)),),
            "shared": self.shared,
            "simulated": (),
        }
        return Binder(**(arguments | changes))

    def take(self, *known: CgroupRef) -> Taken:
        answer = self.binder.handle(Take(known))
        assert isinstance(answer, Taken), answer
        return answer

    def pretend(self, *devices: Device) -> None:
        """Let the binder believe that it made these devices; the kernel is the real one."""
        self.devices = devices
        self.binder._made = frozenset(devices)

    def start(self, *devices: Device, managed: tuple[Device, ...] | None = None) -> Taken:
        taken = self.take()
        self.pretend(*devices)
        self.ask(Manage(devices if managed is None else managed))
        return taken

    def restart(self, *known: CgroupRef) -> Taken:
        """End the binder as a kill would, and start another one."""
        self.binder.close(tidy=False)
        self.binder = self.new_binder()
        taken = self.take(*known)
        self.pretend(*self.devices)
        return taken

    def ask(self, request: BinderRequest) -> None:
        assert self.binder.handle(request) == Done()

    def job(self, name: str = "job-1") -> CgroupRef:
        return CgroupRef(self.backend, f"{self.home.path}/{name}")

    def named(self, name: str) -> CgroupRef:
        """A cgroup that a caller made below the allowed root."""
        path = self.roots / name
        path.mkdir(parents=True, exist_ok=True)
        return CgroupRef(self.backend, str(path))

    def bind(
        self, cgroup: CgroupRef, *grants: Rule, mark: str = "mark", record: bytes = b""
    ) -> None:
        make = cgroup.path.startswith(self.home.path)
        self.ask(Bind(mark, cgroup, pack(grants), make=make, record=record))

    def refusal(self, request: BinderRequest, fds: tuple[int, ...] = ()) -> str:
        """Give the code with which a request fails."""
        answer = self.binder.handle(request, fds)
        assert isinstance(answer, Failed), answer
        assert len(answer.message) > 20
        return answer.code

    def unbind(self, cgroup: CgroupRef, *, remove: bool = True, mark: str = "mark") -> Unbound:
        answer = self.binder.handle(Unbind(mark, cgroup, remove))
        assert isinstance(answer, Unbound), answer
        return answer

    def verify(self, cgroup: CgroupRef, *grants: Rule, mark: str = "mark") -> Verified:
        answer = self.binder.handle(Verify(mark, cgroup, pack(grants)))
        assert isinstance(answer, Verified), answer
        return answer

    def end(self) -> None:
        try:
            self.binder.close(tidy=False)
        finally:
            for folder, _, _ in os.walk(self.base, topdown=False):
                Path(folder).rmdir()


_numbers = itertools.count()

V2 = pytest.param("cgroup2", marks=pytest.mark.needs("root", "cgroup2", "bpf"))
PER_JOB = pytest.param("per-job", marks=pytest.mark.needs("root", "cgroup2", "bpf"))
V1 = pytest.param("cgroup1", marks=pytest.mark.needs("root", "cgroup1"))


@pytest.fixture
def make_world(request: pytest.FixtureRequest) -> Iterator[Callable[[str], World]]:
    with contextlib.ExitStack() as made:

        def make(kind: str) -> World:
            backend: Backend = "cgroup1" if kind == "cgroup1" else "cgroup2"
            mount = request.getfixturevalue(f"{backend}_mount")
            world = World(backend, mount, shared=kind != "per-job")
            made.callback(world.end)
            return world

        yield make


@pytest.fixture(params=[V2, PER_JOB, V1])
def world(request: pytest.FixtureRequest, make_world: Callable[[str], World]) -> World:
    """Each back end in turn; the shared program and the program per job are two."""
    return make_world(request.param)


@pytest.fixture
def world2(make_world: Callable[[str], World]) -> World:
    """The shared program on cgroup v2; the test is marked with what that needs."""
    return make_world("cgroup2")


@pytest.fixture
def world1(make_world: Callable[[str], World]) -> World:
    """The devices controller of cgroup v1; the test is marked with what that needs."""
    return make_world("cgroup1")
