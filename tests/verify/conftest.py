"""A job on the real kernel, a process in it that tries all the time, and another root's hand."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from privileged import conftest as _kernel

from xce_nodeagent.binding.executor import Executor
from xce_nodeagent.binding.ledger import Ledger
from xce_nodeagent.binding.outcome import Outcomes
from xce_nodeagent.binding.turn import Turns
from xce_nodeagent.binding.verification import Found, Verification
from xce_nodeagent.errors import BY_CODE
from xce_nodeagent.model.binding import Ask, Binding, Bound, Committed, Lost
from xce_nodeagent.model.instance import DeviceNode
from xce_nodeagent.model.plan import AdoptCgroup, AllowDevice, CgroupRef, MakeCgroup, Plan
from xce_nodeagent.model.rule import Device
from xce_nodeagent.privileged import bpfcall
from xce_nodeagent.privileged.ops import Failed

scratch, local_majors, nodes = _kernel.scratch, _kernel.local_majors, _kernel.nodes
make_world, world2, world1 = _kernel.make_world, _kernel.world2, _kernel.world1
V2, PER_JOB, V1 = _kernel.V2, _kernel.PER_JOB, _kernel.V1

TRIER = """
import errno, json, os, select, sys
cgroup, mine, others = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
with open(cgroup + "/cgroup.procs", "w") as procs: procs.write("0")
print("in", flush=True)
def opens(path):
    try: os.close(os.open(path, os.O_RDWR))
    except OSError as error: return error.errno != errno.EPERM
    return True
told = {"given": 0, "refused": 0, "kept": 0, "stolen": 0}
while True:
    for path in mine: told["given" if opens(path) else "refused"] += 1
    for path in others: told["stolen" if opens(path) else "kept"] += 1
    if select.select([0], [], [], 0)[0]:
        if not sys.stdin.readline(): break
        print(json.dumps(told), flush=True)
        told = dict.fromkeys(told, 0)
"""


class Trier:
    """A process of the job that opens what it was given, and what it was not, without a pause."""

    def __init__(self, cgroup: str, mine: list[Path], others: list[Path]) -> None:
        lists = (json.dumps([str(path) for path in paths]) for paths in (mine, others))
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", TRIER, cgroup, *lists],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout.readline() == "in\n"

    def tell(self) -> dict[str, int]:
        """How its tries went since it was last asked."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def later(self, tries: int = 50) -> dict[str, int]:
        """How some tries go that begin now."""
        self.tell()
        told: dict[str, int] = dict.fromkeys(("given", "refused", "kept", "stolen"), 0)
        while sum(told.values()) < tries:
            for name, count in self.tell().items():
                told[name] += count
        return told

    def is_fenced(self) -> None:
        """It has all that it was given, and nothing else."""
        told = self.later()
        assert told["given"], told
        assert told["kept"], told
        assert not told["refused"], told
        assert not told["stolen"], told

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait(20)
        self.process.stdout.close()


class Stage:
    """The agent's verification before a binder on the real kernel, with one job."""

    def __init__(self, world: Any, nodes: dict[Device, Path], folder: Path) -> None:
        self.world, self.nodes = world, nodes
        self.given, *self.others = sorted(nodes)
        self.ledger = Ledger(folder / "ledger.db", "boot", time.time, log_bytes=0)
        self.outcomes = Outcomes(self.ledger)
        self.executor = Executor(
            self, lambda: frozenset(self.world.devices), self.ledger.book.has_mark
        )
        self.verification = Verification(
            self.ledger,
            self.executor,
            Turns(),
            self.outcomes,
            finish=lambda: None,
            lost=self.lost,
            clock=time.time,
        )
        self.asked: list[Any] = []
        self.triers: list[Trier] = []
        world.start(*nodes)

    async def lost(self, binding: Binding) -> None:
        self.ledger.note(Lost(job=binding.job, attempt=binding.attempt, reason="cgroup-vanished"))

    async def call(self, request: Any, fds: Any = (), *, meanwhile: Any = None) -> Any:
        """Stand for the helper's socket."""
        self.asked.append(request)
        answer = self.world.binder.handle(request, fds)
        if isinstance(answer, Failed):
            raise BY_CODE[answer.code](answer.message, **answer.details)
        return answer

    def bind(self, cgroup: CgroupRef | None = None, job: str = "1") -> Binding:
        """Bind the first device to a job, in a cgroup of ours or a caller's."""
        step = AdoptCgroup(cgroup) if cgroup else MakeCgroup(self.world.job())
        node = DeviceNode(str(self.nodes[self.given]), "c", self.given.major, self.given.minor)
        event = Committed(
            job=job,
            attempt="",
            ask=Ask(),
            instances=("card",),
            excluded=(),
            plan=Plan((step, AllowDevice(node))),
            generation="boot:1",
            enforcement="cgroup2",
        )
        binding = self.ledger.commit(event)
        asyncio.run(self.executor.carry_out(binding))
        self.ledger.note(Bound(job=job, attempt=""))
        self.binding = self.ledger.book.live[job, ""]
        self.path = self.binding.plan.cgroup.cgroup.path
        return self.binding

    def trying(self, cgroup: str | None = None) -> Trier:
        """Start a process in the job that tries all the time."""
        others = [self.nodes[device] for device in self.others[:2]]
        self.triers.append(Trier(cgroup or self.path, [self.nodes[self.given]], others))
        return self.triers[-1]

    def look(self, *, deep: bool = False) -> Found:
        """Verify everything once, and give what became of the one job."""
        (found,) = asyncio.run(self.verification.run(deep=deep))
        return found

    def look_all(self) -> dict[str, str]:
        """Verify everything once, and give what became of each job."""
        return {f.key[0]: f.result for f in asyncio.run(self.verification.run())}

    @property
    def fault(self) -> str:
        return self.verification.fault(self.binding)

    def end(self) -> None:
        for trier in self.triers:
            trier.end()
        self.ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


@pytest.fixture
def make_stage(
    make_world: Callable[[str], Any], nodes: dict[Device, Path], tmp_path: Path
) -> Iterator[Callable[[str], Stage]]:
    made: list[Stage] = []

    def make(kind: str) -> Stage:
        made.append(Stage(make_world(kind), nodes, tmp_path))
        return made[-1]

    yield make
    for stage in made:
        stage.end()


@pytest.fixture(params=[V2, PER_JOB])
def stage(request: pytest.FixtureRequest, make_stage: Callable[[str], Stage]) -> Stage:
    """A job on cgroup v2: under the shared program, and under one of its own."""
    stage = make_stage(request.param)
    stage.bind()
    return stage


@pytest.fixture
def stage2(make_stage: Callable[[str], Stage]) -> Stage:
    """A job under the shared program; the test is marked with what that needs."""
    stage = make_stage("cgroup2")
    stage.bind()
    return stage


@pytest.fixture
def stage1(make_stage: Callable[[str], Stage]) -> Stage:
    """A job on cgroup v1; the test is marked with what that needs."""
    stage = make_stage("cgroup1")
    stage.bind()
    return stage


class Hand:
    """What another process of root may do to a cgroup's programs."""

    def __init__(self) -> None:
        self.links: list[int] = []

    def _at(self, path: str) -> int:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY)

    def ids(self, path: str) -> tuple[int, ...]:
        """The programs that hang on a cgroup."""
        fd = self._at(path)
        try:
            return bpfcall.query(fd).ids
        finally:
            os.close(fd)

    def infos(self, path: str) -> list[bpfcall.ProgramInfo]:
        """What the kernel says of them."""
        found = []
        for number in self.ids(path):
            fd = bpfcall.prog_open(number)
            found.append(bpfcall.prog_info(fd))
            os.close(fd)
        return found

    def detach(self, path: str, number: int | None = None) -> None:
        """Detach one program, or all."""
        fd = self._at(path)
        for one in self.ids(path) if number is None else (number,):
            program = bpfcall.prog_open(one)
            bpfcall.detach(fd, program)
            os.close(program)
        os.close(fd)

    def attach(
        self, path: str, code: bytes, name: str, *, replaces: int | None = None, alone: bool = False
    ) -> int:
        """Attach a program, beside others, in the place of one, or (`alone`) forbidding others."""
        fd, program = self._at(path), bpfcall.prog_load(code, name)
        old = None if replaces is None else bpfcall.prog_open(replaces)
        try:
            if alone:
                attr = bpfcall._Attr()
                for place, value in enumerate((fd, program, 6, 0)):
                    attr[place * 4 : place * 4 + 4] = value.to_bytes(4, "little")
                bpfcall._call(8, attr, "attach alone")
            else:
                bpfcall.attach(fd, program, old)
            return bpfcall.prog_info(program).id
        finally:
            for one in (fd, program, *(() if old is None else (old,))):
                os.close(one)

    def effective(self, path: str) -> tuple[int, ...]:
        """The programs that judge a cgroup, with those above it."""
        fd = self._at(path)
        try:
            return bpfcall.effective(fd)
        finally:
            os.close(fd)


@pytest.fixture
def hand() -> Hand:
    return Hand()
