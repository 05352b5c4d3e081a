"""`./dev soak`: crashes by the thousand, with a progress bar and a table of what was done."""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from soak import run
from soak.blow import Tally
from soak.missed import missed
from soak.page import ROLES
from soak.points import POINTS
from soak.story import BrokenPromise

KINDS = ("point", "call", "line", "outside", "stop")
SAID = {
    "point": "at a point",
    "call": "before a C call",
    "line": "before a line",
    "outside": "from outside",
    "stop": "stopped",
}


def main() -> int:
    asked = _parser().parse_args()
    if os.geteuid() != 0 or "cgroup2" not in run.mounts():
        sys.stderr.write("soak: needs root, and cgroup v2 mounted\n")
        return 77
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell had it ignored
        signal.signal(number, signal.default_int_handler)
    console = Console()
    seed = asked.seed if asked.seed is not None else random.SystemRandom().randrange(1 << 32)
    limits = run.Limits(asked.crashes, asked.steps, asked.seconds)
    console.print(f"seed {seed}")
    faults: list[tuple[int, str]] = []
    tally = Tally()
    begun = time.monotonic()
    stopped = False
    # One line of 80 columns has the counts, the share and the time that is left; no more fits.
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(10), TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=console,
    )  # fmt: skip
    with bar:
        task = bar.add_task("soak", total=1.0)
        last, at = 0.0, 0

        def show(seconds: float) -> str:
            text = f"history {at}, {tally.crashed} crashes, {len(faults)} faults"
            bar.update(task, completed=limits.share(tally, seconds), description=text)
            return text

        def told(now: Tally, number: int) -> None:
            nonlocal tally, last, at
            tally, at = now, number
            seconds = time.monotonic() - begun
            if seconds - last >= (0.2 if console.is_terminal else 10):
                last = seconds
                text = show(seconds)
                if not console.is_terminal:
                    rate = (
                        f"{now.steps / seconds:.0f} steps/s, {now.crashed / seconds:.1f} crashes/s"
                    )
                    console.print(f"{text}, {now.steps} steps, {rate}", highlight=False)

        def found(number: int, broken: BrokenPromise) -> bool:
            faults.append((number, str(broken)))
            console.print(f"[red]history {number}[/]:\n{broken}", highlight=False, markup=False)
            return not asked.first_fault

        try:
            tally = run.histories(seed, limits, first=asked.history, told=told, found=found)
        except KeyboardInterrupt:
            stopped = True
        except BrokenPromise:
            stopped = True
        show(time.monotonic() - begun)  # the last line counts what the table counts
    _show(console, tally, faults, seed, time.monotonic() - begun)
    if asked.report:
        Path(asked.report).write_text("\n\n".join(text for _, text in faults), "utf-8")
    return verdict(console, tally, len(faults), stopped=stopped)


def verdict(console: Console, tally: Tally, faults: int, *, stopped: bool) -> int:
    """Give the exit status; say what a long run has left out, which is a fault of the harness."""
    left_out = [] if stopped else missed(tally)
    for what in left_out:
        console.print(f"[red]after {tally.crashed} crashes {what}[/]", highlight=False)
    return 1 if faults or left_out else 130 if stopped else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev soak", description=__doc__)
    parser.add_argument(
        "--crashes", type=int, default=10_000, metavar="N", help="crashes to inject"
    )
    parser.add_argument("--steps", type=int, default=100_000, metavar="N", help="steps to take")
    parser.add_argument("--seconds", type=float, default=0, metavar="N", help="end after this time")
    parser.add_argument("--seed", type=int, metavar="N", help="of the run; drawn if not given")
    parser.add_argument(
        "--history", type=int, default=0, metavar="N", help="begin with this history of the seed"
    )
    parser.add_argument("--first-fault", action="store_true", help="stop at the first fault")
    parser.add_argument("--report", metavar="FILE", help="write the faults into a file, too")
    return parser


def _show(
    console: Console, tally: Tally, faults: list[tuple[int, str]], seed: int, seconds: float
) -> None:
    table = Table(title="crashes injected")
    table.add_column("process")
    for kind in KINDS:
        table.add_column(SAID[kind], justify="right")
    table.add_column("all", justify="right")
    for role in ROLES:
        counts = [tally.crashes.get((role, kind), 0) for kind in KINDS]
        table.add_row(role, *map(str, counts), str(sum(counts)))
    totals = [sum(tally.crashes.get((role, kind), 0) for role in ROLES) for kind in KINDS]
    table.add_row("all", *map(str, totals), str(tally.crashed), style="bold")
    console.print(table)
    rows = Table(show_header=False)
    rows.add_row("steps", str(tally.steps))
    rows.add_row("points at which something was hit", f"{len(tally.points)} of {len(POINTS)}")
    rows.add_row("starts of the agent", str(tally.starts))
    rows.add_row("simulated reboots", str(tally.reboots))
    rows.add_row("comparisons with the kernel", str(tally.checks))
    rows.add_row("opens tried by jobs", str(tally.opens))
    rows.add_row("seconds", f"{seconds:.0f}")
    rows.add_row("seed", str(seed))
    rows.add_row("faults found", str(len(faults)), style="bold red" if faults else "bold green")
    for number, text in faults:
        rows.add_row(f"  in history {number}", text.splitlines()[0])
    console.print(rows)


if __name__ == "__main__":
    sys.exit(main())
