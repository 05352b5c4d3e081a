"""The metrics: read from those who know, when somebody asks, and written as Prometheus reads them.

It asks no helper and no disk but for the size of the ledger, so it can be done in the event loop;
who asks again within a second is told the same.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct, structs

from xce_nodeagent import __version__
from xce_nodeagent.binding.helper import Helper
from xce_nodeagent.binding.ledger import Ledger
from xce_nodeagent.binding.lifecycle import Lifecycle
from xce_nodeagent.binding.verification import Verification
from xce_nodeagent.daemon.cards import Cards
from xce_nodeagent.daemon.meter import Meter
from xce_nodeagent.daemon.server import Server
from xce_nodeagent.daemon.upkeep import Upkeep
from xce_nodeagent.export import figures
from xce_nodeagent.export.exposition import expose
from xce_nodeagent.export.figures import Figures, Process, Sink
from xce_nodeagent.export.stock import stock
from xce_nodeagent.host import process
from xce_nodeagent.model.binding import State
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.upstream.delivery import Status

FRESH_SECONDS = 1.0
"""For how long an exposition is told again, so that nobody can have it made all the time."""

BINDING_STATES: Final[tuple[State, ...]] = ("committed", "bound", "releasing", "quarantined")


class Measured(Struct, frozen=True, kw_only=True):
    """Whom is asked. `sinks` gives how it stands with each, `inventory` the current one."""

    meter: Meter
    lifecycle: Lifecycle
    inventory: Callable[[], Inventory]
    helpers: Sequence[Helper]
    server: Server
    cards: Cards
    upkeep: Upkeep
    sinks: Callable[[], Sequence[Status]]


class Metrics:
    """The exposition of an agent. `clock` is monotonic, in seconds."""

    def __init__(self, of: Measured, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._of = of
        self._clock = clock
        self._told, self._at = b"", -FRESH_SECONDS

    def scraped(self) -> bytes:
        """Give all of them."""
        now = self._clock()
        if now - self._at >= FRESH_SECONDS:
            own = Process(**process.own()._asdict())
            self._told, self._at = self._text(structs.replace(self.read(), process=own)), now
        return self._told

    def written(self) -> bytes:
        """Give those for a file.

        Without those of the process: they move without a reason, and node_exporter has its own of
        the same names.
        """
        return self._text(self.read())

    def _text(self, found: Figures) -> bytes:
        return expose(figures.metrics(found)).encode()

    def read(self) -> Figures:
        """Read all that is measured, but for the process."""
        of, meter = self._of, self._of.meter
        ledger, pace = of.lifecycle.ledger, of.lifecycle.pace
        verification = of.lifecycle.verification
        count = verification.count
        # Who was carried out and is not noted yet is bound to everybody who looks.
        of.lifecycle.outcomes.settle()
        bindings = ledger.book.live.values()
        inventory = of.inventory()
        states = Counter(binding.state for binding in bindings)
        heard, deaf = of.cards.ears
        return Figures(
            version=__version__,
            generation=inventory.number,
            stock=stock(inventory, bindings),
            bindings={state: states[state] for state in BINDING_STATES},
            bindings_unhealthy=sum(bool(verification.fault(one)) for one in bindings),
            calls=meter.calls,
            prepare=meter.durations["Prepare"],
            release=meter.durations["Release"],
            prepare_steps=pace.prepare,
            release_steps=pace.release,
            connections=of.server.connections,
            turned_away=meter.turned_away,
            verified=_verified(verification),
            verification_rounds=count.rounds,
            verification_time=count.last,
            verification_cpu=count.cpu,
            helpers={one.role: (not one.missing, one.restarts) for one in of.helpers},
            sinks=[_sink(one) for one in of.sinks()],
            looks=meter.looks,
            events=meter.events,
            commits=of.upkeep.commits,
            ledger_bytes=_size(ledger),
            ledger_waits=ledger.waits,
            ledger_writable=not ledger.fault,
            library=of.cards.library,
            cards=heard,
            deaf=deaf,
        )


def _verified(verification: Verification) -> Mapping[str, int]:
    count = verification.count
    amiss = {
        "repaired": count.repaired,
        "masked": count.masked,
        "vanished": count.vanished,
        "failed": count.failed,
        "reasserted": count.reasserted,
    }
    return {"whole": max(0, count.verified - sum(amiss.values())), **amiss}


def _sink(status: Status) -> Sink:
    return Sink(
        kind=status.kind,
        lag=status.lag,
        failing=bool(status.failing),
        deliveries=status.deliveries,
        failures=status.failures,
        bytes=status.bytes,
    )


def _size(ledger: Ledger) -> int | None:
    size = 0
    try:
        size = ledger.path.stat().st_size
        with contextlib.suppress(FileNotFoundError):
            size += Path(f"{ledger.path}-wal").stat().st_size
    except OSError:
        return None
    return size
