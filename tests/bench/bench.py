"""`./dev bench`: what a prepare and a release cost, beside the same architecture by hand.

Everything is measured on this host, now, through the real socket of a real agent, and product and
floor take turns in one run: only the ratios mean something on a machine that does other work too.
Cold operations have 60 ms of rest before each of them, as where jobs start now and then.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import discovering
import figures as fig
import following
import hearing
import linking
import looking
import metering
import processes
import recovering
import swarming
import verifying
from client import Client, Samples, Shape, Target, many_clients, names, one_client
from figures import Figure
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from sizes import QUICK, USUAL, Sizes
from started import HERE, Agent, Place, agent, floor, running, serving

LIVE = 1000
WIDTH = 8
"""Clients at once."""
PAUSE = 0.06
"""Seconds of rest before a cold operation."""
TARGETS = (2.0, 3.0)
"""Times the floor, at p50 and at p99."""
PROFILE = "dgx-h100"


@dataclass(frozen=True)
class Sides:
    """Who is compared: product and floor, with one live binding and with many."""

    one: Target
    floor_one: Target
    many: Target
    floor_many: Target

    def plan(self, few: int, lots: int) -> dict[str, tuple[Target, int]]:
        """Say how often for whom."""
        counts = (self.one, few), (self.floor_one, few), (self.many, lots), (self.floor_many, lots)
        return {side.name: (side, count) for side, count in counts}


class Bench:
    """One run: its sizes, what it has found so far, and how it tells how far it is."""

    def __init__(self, sizes: Sizes, only: Sequence[str], progress: Progress) -> None:
        self.sizes = sizes
        self.only = tuple(only)
        self.progress = progress
        self.figures: list[Figure] = []
        self.missing: list[str] = []
        self.jobs = names("bench")

    def wanted(self, *prefixes: str) -> bool:
        """Say whether one of these groups of figures was asked for."""
        return not self.only or any(
            prefix.startswith(one) or one.startswith(prefix)
            for prefix in prefixes
            for one in self.only
        )

    @contextlib.contextmanager
    def stage(self, text: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """Show a stage while it runs; what it cannot measure is told, and the rest goes on."""
        task = self.progress.add_task(text, total=total)
        if not self.progress.console.is_terminal:
            self.progress.console.print(text)
        try:
            yield lambda count: self.progress.advance(task, count)
        except (ImportError, OSError, RuntimeError) as error:
            self.missing.append(f"{text}: {error}")
        finally:
            self.progress.update(task, completed=total or 1, total=total or 1)

    # ---- what is measured ---------------------------------------------------------------------

    def latencies(self, sides: Sides, whole: Shape, parts: Sequence[Shape]) -> None:
        """Prepare and release: cold and hot, one client and eight, one live binding and many."""
        for heat, pause, (few, lots), rounds in (
            ("cold", PAUSE, self.sizes.cold_one, self.sizes.cold_rounds),
            ("hot", 0.0, self.sizes.hot_one, self.sizes.hot_rounds),
        ):
            if self.wanted(f"prepare_{heat}_1c", f"release_{heat}_1c", "growth_1000b"):
                with self.stage(f"one client, {heat}", max(few, lots)) as step:
                    plan = sides.plan(few, lots)
                    block = 1 if pause else 10
                    found = one_client(plan, whole, self.jobs, pause=pause, block=block, step=step)
                    self._take(found, f"{heat}_1c", sides)
                    grown = found[sides.many.name, "prepare"], found[sides.one.name, "prepare"]
                    self._growth(f"growth_1000b_prepare_{heat}", *grown, "floor: at 1 binding")
            if self.wanted(f"prepare_{heat}_8c", f"release_{heat}_8c", "eight"):
                with self.stage(f"eight clients at once, {heat}", rounds) as step:
                    plan = sides.plan(rounds, rounds)
                    # A block ends with eight in a row, which take as long as the rest of a round.
                    block = min(5, rounds)
                    found = many_clients(
                        plan, parts, self.jobs, pause=pause, block=block, step=step
                    )
                    self._take(found, f"{heat}_8c", sides)
                    self._eight(heat, found, sides.one)

    def _take(self, found: Samples, series: str, sides: Sides) -> None:
        for live, product, by_hand in (
            ("1b", sides.one, sides.floor_one),
            ("1000b", sides.many, sides.floor_many),
        ):
            for op in ("prepare", "release"):
                pair = found[product.name, op], found[by_hand.name, op]
                self.figures += fig.latency(f"{op}_{series}_{live}", *pair, TARGETS)

    def _eight(self, heat: str, found: Samples, one: Target) -> None:
        longest, row = found[one.name, "longest"], found[one.name, "in_a_row"]
        note = "the longest wait of eight at once; floor: the eight in a row"
        self.figures.append(
            Figure(
                f"eight_at_once_{heat}_longest_p50",
                fig.p50(longest),
                "ms",
                fig.p50(row),
                1,
                len(longest),
                note,
            )
        )

    def _growth(self, name: str, grown: Sequence[float], plain: Sequence[float], note: str) -> None:
        # A tenth is what two equal agents differ by on a machine that does other work too.
        pair = fig.p50(grown), fig.p50(plain)
        self.figures.append(Figure(f"{name}_p50", pair[0], "ms", pair[1], 1.1, len(grown), note))

    def memory_growth(self, one: Target, big: Target, mib: float, whole: Shape) -> None:
        """Prepare in an agent that carries a large heap, beside one that does not."""
        times = self.sizes.growth
        with self.stage("an agent of 2 GiB", times) as step:
            plan = {side.name: (side, times) for side in (one, big)}
            found = one_client(plan, whole, self.jobs, pause=0, block=10, step=step)
            note = f"an agent of {mib:.0f} MiB; floor: one of the usual size"
            grown, plain = found[big.name, "prepare"], found[one.name, "prepare"]
            self._growth("growth_2gib_prepare_hot", grown, plain, note)

    def beside(self, what: str, one: Target, other: Target, whole: Shape, note: str) -> None:
        """Prepare and release in an agent with something else on its hands, beside one without."""
        times = self.sizes.growth
        with self.stage(f"{what}: an agent beside another", times) as step:
            plan = {side.name: (side, times) for side in (one, other)}
            found = one_client(plan, whole, self.jobs, pause=0, block=10, step=step)
            for op in ("prepare", "release"):
                pair = found[other.name, op], found[one.name, op]
                self._growth(f"{op}_{what}", *pair, f"{note}; floor: an agent without")


def shapes(one: Agent) -> tuple[Shape, list[Shape]]:
    """Choose what the jobs ask for: one job of 8 GPUs and 4 NICs, or eight with an eighth each."""
    instances = [i for i in one.inventory()["instances"] if i["healthy"] and not i["reserved"]]
    by_type: dict[str, list[str]] = {}
    for instance in instances:
        by_type.setdefault(instance["type"], []).append(instance["id"])
    gpus, nics = by_type.get("gpu", []), by_type.get("nic", [])
    if len(gpus) < WIDTH:
        raise SystemExit(f"the profile {PROFILE} has {len(gpus)} GPUs; the benchmark needs {WIDTH}")
    each = len(gpus) // WIDTH
    share = len(nics) // WIDTH
    parts = [
        Shape([*gpus[i * each : (i + 1) * each], *nics[i * share : (i + 1) * share]], 8)
        for i in range(WIDTH)
    ]
    return Shape([*gpus[:8], *nics[:4]], 8), parts


def answers(one: Agent, jobs: Iterator[str], *asked: Shape) -> dict[int, Any]:
    """Ask the product once for each shape: the floor's answers are of the same size."""
    found: dict[int, Any] = {}
    with Client(str(one.socket)) as client:
        for shape in asked:
            job = next(jobs)
            found[len(shape.instances)] = client.call(shape.prepare(job))[1]
            client.call(Shape.release(job))
    return found


def measure(bench: Bench, place: Place) -> None:
    """Start what is needed, and measure all of it."""
    sizes = bench.sizes
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(agent(place, "one", profile=PROFILE, ports=(20000, 20999)))
        whole, parts = shapes(one)
        alone(bench, one)
        if bench.wanted("hook"):
            with bench.stage("hooks as processes"):
                bench.figures += processes.hooks(one, whole, bench.jobs, sizes.processes)
        replies = answers(one, bench.jobs, whole, parts[0], Shape())
        if bench.wanted("varlink"):
            with bench.stage("a Varlink call, beside asyncvarlink"):
                varlink(bench, place, one, whole, replies)
        if place.cgroup is None:
            bench.missing.append(
                "prepare, release, eight_at_once, growth: a fence needs root and cgroup v2;"
                " run it as root"
            )
            return
        events(bench, place)
        if bench.wanted("recovery", "rebuild"):
            with bench.stage("starts with live bindings"):
                times = bench.sizes.verifications
                bench.figures += recovering.figures(place, PROFILE, LIVE, times)
        if not bench.wanted("prepare", "release", "eight", "growth", "verify", "metrics"):
            return
        product = Target("one", str(one.socket), 0)
        if bench.wanted("growth_2gib"):
            with contextlib.ExitStack() as inner, bench.stage("an agent of 2 GiB, its start"):
                big = inner.enter_context(
                    agent(place, "big", profile=PROFILE, ports=(22000, 22999),
                          python_path=HERE / "ballast")
                )  # fmt: skip
                mib = processes.resident_mib(big)
                if mib < 2000:
                    raise RuntimeError(f"its processes have {mib:.0f} MiB at most: no ballast")
                bench.memory_growth(product, Target("big", str(big.socket), 0), mib, whole)
        hearing.measure(bench, place, product, whole, PROFILE)
        if bench.wanted("prepare_reporting", "release_reporting"):
            reporting(bench, place, product, whole)
        if not bench.wanted(
            "prepare_cold", "prepare_hot", "release", "eight", "growth_1000b", "verify", "metrics"
        ):
            return
        metrics = metering.place_for(place.folder)
        extra = ("[metrics]", f'listen = "unix:{metrics}"')
        crowded = stack.enter_context(
            agent(place, "many", profile=PROFILE, ports=(21000, 21999), extra=extra)
        )
        floor_one = stack.enter_context(floor(place, "one", replies))
        floor_many = stack.enter_context(floor(place, "many", replies))
        many = Target("many", str(crowded.socket), LIVE)
        with bench.stage(f"{LIVE} live bindings"):
            for side in (many, floor_many):
                side.fill(LIVE - 1)
        verify(bench, crowded, place.cgroup / "agent-many")
        if bench.wanted("metrics"):
            with bench.stage("scrapes of the metrics"):
                jobs = [next(bench.jobs) for _ in range(20)]
                asked = ((whole.prepare(job), whole.release(job)) for job in jobs)
                found = metering.figures(crowded, metrics, asked, LIVE, sizes.verifications)
                bench.figures += found
        if not bench.wanted("prepare_cold", "prepare_hot", "release", "eight", "growth_1000b"):
            return
        bench.latencies(Sides(product, floor_one, many, floor_many), whole, parts)


def reporting(bench: Bench, place: Place, product: Target, whole: Shape) -> None:
    """Measure an agent that reports to a file, and to somebody who takes all and says nothing."""
    with contextlib.ExitStack() as stack, bench.stage("an agent that reports, its start"):
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        path = place.folder / "agent-telling" / "run" / "report.json"
        extra = "[upstream.file]", f'path = "{path}"', "[upstream.http]", f'url = "{url}"'
        telling = stack.enter_context(
            agent(place, "telling", profile=PROFILE, ports=(24000, 24999), extra=extra)
        )
        target, note = Target("telling", str(telling.socket), 0), "to a file and a silent receiver"
        bench.beside("reporting", product, target, whole, note)


def events(bench: Bench, place: Place) -> None:
    """Measure from an event to the inventory, and to a fleet, through agents in own networks."""
    if bench.wanted("event_to_inventory"):
        with bench.stage("from an event to the inventory"):
            bench.figures += linking.figures(place, PROFILE, bench.sizes.verifications)
    if bench.wanted("event_to_fleet"):
        with bench.stage("from an event to the reader of a fleet"):
            bench.figures += linking.to_fleet(place, PROFILE, bench.sizes.verifications)


def verify(bench: Bench, crowded: Agent, home: Path) -> None:
    """Measure one verification of as many bindings as the names of the figures say."""
    if not bench.wanted("verify"):
        return
    jobs = names("verify")
    with Client(str(crowded.socket)) as client:
        last = next(jobs)
        client.call(Shape().prepare(last))  # the last of a thousand
        with bench.stage("a verification of all bindings", bench.sizes.verifications):
            bench.figures += verifying.figures(crowded, home, bench.sizes.verifications)
        client.call(Shape.release(last))


def alone(bench: Bench, one: Agent) -> None:
    """Measure an agent that nobody asks anything, and meanwhile what needs no agent."""
    # Its start has its own work: spares are made, the hardware is looked at, the witness looks.
    time.sleep(3)
    if bench.wanted("memory"):
        with bench.stage("memory"):
            bench.figures += processes.memory(one)
    idle = processes.Idle(one)
    if bench.wanted("discovery"):
        with bench.stage("discovery"):
            bench.figures += processes.discovery(bench.sizes.processes)
            bench.figures += discovering.figures(bench.sizes.verifications)
    if bench.wanted("witness"):
        with bench.stage("a look of the witness"):
            bench.figures += looking.figures(bench.sizes.crowd, bench.sizes.verifications)
    if bench.wanted("fleet_read", "fleet_memory", "fleet_follow", "fleet_change"):
        with bench.stage("a reader of a fleet"):
            bench.figures += following.figures(*bench.sizes.fleet)
    if bench.wanted(*swarming.NAMES):
        with bench.stage(f"{bench.sizes.swarm.count} reporters and one etcd"):
            bench.figures += swarming.figures(bench.sizes.swarm)
    if bench.wanted("fork"):
        with bench.stage("what a fork would cost"):
            bench.figures += processes.forks(bench.sizes.processes)
    if bench.wanted("idle"):
        with bench.stage("wake-ups of an idle agent"):
            time.sleep(max(0.0, bench.sizes.idle_seconds - (time.monotonic() - idle.since)))
            bench.figures += idle.figures()


def varlink(bench: Bench, place: Place, one: Agent, whole: Shape, replies: dict[int, Any]) -> None:
    """Compare our server with a library's."""
    peer, answer = place.folder / "peer.sock", place.folder / "answer.json"
    answer.write_text(json.dumps(replies[len(whole.instances)]), "utf-8")
    log = place.folder / "peer.log"
    command = [sys.executable, str(HERE / "varlink_peer.py"), str(peer), str(answer)]
    with running(command, log, os.environ) as process:
        serving(peer, process, log)
        bench.figures += processes.varlink(
            one, str(peer), whole, next(bench.jobs), bench.sizes.varlink
        )


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--quick", action="store_true", help="a smoke run: few samples")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="figures' beginnings")
    arguments = parser.parse_args()
    if arguments.json is not None:
        try:
            fig.write(arguments.json, [])  # to know it now, and not after ten minutes
        except OSError as error:
            parser.error(f"{arguments.json}: {error.strerror}")
    sizes = QUICK if arguments.quick else USUAL
    # Ended by a signal, it still takes away all that it made.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    failed = False
    errors = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=errors, disable=not errors.is_terminal) as progress:
        bench = Bench(sizes, arguments.only, progress)
        gc.disable()
        load = os.getloadavg()[0]
        with Place() as place:
            try:
                measure(bench, place)
            except RuntimeError as error:
                failed = True
                bench.missing.append(f"all that comes after this: {error}")
    console = Console(width=None if sys.stdout.isatty() else 140)
    fig.show(console, bench.figures, bench.missing)
    console.print(f"  load of {os.cpu_count()} CPUs before the start: {load:.1f}", highlight=False)
    if arguments.json is not None:
        fig.write(arguments.json, bench.figures)
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
