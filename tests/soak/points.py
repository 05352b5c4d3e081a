"""The points at which a process can be hit: the step boundaries of prepare, release and recovery.

This is the one table of them. Each names a real function of the product; the launcher of a process
(`zygote.py`) wraps these functions when it starts one for the harness. The product has nothing of
it: no hook, no switch, no name. That is why points are absent in production by construction, and
why a function that was renamed or moved fails here, loudly, when the harness starts.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

from soak import page
from soak.page import Page


class Target(NamedTuple):
    """A function of the product; `of` says where: what a blow is drawn for (`aim.py`).

    They are prepare, release, kill (what is left is ended), clean (a quarantine is looked at and
    freed), join, look (by doctor), start, lose (a start without its ledger), and vanish (a start,
    and a job's cgroup is gone).
    """

    role: str
    name: str
    of: str


_AGENT = "xce_nodeagent.binding"
_ROOT = "xce_nodeagent.privileged"

TARGETS = (
    Target("agent", "xce_nodeagent.daemon.agent:Agent.prepare", "prepare"),
    Target("agent", "xce_nodeagent.daemon.agent:Agent.release", "release"),
    Target("agent", f"{_AGENT}.planner:plan", "prepare"),
    Target("agent", f"{_AGENT}.ledger:Ledger.commit", "prepare release"),
    Target("agent", f"{_AGENT}.ledger:Ledger._write", "prepare release start"),
    Target("agent", f"{_AGENT}.database:Database.append", "prepare release start"),
    Target("agent", f"{_AGENT}.ledger:Ledger.record", "release"),
    Target("agent", f"{_AGENT}.ledger:Ledger.note", "prepare release start"),
    Target("agent", f"{_AGENT}.ledger:Ledger.flush", "prepare release start"),
    Target("agent", f"{_AGENT}.ledger:Ledger._open", "start lose"),
    Target("agent", f"{_AGENT}.ledger:Ledger.remember", "start lose"),
    Target("agent", f"{_AGENT}.executor:Executor.carry_out", "prepare start"),
    Target("agent", f"{_AGENT}.lastlook:LastLook.__call__", "prepare"),
    Target("agent", f"{_AGENT}.executor:Executor.take_back", "release start"),
    Target("agent", f"{_AGENT}.intent:Intent.__call__", "release start"),
    Target("agent", f"{_AGENT}.executor:Executor.verify", "start vanish"),
    Target("agent", f"{_AGENT}.helper:Helper.call", "prepare release start"),
    Target("agent", f"{_AGENT}.helper:_Line.ask", "prepare release start"),
    Target("agent", f"{_AGENT}.helper:_Line._readable", "prepare release start"),
    Target("agent", f"{_AGENT}.supply:Supply._hear", "start"),
    Target("agent", f"{_AGENT}.executor:Executor.kill", "kill"),
    Target("agent", f"{_AGENT}.killing:Killing.begin", "kill"),
    Target("agent", f"{_AGENT}.killing:Killing._run", "kill"),
    Target("agent", f"{_AGENT}.killing:Killing._kill", "kill"),
    Target("agent", f"{_AGENT}.cleaning:Cleaning._one", "clean"),
    Target("agent", f"{_AGENT}.vigil:Vigil._run", "clean"),
    Target("agent", f"{_AGENT}.vigil:Vigil._judge", "clean"),
    Target("agent", f"{_AGENT}.release:Releases._freed", "clean"),
    Target("agent", f"{_AGENT}.join:join", "join"),
    Target("agent", f"{_AGENT}.executor:Executor.join", "join"),
    Target("agent", f"{_AGENT}.loss:Losses.close", "vanish"),
    Target("agent", f"{_AGENT}.ledger:Ledger._rebuild", "lose"),
    Target("agent", f"{_AGENT}.store:Store.write_anew", "lose"),
    Target("agent", f"{_AGENT}.recovery:_recover", "start"),
    Target("agent", f"{_AGENT}.rebuild:compare", "start lose"),
    Target("agent", f"{_AGENT}.verification:Verification.restore", "start vanish"),
    Target("agent", "xce_nodeagent.daemon.connection:Connection.answer", "prepare release"),
    Target("agent", "xce_nodeagent.daemon.survey:Survey.publish", "start"),
    Target("binder", f"{_ROOT}.binder:Binder.handle", "prepare release start"),
    Target("binder", f"{_ROOT}.binder:Binder._take", "start"),
    Target("binder", f"{_ROOT}.binder:Binder._manage", "start"),
    Target("binder", f"{_ROOT}.binder:Binder._bind", "prepare"),
    Target("binder", f"{_ROOT}.binder:Binder._unbind", "release"),
    Target("binder", f"{_ROOT}.binder:Binder._verify", "start vanish"),
    Target("binder", f"{_ROOT}.binder:Binder._list", "start lose"),
    Target("binder", f"{_ROOT}.binder:Binder._join", "join"),
    Target("binder", f"{_ROOT}.pidfd:check", "join"),
    Target("binder", f"{_ROOT}.pidfd:enter", "join"),
    Target("binder", f"{_ROOT}.kill:answer", "kill"),
    Target("binder", f"{_ROOT}.kill:end", "kill"),
    Target("binder", f"{_ROOT}.roots:Roots.make", "prepare"),
    Target("binder", f"{_ROOT}.roots:Roots.make_home", "start"),
    Target("binder", f"{_ROOT}.cgroup:Cgroup.set_label", "prepare"),
    Target("binder", f"{_ROOT}.cgroup:Cgroup.release_label", "release"),
    Target("binder", f"{_ROOT}.cgroup:Cgroup.drop_mark", "release"),
    Target("binder", f"{_ROOT}.cgroup:Cgroup.record", "prepare release"),
    Target("binder", f"{_ROOT}.cgroup:Cgroup.remove_alone", "release"),
    Target("binder", f"{_ROOT}.fence2:SharedFence.bind", "prepare release"),
    Target("binder", f"{_ROOT}.fence2:SharedFence._anchor", "start"),
    Target("binder", f"{_ROOT}.fence2:SharedFence.manage", "start"),
    Target("binder", f"{_ROOT}.fence2:JobFence.bind", "prepare release"),
    Target("binder", f"{_ROOT}.fence1:Fence1.bind", "prepare release"),
    Target("binder", f"{_ROOT}.fence1:Fence1.manage", "start"),
    Target("binder", f"{_ROOT}.bpfcall:attach", "prepare start"),
    Target("binder", f"{_ROOT}.bpfcall:map_update", "prepare release start"),
    Target("binder", f"{_ROOT}.bpfcall:prog_load", "start"),
    Target("binder", f"{_ROOT}.lock:take", "start"),
    Target("binder", f"{_ROOT}.simnode:make", "start"),
    Target("binder", f"{_ROOT}.channel:Channel.send", "prepare release start"),
    Target("binder", f"{_ROOT}.role:serve", "start"),
    Target("supervisor", f"{_ROOT}.supervisor:Supervisor._hear", "start"),
    Target("supervisor", f"{_ROOT}.supervisor:Supervisor._say", "start"),
    Target("supervisor", f"{_ROOT}.supervisor:Supervisor._replace", "start"),
    Target("supervisor", f"{_ROOT}.supervisor:Supervisor._ready", "start"),
    Target("supervisor", f"{_ROOT}.supervisor:Supervisor._gone", "start"),
    Target("supervisor", f"{_ROOT}.supervisor:Supervisor._farewell", "start"),
    Target("supervisor", f"{_ROOT}.nursery:Nursery.fork", "start"),
    Target("supervisor", f"{_ROOT}.nursery:Nursery.give", "start"),
    Target("supervisor", f"{_ROOT}.nursery:Nursery.reap", "start"),
    Target("prober", f"{_ROOT}.prober:Prober.handle", "start"),
    Target("prober", f"{_ROOT}.role:serve", "start"),
    Target("listener", f"{_ROOT}.listener:Listener.handle", "start"),
    Target("listener", f"{_ROOT}.role:serve", "start"),
    Target("witness", f"{_ROOT}.witness:Witness.handle", "look clean"),
    Target("witness", f"{_ROOT}.role:serve", "start"),
    Target("runner", f"{_ROOT}.runner:Runner.handle", "start"),
    Target("runner", f"{_ROOT}.role:serve", "start"),
)


class Point(NamedTuple):
    """One side of a function. Its number is its place in `POINTS`, counted from 1."""

    number: int
    role: str
    side: str
    name: str
    of: frozenset[str]

    def __str__(self) -> str:
        return f"{self.side} {self.name.rpartition('.')[0].rpartition('.')[2]}.{self._short()}"

    def _short(self) -> str:
        return self.name.rpartition(".")[2]


POINTS = tuple(
    Point(number, target.role, side, target.name, frozenset(target.of.split()))
    for number, (target, side) in enumerate(
        ((target, side) for target in TARGETS for side in ("before", "after")), 1
    )
)


def at(role: str, of: str) -> tuple[Point, ...]:
    """Give the points of a role that are come to in this work."""
    return tuple(point for point in POINTS if point.role == role and of in point.of)


class Hit:
    """This process's view of the page: what its wrapped functions ask at every point."""

    def __init__(self, shared: Page) -> None:
        self._words = shared.words
        self._slot = 0
        self._role = ""

    def become(self, role: str) -> None:
        """Say which role this process has from now on."""
        self._role = role
        self._slot = page.slot(role)

    @property
    def role(self) -> str:
        return self._role

    def __call__(self, number: int) -> None:
        """Come to a point."""
        words, slot = self._words, self._slot
        if words[slot + page.POINT] != number:
            return
        if words[slot + page.HITS] > 1:
            words[slot + page.HITS] -= 1
            return
        words[slot + page.POINT] = 0
        then, left = words[slot + page.THEN], words[slot + page.NUMBER]
        if then == page.NOW:
            self._strike()
        elif then == page.CALLS:
            self._after_calls(left)
        else:
            self._after_lines(left)

    def _strike(self) -> None:
        """Say that it is here, and wait for the signal: some may send none, not even to itself."""
        words, slot = self._words, self._slot
        words[slot + page.HELD] = 1
        words[slot + page.FIRED] = os.getpid()
        while words[slot + page.HELD]:
            time.sleep(0.0002)

    def _after_calls(self, left: int) -> None:
        words, slot = self._words, self._slot
        epoch, pid = words[slot + page.EPOCH], os.getpid()

        def count(frame: FrameType, event: str, argument: Any) -> None:
            nonlocal left
            # A child that is forked meanwhile is not meant.
            if words[slot + page.EPOCH] != epoch or os.getpid() != pid:
                sys.setprofile(None)
            elif event == "c_call":
                left -= 1
                if left <= 0:
                    sys.setprofile(None)
                    self._strike()

        sys.setprofile(count)

    def _after_lines(self, left: int) -> None:
        words, slot = self._words, self._slot
        epoch, pid = words[slot + page.EPOCH], os.getpid()

        def count(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal left
            if words[slot + page.EPOCH] != epoch or os.getpid() != pid:
                sys.settrace(None)
                return None
            if event == "line":
                left -= 1
                if left <= 0:
                    sys.settrace(None)
                    self._strike()
                    return None
            return count

        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            frame.f_trace = count
            frame = frame.f_back
        sys.settrace(count)


def install(hit: Hit) -> None:
    """Wrap every function of the table. Raises LookupError for one that is not there any more."""
    by_name: dict[str, list[Point]] = {}
    for point in POINTS:
        by_name.setdefault(point.name, []).append(point)
    for name, found in by_name.items():
        module, _, way = name.partition(":")
        try:
            holder: Any = importlib.import_module(module)
            *parents, last = way.split(".")
            for parent in parents:
                holder = getattr(holder, parent)
            function = inspect.getattr_static(holder, last)
        except (ImportError, AttributeError) as error:
            raise LookupError(
                f"tests/soak/points.py names {name}, which is not there: {error};"
                " name the function that does this step now"
            ) from None
        if not inspect.isfunction(function):
            raise LookupError(f"{name} is no plain function: name one that is")
        wrapped = _wrapped(function, hit, _numbers(found, "before"), _numbers(found, "after"))
        setattr(holder, last, wrapped)
        if not parents:
            _replace_everywhere(function, wrapped)


def _numbers(found: list[Point], side: str) -> dict[str, int]:
    return {point.role: point.number for point in found if point.side == side}


def _replace_everywhere(function: Callable[..., Any], wrapped: Callable[..., Any]) -> None:
    """Put the wrapped one wherever the product has imported the plain one by its name."""
    for name, module in list(sys.modules.items()):
        if name.startswith("xce_nodeagent"):
            for key, value in list(vars(module).items()):
                if value is function:
                    setattr(module, key, wrapped)


def _wrapped(
    function: Callable[..., Any], hit: Hit, before: dict[str, int], after: dict[str, int]
) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def waits(*args: Any, **kwargs: Any) -> Any:
            hit(before.get(hit.role, -1))
            result = await function(*args, **kwargs)
            hit(after.get(hit.role, -1))
            return result

        return waits

    @functools.wraps(function)
    def calls(*args: Any, **kwargs: Any) -> Any:
        hit(before.get(hit.role, -1))
        result = function(*args, **kwargs)
        hit(after.get(hit.role, -1))
        return result

    return calls
