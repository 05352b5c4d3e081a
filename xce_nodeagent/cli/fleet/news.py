"""What is new of a node, in words, beside what was shown of it before. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from xce_nodeagent.cli.fleet.order import shape
from xce_nodeagent.cli.fleet.view import NodeView, Wrong
from xce_nodeagent.cli.invocation import run_of

_NAMED = 3
"""Jobs, or instances, that are named; of more it is told how many."""


def news(before: NodeView | None, now: NodeView) -> str:
    """Say what is new: jobs, what is wrong or well again, and else which part is another."""
    if before is None:
        return "; ".join(("new", *_wrong(now.wrong)))
    return "; ".join(_different(before, now)) or "reported anew"


def _different(before: NodeView, now: NodeView) -> Iterator[str]:
    if now.state != before.state:
        yield f"was {before.state}"
    for said, some in (
        ("began", _runs(now) - _runs(before)),
        ("ended", _runs(before) - _runs(now)),
    ):
        if some:
            yield f"job {_few(sorted(some))} {said}"
    known = {(one.job, one.attempt): one for one in before.jobs}
    changed = [one for one in now.jobs if known.get((one.job, one.attempt), one) != one]
    if changed:
        runs = [run_of({"job": one.job, "attempt": one.attempt}) for one in changed]
        yield f"job {_few(runs)} {changed[0].state if len(changed) == 1 else 'changed'}"
    yield from _wrong([one for one in now.wrong if one not in before.wrong])
    ill = {one.id for one in now.wrong}
    if well := [one.id for one in before.wrong if one.id not in ill]:
        yield f"{_few(well)} well again"
    yield from (one for one in now.complaints if one not in before.complaints)
    if now.boot_id != before.boot_id:
        yield "booted anew"
    elif now.generation != before.generation and shape(now) != shape(before):
        yield f"had {shape(before) or 'nothing'}"
    if now.program != before.program:
        yield f"{before.program or 'no version'} became {now.program or 'no version'}"


def _runs(node: NodeView) -> set[str]:
    return {run_of({"job": one.job, "attempt": one.attempt}) for one in node.jobs}


def _wrong(some: Iterable[Wrong]) -> Sequence[str]:
    told = [f"{one.id} {one.state}{f': {one.reason}' if one.reason else ''}" for one in some]
    more = len(told) - _NAMED
    return [*told[:_NAMED], f"and {more} more"] if more > 0 else told


def _few(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
