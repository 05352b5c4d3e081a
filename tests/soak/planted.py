"""Faults that are planted, to see that the harness finds them: it is worth what it can find."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any


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


PLANTED: dict[str, Callable[[], None]] = {
    plant.__name__: plant
    for plant in (
        commits_are_not_written, committed_is_not_carried_out, grants_outlive_the_release,
        a_binder_lets_its_predecessor_live, overlapping_instances_are_free, marks_are_left_out,
    )
}  # fmt: skip
