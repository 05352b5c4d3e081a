"""The examination: all that doctor looks at, in the order in which people read it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from xce_nodeagent.binding.helper import Helper
from xce_nodeagent.binding.ledger import Ledger
from xce_nodeagent.binding.lifecycle import Lifecycle
from xce_nodeagent.daemon import bookkeeping, doctor, portchecks, sinkchecks
from xce_nodeagent.daemon.reporter import Reporter
from xce_nodeagent.daemon.upkeep import Upkeep
from xce_nodeagent.host import Host
from xce_nodeagent.model.config import Config
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.model.rule import Device
from xce_nodeagent.model.wire import Check
from xce_nodeagent.privileged.ops import Taken


class Examined(Struct, frozen=True, kw_only=True):
    """What is looked at. `helpers` are the binder, the witness, and others."""

    config: Config
    host: Host
    enforced: bool
    taken: Taken | None
    helpers: tuple[Helper, ...]
    cards: Sequence[Check]
    metrics: Sequence[Check]
    ledger: Ledger
    lifecycle: Lifecycle
    inventory: Inventory | None
    managed: frozenset[Device]
    upkeep: Upkeep | None
    reporter: Reporter


async def examine(it: Examined, now: float, *, repair: bool) -> tuple[Check, ...]:
    """Look at everything; `repair` puts every fence right before. `now` is the time of day."""
    book, verification = it.ledger.book, it.lifecycle.verification
    repaired: Sequence[Check] = ()
    if repair and it.upkeep is not None:
        repaired = doctor.repairs(await it.upkeep.repair())
    # What asks helpers comes first: whether there are any is known then.
    differing = await verification.compare()
    binder, witness = it.helpers[:2]
    strangers = await doctor.strangers(book, it.managed, witness)
    no_binder = binder.missing if it.enforced else ""
    return (
        *repaired,
        doctor.enforcement(it.config, it.taken, no_binder),
        doctor.helpers(
            {helper.role: helper.restarts for helper in it.helpers},
            {helper.role: helper.missing for helper in it.helpers},
        ),
        *await bookkeeping.checks(it.ledger, now, enforced=it.enforced),
        *doctor.discovery(it.inventory),
        *it.cards,
        *portchecks.checks(it.host),
        *doctor.bindings(book, verification, differing, no_binder),
        *doctor.verification(verification, now, no_binder),
        *doctor.reloads(it.upkeep.reloads if it.upkeep else None),
        *sinkchecks.checks(it.reporter.statuses(), now),
        *it.metrics,
        *doctor.shared(it.lifecycle.releases.vigil),
        *(() if witness.missing else strangers),
    )
