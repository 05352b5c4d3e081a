"""Reconcile: a worker's whole truth after its restart, against what is bound."""

from __future__ import annotations

import logging

from xce_nodeagent.binding.lifecycle import Lifecycle
from xce_nodeagent.errors import AgentError
from xce_nodeagent.model import name, wire

log = logging.getLogger(__name__)


async def reconcile(lifecycle: Lifecycle, ask: wire.Reconcile, now: float) -> wire.Reconciled:
    """Release whatever the worker does not name; say what became of all.

    A job that is named without an attempt keeps every attempt. Only what was bound when the call
    came is looked at: a prepare that arrives meanwhile is younger than the worker's list. A list
    with a name that is none raises BadJobId, and releases nothing: it is not the whole truth.
    """
    named = {(name.job_id(ref.job), _attempt(ref)) for ref in ask.jobs}
    present = {b.key: b for b in lifecycle.book if b.state in ("committed", "bound")}
    kept: list[wire.JobRef] = []
    released: list[wire.JobRef] = []
    unclean: list[wire.JobRef] = []
    for (job, attempt), binding in present.items():
        ref = wire.JobRef(job=job, attempt=attempt)
        if (job, attempt) in named or (job, None) in named:
            lifecycle.last_seen[job, attempt] = now
            kept.append(ref)
            continue
        if binding.key not in lifecycle.book.live:
            continue  # released meanwhile
        try:
            releases = lifecycle.releases
            answer = await releases.undo(binding.key, releases.kill_by_itself, only=binding)
            if not answer.known:
                continue  # released meanwhile, and maybe prepared again: that one is younger
            clean = answer.clean
        except AgentError as error:
            # Its intent is recorded, so it is tried again until it is done. The others go on.
            log.error("job %s cannot be released yet: %s", job, error.message)
            clean = False
        released.append(ref)
        if not clean:
            unclean.append(ref)
    have = set(present) | {(job, None) for job, _ in present}
    unknown = [ref for ref in ask.jobs if (ref.job, ref.attempt) not in have]
    return wire.Reconciled(
        kept=tuple(kept), released=tuple(released), unknown=tuple(unknown), unclean=tuple(unclean)
    )


def _attempt(ref: wire.JobRef) -> str | None:
    return None if ref.attempt is None else name.attempt(ref.attempt)
