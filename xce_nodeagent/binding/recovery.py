"""Recovery: after a start, every binding of the ledger is made whole or gone."""

from __future__ import annotations

import logging
from collections import Counter

from xce_nodeagent.binding.executor import Executor
from xce_nodeagent.binding.ledger import Ledger
from xce_nodeagent.binding.lifecycle import Lifecycle
from xce_nodeagent.errors import AgentError, BadCgroup, Conflict, Enforcement
from xce_nodeagent.model.binding import Binding, Bound, Lost

log = logging.getLogger(__name__)


async def recover(ledger: Ledger, executor: Executor, lifecycle: Lifecycle) -> Counter[str]:
    """Replay outcomes; give counts of what was done, by name.

    - `lost-reboot`: the binding is of another boot; it is closed, and nothing else is touched.
    - `cgroup-vanished`: its cgroup is gone; it is closed.
    - `whole`: the kernel has what the ledger says. `repaired`: it had not, and has again.
    - `re-asserted`: the same was written again, because cgroup v1 cannot show what it has.
    - `masked`: it is whole, and a program of another's that came later may take from it.
    - `finished`, `undone`: it was committed and not known to be carried out; now it is, or it
      cannot be, because its cgroup is not what it was, and is taken back.
    - `released`: it was being released, and now is; or the kernel says that it was.
    - `failed`: none of this could be done now. The record stays, and it is tried again.
    """
    counts: Counter[str] = Counter()
    for key in [binding.key for binding in ledger.book]:
        binding = ledger.book.live.get(key)
        if binding is None:
            continue  # what is cleaned by now, while we waited for the binder
        try:
            counts[await _recover(binding, ledger, executor, lifecycle)] += 1
        except AgentError as error:
            log.error("job %s cannot be recovered: %s", binding.job, error.message)
            lifecycle.releases.clean_later()
            counts["failed"] += 1
    try:
        ledger.flush()
    except Enforcement as error:
        # The running jobs need an agent all the same, and it will be written when it can be.
        log.error("%s", error.message)
        lifecycle.outcomes.flush_later()
    return counts


async def _recover(
    binding: Binding, ledger: Ledger, executor: Executor, lifecycle: Lifecycle
) -> str:
    job, attempt = binding.key
    if ledger.boots.get(binding.key) != ledger.boot:
        ledger.note(Lost(job=job, attempt=attempt, reason="lost-reboot"))
        return "lost-reboot"
    match binding.state:
        case "releasing" | "quarantined":
            await lifecycle.releases.undo(binding.key, only=binding)
            return "released"
        case "committed":
            # Whoever asked may have been answered: its job may run, or had something before.
            lifecycle.unlooked.add(binding.key)
            try:
                await executor.carry_out(binding, again=True)
            except (BadCgroup, Conflict) as error:
                await lifecycle.releases.fail(binding, None, error)
                return "undone"
            except AgentError:
                lifecycle.releases.owe(binding)
                raise
            ledger.note(Bound(job=job, attempt=attempt))
            return "finished"
        case _:
            result = (await lifecycle.verification.restore(binding)).result
            if result == "released":
                await lifecycle.releases.undo(binding.key, only=binding)
            return result
