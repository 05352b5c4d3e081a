"""Faults that are planted, to see that the harness finds them: it is worth what it can find."""

from __future__ import annotations

import importlib
import inspect
import time
from collections.abc import Callable
from typing import Any

from msgspec import structs

from xce_nodeagent.privileged import attachment, bpfcall


def _swap(module: str, way: str, other: Any) -> Any:
    """Put another function in the place of one of the product; give the one that was there."""
    holder = importlib.import_module(module)
    *parents, last = way.split(".")
    for parent in parents:
        holder = getattr(holder, parent)
    before = inspect.getattr_static(holder, last)
    setattr(holder, last, other)
    return before


def commits_are_not_written() -> None:
    """What was answered is in memory only, until the notes are written."""

    def write(ledger: Any, *events: Any, last_resort: bool = False) -> None:
        ledger._notes += events
        if not events:
            plain(ledger, last_resort=last_resort)

    plain = _swap("xce_nodeagent.binding.ledger", "Ledger._write", write)


def committed_is_not_carried_out() -> None:
    """After a start, a binding that was committed is taken for one that was carried out."""

    async def recover(binding: Any, *rest: Any) -> Any:
        if binding.state == "committed":
            return "finished"
        return await plain(binding, *rest)

    plain = _swap("xce_nodeagent.binding.recovery", "_recover", recover)


def grants_outlive_the_release() -> None:
    """What is in a cgroup that is released keeps what it was given."""

    def bind(fence: Any, cgroup: Any, grants: Any, *, made: bool) -> None:
        # One that its owner made must get its fence first.
        if grants or made or "/jobs/" not in cgroup.ref.path:
            plain(fence, cgroup, grants, made=made)

    plain = _swap("xce_nodeagent.privileged.fence2", "SharedFence.bind", bind)


def a_binder_lets_its_predecessor_live() -> None:
    """The lock is no lock: who stalled goes on when it wakes up."""
    _swap("xce_nodeagent.privileged.lock", "_try", lambda _: True)


def overlapping_instances_are_free() -> None:
    """A card and its slices are taken for different silicon."""
    _swap("xce_nodeagent.binding.book", "Book.is_free", lambda _, __: True)


def marks_are_left_out() -> None:
    """A cgroup does not bear whose it is."""
    _swap("xce_nodeagent.privileged.cgroup", "Cgroup.set_label", lambda *_: None)


def a_quarantine_is_looked_at_once() -> None:
    """What was not clean when it was released is never looked at again."""
    _swap("xce_nodeagent.binding.cleaning", "Cleaning.later", lambda _: None)


def a_listener_is_not_looked_for() -> None:
    """A job is clean when its cgroup is empty, whoever listens on its ports."""
    _swap("xce_nodeagent.binding.leftover", "listening", lambda *_: [])


def a_kill_hits_whoever_is_there() -> None:
    """What is to be ended is the cgroup of that name, whichever run of the job it is."""

    def answer(request: Any, roots: Any, proc: Any, *, agent: int, allowed: bool) -> Any:
        try:
            cgroup = roots.open(request.cgroup)
        except FileNotFoundError:
            return plain(request, roots, proc, agent=agent, allowed=allowed)
        with cgroup:
            killed = kill.end(cgroup, request.signal, proc, agent=agent)
        # Who ends faster than it is looked would hide the fault: SIGKILL comes in any case.
        return structs.replace(killed, left=killed.left or request.signal == "term")

    kill = importlib.import_module("xce_nodeagent.privileged.kill")
    plain = _swap("xce_nodeagent.privileged.kill", "answer", answer)
    _swap("xce_nodeagent.binding.release", "Releases._waits", lambda *_: True)


def a_kill_is_forgotten() -> None:
    """Who does not end by SIGTERM is let live."""

    async def kill(*_: Any) -> None:
        return

    _swap("xce_nodeagent.binding.killing", "Killing._kill", kill)


def who_joins_stays_where_he_is() -> None:
    """A process is told that it is in the cgroup, and is not."""
    _swap("xce_nodeagent.privileged.pidfd", "enter", lambda *_: None)


def reconcile_releases_nobody() -> None:
    """A worker's whole truth is heard, and nothing follows."""

    async def undo(*_: Any, **__: Any) -> Any:
        return wire.Released(released=True, clean=True)

    async def reconcile(lifecycle: Any, ask: Any, now: float) -> Any:
        before = lifecycle.releases.undo
        lifecycle.releases.undo = undo
        try:
            return await plain(lifecycle, ask, now)
        finally:
            lifecycle.releases.undo = before

    wire = importlib.import_module("xce_nodeagent.model.wire")
    plain = _swap("xce_nodeagent.daemon.agent", "reconcile", reconcile)


def a_lost_ledger_is_an_empty_one() -> None:
    """What cgroups bear is not taken into a ledger that does not know it."""
    _swap("xce_nodeagent.binding.rebuild", "_compare", lambda *_: "")


def who_has_lost_his_cgroup_is_bound() -> None:
    """A cgroup that somebody removed is missed by nobody."""

    async def close(*_: Any) -> None:
        return

    _swap("xce_nodeagent.binding.loss", "Losses.close", close)


def _without_a_fence(cgroup: Any, seconds: float) -> None:
    """Detach what fences a job, wait, and put it back."""
    with attachment.ours(cgroup.fd, attachment.FENCES) as found:
        for program in found:
            bpfcall.detach(cgroup.fd, program.fd)
        time.sleep(seconds)
        for program in found:
            bpfcall.attach(cgroup.fd, program.fd)


def a_restart_opens_for_a_moment() -> None:
    """A binder that takes over has every job open for 2 ms."""

    def take(binder: Any, request: Any) -> Any:
        taken = plain(binder, request)
        for cgroup in binder._open_bound("cgroup2"):
            _without_a_fence(cgroup, 0.002)
        return taken

    plain = _swap("xce_nodeagent.privileged.binder", "Binder._take", take)


def a_repair_detaches_first() -> None:
    """What is bound already is opened, to be fenced anew."""

    def bind(fence: Any, cgroup: Any, grants: Any, *, made: bool) -> None:
        if not made:
            _without_a_fence(cgroup, 0.0)
        plain(fence, cgroup, grants, made=made)

    plain = _swap("xce_nodeagent.privileged.fence2", "SharedFence.bind", bind)


PLANTED: dict[str, Callable[[], None]] = {
    plant.__name__: plant
    for plant in (
        commits_are_not_written, committed_is_not_carried_out, grants_outlive_the_release,
        a_binder_lets_its_predecessor_live, overlapping_instances_are_free, marks_are_left_out,
        a_quarantine_is_looked_at_once, a_listener_is_not_looked_for, a_kill_hits_whoever_is_there,
        a_kill_is_forgotten, who_joins_stays_where_he_is, reconcile_releases_nobody,
        a_lost_ledger_is_an_empty_one, a_restart_opens_for_a_moment, a_repair_detaches_first,
        who_has_lost_his_cgroup_is_bound,
    )
}  # fmt: skip
