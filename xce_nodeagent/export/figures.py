"""The agent's own figures, as metrics: what is measured, and the one table of their names. Pure.

No series is of a job: jobs come and go all the time. The values of each label are few and known:
types, states, steps, roles, codes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from xce_nodeagent.export.exposition import Kind, Metric, Value
from xce_nodeagent.export.stock import Stock
from xce_nodeagent.model.histogram import Histogram

Samples = Iterable[tuple[tuple[str, ...], Value]]


class Sink(Struct, frozen=True, kw_only=True):
    """How the reports to one place go; `lag` in seconds, the others count."""

    kind: str
    lag: float
    failing: bool
    deliveries: int
    failures: int
    bytes: int


class Process(Struct, frozen=True, kw_only=True):
    """What the kernel says of the agent's process; what it does not say is None."""

    cpu_seconds: float
    start_time: float
    resident_bytes: int | None
    virtual_bytes: int | None
    open_fds: int | None
    max_fds: int


class Figures(Struct, frozen=True, kw_only=True):
    """All that is measured, at one moment; what there is none of is empty.

    `calls` are by method and code (`ok`, or that of the error); `prepare` and `release` have the
    durations of whole calls by outcome (`ok`, or the error's class), `prepare_steps` and
    `release_steps` those of the steps of calls that got so far. `verified` counts bindings by what
    was found. `helpers` are by role: is there one, and how many were lost. `library` is what the
    vendor's library said last: found, none, not_yet or error.
    """

    version: str
    generation: int
    stock: Stock
    bindings: Mapping[str, int]
    bindings_unhealthy: int
    calls: Mapping[tuple[str, str], int]
    prepare: Mapping[str, Histogram]
    release: Mapping[str, Histogram]
    prepare_steps: Mapping[str, Histogram]
    release_steps: Mapping[str, Histogram]
    connections: int
    turned_away: int
    verified: Mapping[str, int]
    verification_rounds: int
    verification_time: float
    verification_cpu: float
    helpers: Mapping[str, tuple[bool, int]]
    sinks: Sequence[Sink]
    looks: Histogram
    events: int
    commits: int
    ledger_bytes: int | None
    ledger_waits: int
    ledger_writable: bool
    library: str
    cards: int
    deaf: int
    process: Process | None = None


class Row(Struct, frozen=True):
    """A metric as it is documented, and where its samples are."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    read: Callable[[Figures], Samples]


def _one(value: Value | None) -> Samples:
    return () if value is None else (((), value),)


def _by(values: Mapping[str, Value]) -> Samples:
    return (((name,), value) for name, value in values.items())


def _of_process(read: Callable[[Process], Value | None]) -> Callable[[Figures], Samples]:
    return lambda it: _one(read(it.process)) if it.process is not None else ()


def _of_sinks(read: Callable[[Sink], Value]) -> Callable[[Figures], Samples]:
    return lambda it: (((sink.kind,), read(sink)) for sink in it.sinks)


TABLE: Final = (
    Row("xce_nodeagent_build_info", "gauge", ("version",),
        "1, with the version of the agent.",
        lambda it: (((it.version,), 1),)),
    Row("xce_nodeagent_inventory_generation", "gauge", (),
        "N of the inventory's generation: rises with each change of the hardware in a boot.",
        lambda it: _one(it.generation)),
    Row("xce_nodeagent_instances", "gauge", ("type", "state"),
        "Instances, or ports, by the one state each is in: free, held, excluded (a job holds what"
        " overlaps it), quarantined, reserved, unhealthy, drained, divided (a card in slices).",
        lambda it: it.stock.states.items()),
    Row("xce_nodeagent_instances_unfit", "gauge", ("type", "reason"),
        "Instances, or ports, that are unhealthy or drained, whoever holds them.",
        lambda it: it.stock.unfit.items()),
    Row("xce_nodeagent_bindings", "gauge", ("state",),
        "Live bindings: committed, bound, releasing, quarantined.",
        lambda it: _by(it.bindings)),
    Row("xce_nodeagent_bindings_unhealthy", "gauge", (),
        "Bindings whose fence was found broken or masked, and could not be put right.",
        lambda it: _one(it.bindings_unhealthy)),
    Row("xce_nodeagent_calls_total", "counter", ("method", "code"),
        "Calls that were answered, by method and code: ok, or that of the error.",
        lambda it: it.calls.items()),
    Row("xce_nodeagent_prepare_seconds", "histogram", ("outcome",),
        "From a Prepare's last byte to its answer, by outcome: ok, or the class of the error.",
        lambda it: _by(it.prepare)),
    Row("xce_nodeagent_prepare_step_seconds", "histogram", ("step",),
        "Steps of a Prepare: plan (choose and plan), commit (the ledger), bind (the fence), and"
        " look (at nodes and ports), which is done within bind.",
        lambda it: _by(it.prepare_steps)),
    Row("xce_nodeagent_release_seconds", "histogram", ("outcome",),
        "From a Release's last byte to its answer, by outcome: ok, or the class of the error.",
        lambda it: _by(it.release)),
    Row("xce_nodeagent_release_step_seconds", "histogram", ("step",),
        "Steps of a Release: commit (the ledger), and unbind (the fence, and who is left).",
        lambda it: _by(it.release_steps)),
    Row("xce_nodeagent_connections", "gauge", (),
        "Clients that are connected to the agent's socket.",
        lambda it: _one(it.connections)),
    Row("xce_nodeagent_connections_refused_total", "counter", (),
        "Clients that were sent away because there was no room.",
        lambda it: _one(it.turned_away)),
    Row("xce_nodeagent_verification_rounds_total", "counter", (),
        "Times that all bindings were compared with the kernel.",
        lambda it: _one(it.verification_rounds)),
    Row("xce_nodeagent_verification_last_timestamp_seconds", "gauge", (),
        "When the last round ended, since the epoch; 0 before the first.",
        lambda it: _one(it.verification_time)),
    Row("xce_nodeagent_verification_last_cpu_seconds", "gauge", (),
        "CPU time of the last round, the binder's included.",
        lambda it: _one(it.verification_cpu)),
    Row("xce_nodeagent_verification_bindings_total", "counter", ("result",),
        "Bindings that were compared, by what was found: whole, repaired, reasserted, masked,"
        " vanished, failed.",
        lambda it: _by(it.verified)),
    Row("xce_nodeagent_helper_up", "gauge", ("role",),
        "1 while there is a helper of a role, or one can be had.",
        lambda it: (((role,), int(up)) for role, (up, _) in it.helpers.items())),
    Row("xce_nodeagent_helper_restarts_total", "counter", ("role",),
        "Helpers that died, hung or broke the protocol, and were replaced.",
        lambda it: (((role,), lost) for role, (_, lost) in it.helpers.items())),
    Row("xce_nodeagent_report_lag_seconds", "gauge", ("sink",),
        "For how long there is something that the sink does not have; 0 where it has all.",
        _of_sinks(lambda sink: sink.lag)),
    Row("xce_nodeagent_report_failing", "gauge", ("sink",),
        "1 while nothing gets to the sink.",
        _of_sinks(lambda sink: int(sink.failing))),
    Row("xce_nodeagent_report_deliveries_total", "counter", ("sink",),
        "Changed reports that got to the sink; what is sent again by the clock is not in it.",
        _of_sinks(lambda sink: sink.deliveries)),
    Row("xce_nodeagent_report_failures_total", "counter", ("sink",),
        "Tries that failed.",
        _of_sinks(lambda sink: sink.failures)),
    Row("xce_nodeagent_report_bytes_total", "counter", ("sink",),
        "Bytes that changed reports took; what is sent again by the clock is not in it.",
        _of_sinks(lambda sink: sink.bytes)),
    Row("xce_nodeagent_discovery_events_total", "counter", (),
        "Events that were told of the hardware: by udev, of links, of declared files.",
        lambda it: _one(it.events)),
    Row("xce_nodeagent_discovery_seconds", "histogram", (),
        "Looks at the hardware: how long each took, off the path of jobs.",
        lambda it: _one(it.looks)),
    Row("xce_nodeagent_ledger_commits_total", "counter", (),
        "Transactions that were written to the ledger.",
        lambda it: _one(it.commits)),
    Row("xce_nodeagent_ledger_bytes", "gauge", (),
        "Size of the ledger with its log.",
        lambda it: _one(it.ledger_bytes)),
    Row("xce_nodeagent_ledger_waiting", "gauge", (),
        "Events that wait for a commit to take them along.",
        lambda it: _one(it.ledger_waits)),
    Row("xce_nodeagent_ledger_writable", "gauge", (),
        "0 while the ledger cannot be written, and nothing is granted.",
        lambda it: _one(int(it.ledger_writable))),
    Row("xce_nodeagent_library_state", "gauge", ("state",),
        "1, with what the vendor's library said last: found, none, not_yet or error.",
        lambda it: (((it.library,), 1),)),
    Row("xce_nodeagent_cards_heard", "gauge", (),
        "Cards whose XIDs are listened to.",
        lambda it: _one(it.cards)),
    Row("xce_nodeagent_cards_deaf", "gauge", (),
        "Cards whose XIDs cannot be heard.",
        lambda it: _one(it.deaf)),
    Row("process_cpu_seconds_total", "counter", (),
        "User and system CPU time of the agent.",
        _of_process(lambda it: it.cpu_seconds)),
    Row("process_start_time_seconds", "gauge", (),
        "When the agent was started, since the epoch.",
        _of_process(lambda it: it.start_time)),
    Row("process_resident_memory_bytes", "gauge", (),
        "Resident memory of the agent.",
        _of_process(lambda it: it.resident_bytes)),
    Row("process_virtual_memory_bytes", "gauge", (),
        "Virtual memory of the agent.",
        _of_process(lambda it: it.virtual_bytes)),
    Row("process_open_fds", "gauge", (),
        "Descriptors that the agent has open; absent where the kernel does not tell.",
        _of_process(lambda it: it.open_fds)),
    Row("process_max_fds", "gauge", (),
        "Descriptors that it may have open.",
        _of_process(lambda it: it.max_fds)),
)  # fmt: skip
"""Every metric that the agent has of itself; docs/metrics.md is written from it."""


def metrics(figures: Figures) -> Iterator[Metric]:
    """Give the metrics, in the order of the table."""
    for row in TABLE:
        samples = [
            (dict(zip(row.labels, values, strict=True)), value)
            for values, value in row.read(figures)
        ]
        yield Metric(row.name, row.help, samples, row.kind)
