"""Make a sample with whatever version is imported: `python make.py NAME`, once for each format.

`NAME.db` is a ledger with every kind of event that the version has, and with fields that are not
their defaults. `NAME.json` is what that very version reads in it, and what it would write on the
cgroups of its bindings. Both are kept for ever: what was written once must be readable, and mean
the same. `formats.json` says by its digest which one is of the format that is written now.

The states of the code that the samples are from:

| sample | state | what is new in it |
|---|---|---|
| 1-first | 1afb26c^ | |
| 1 | 6056b0f^ | `leaving` |
| 1-up | ae25dd7^ | `up` of a row |
| 2-first | 4ac9d44^ | version 2: `adopted`, `ended`; records on cgroups |
| 2 | ed722a9 | `kill`, `withheld` |
| 2-born | 1b7667d^ | `born` |
| 2-excluded | 1b7667d | `excluded` of `withheld` |

The ledgers 1, 1-up and 2 were made by an earlier form of this file, and have fewer events. Where
the ledger is there already, it is only read.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from xce_nodeagent.binding.ledger import Ledger
from xce_nodeagent.model import binding as b
from xce_nodeagent.model.instance import DeviceNode
from xce_nodeagent.model.inventory import Seen
from xce_nodeagent.model.plan import (
    AdoptCgroup,
    AllowDevice,
    CgroupRef,
    HoldPort,
    MakeCgroup,
    Plan,
    SetEnv,
)
from xce_nodeagent.model.wire import LeftOver, PortAsk

HOME = "/sys/fs/cgroup/xce-sample"
LEFT = LeftOver(77, "in the job's cgroup", "srv", 5)


def known(kind: type, **fields: Any) -> Any:
    """Make a value of those fields that this version has."""
    have = kind.__struct_fields__
    return kind(**{name: value for name, value in fields.items() if name in have})


def plan(job: str, *minors: int, own: bool = True) -> Plan:
    """Give a plan with these devices of card 120."""
    cgroup = CgroupRef("cgroup2" if own else "cgroup1", f"{HOME}/job-{job}")
    return Plan(
        (
            MakeCgroup(cgroup) if own else AdoptCgroup(cgroup, populated=True),
            *(AllowDevice(DeviceNode(f"/dev/card{i}", "c", 120, i), 2 + i % 5) for i in minors),
            HoldPort("ports", 20000 + minors[0], "http"),
            SetEnv("XCE_JOB_ID", job),
        )
    )


def committed(job: str, minor: int, *, attempt: str = "1", own: bool = True) -> b.Committed:
    """Commit one card to a job."""
    named = f"{HOME}/job-{job}"
    ports = (PortAsk(count=1, name="http"),) if own else (PortAsk(port=20000 + minor),)
    return b.Committed(
        job=job,
        attempt=attempt,
        ask=b.Ask(uid=1000, instances=(f"GPU-{minor}",), ports=ports)
        if own
        else b.Ask(request="gpu=1", ports=ports, cgroup=named),
        instances=(f"GPU-{minor}", "ports"),
        excluded=("MIG-0",) if minor == 0 else (),
        plan=plan(job, minor, own=own),
        generation="boot-1:3",
        enforcement="cgroup2" if own else "best-effort",
    )


def changed(job: str, *minors: int, leaving: tuple[str, ...] = ()) -> Any:
    """Have a job hold these cards now."""
    return known(
        b.Changed,
        job=job,
        attempt="1",
        asks=(committed(job, minors[0]).ask, b.Ask(instances=("GPU-2",))),
        instances=(*(f"GPU-{i}" for i in minors), "ports"),
        excluded=("MIG-1",),
        plan=plan(job, *minors),
        generation="boot-1:4",
        leaving=leaving,
    )


def withheld(job: str, minor: int, *, again: bool = False) -> Any:
    """Withhold a card that somebody still has."""
    return known(
        b.Withheld,
        job=job,
        attempt="1",
        uid=1000,
        instances=(f"GPU-{minor}",),
        excluded=("MIG-2",),
        plan=Plan((AllowDevice(DeviceNode(f"/dev/card{minor}", "c", 120, minor)),)),
        left=(LEFT, LEFT) if again else (LEFT,),
        generation="boot-1:3",
        enforcement="cgroup2",
        since=999_000.5,
        born=17.25,
    )


def adopted(job: str, minor: int, **fields: Any) -> Any:
    """Have the kernel know of a binding."""
    one = committed(job, minor)
    more = {name: getattr(one, name) for name in ("instances", "excluded", "plan", "generation")}
    binding = known(
        b.Binding,
        **(more | {"job": job, "attempt": "1", "asks": (one.ask,), "enforcement": "cgroup2"}),
        **({"state": "bound", "since": 5.0, "changed": 6.0} | fields),
    )
    return b.Adopted(job=job, attempt="1", binding=binding)


def events() -> Iterator[Any]:
    """Give the events, every kind of them. Those which end in a state stay in it."""
    jobs = ("live", "grown", "left", "over", "failed", "lost", "clean", "shrunk", "killing", "kept")
    for minor, job in enumerate(jobs):
        yield committed(job, minor)
        if job == "failed":
            yield b.Failed(job=job, attempt="1", code="bad_cgroup", message="it is populated")
        else:
            yield b.Bound(job=job, attempt="1")
    yield committed("named", 20, attempt="", own=False)
    yield changed("grown", 1, 10)
    yield b.Bound(job="grown", attempt="1")
    yield changed("shrunk", 7, leaving=("GPU-11", "GPU-12"))
    yield b.Lost(job="lost", attempt="1", reason="cgroup-vanished")
    for job in ("left", "over", "clean", "kept"):
        yield b.ReleaseIntended(job=job, attempt="1")
    yield known(b.ReleaseIntended, job="killing", attempt="1", kill="term-then-kill")
    for job, minor in (("left", 2), ("clean", 6)):
        yield b.Released(job=job, attempt="1", left=(LEFT,), quarantined=(f"GPU-{minor}",))
    for job in ("over", "kept"):
        yield b.Released(job=job, attempt="1")
    yield b.Cleaned(job="clean", attempt="1")
    yield b.Drained(id="GPU-5", reason="its fan is loud")
    yield b.Drained(id="GPU-6", reason="its fan is too")
    yield b.Undrained(id="GPU-6")
    if hasattr(b, "Adopted"):
        yield adopted("adopted", 30, up=9.5, born=8.5)
        yield adopted(
            "doubtful", 31, state="releasing", reason="it cannot be read", doubtful=True,
            left=(LEFT,), leaving=("GPU-13",), kill="term-then-kill",
        )  # fmt: skip
        yield b.Ended(job="ended", attempt="1")
    if hasattr(b, "Withheld"):
        yield withheld("kept", 9)
        yield withheld("kept", 9, again=True)


def opened(path: Path, clock: Iterator[int]) -> Ledger:
    """Open a ledger in the way of this version."""
    have = inspect.signature(Ledger.__init__).parameters
    more: dict[str, Any] = {
        "uptime": lambda: float(next(clock) - 999_000),
        "reserve_bytes": 0,
        "log_bytes": 0,
    }
    used = {name: value for name, value in more.items() if name in have}
    return Ledger(path, "boot-1", lambda: float(next(clock)), **used)


def read(ledger: Ledger) -> dict[str, Any]:
    """Give all that a ledger is taken for."""
    book = ledger.book
    seen, number = ledger.hardware()
    found = {
        "live": sorted(book, key=lambda binding: binding.key),
        "over": sorted(book.over),
        "drained": book.drained,
        "boots": sorted((*key, boot) for key, boot in ledger.boots.items()),
        "seen": seen,
        "number": number,
    }
    if hasattr(ledger, "departed"):
        found["departed"] = ledger.departed
    if hasattr(ledger, "rebuilt"):
        found["rebuilt"] = ledger.rebuilt
    return found


def labels(ledger: Ledger) -> dict[str, str]:
    """Give what the cgroups of some bindings bear, and bear when they are released."""
    try:
        from xce_nodeagent.binding import record  # noqa: PLC0415  # an older version has none
        from xce_nodeagent.privileged.label import Label  # noqa: PLC0415  # the same
    except ImportError:
        return {"mark": ledger.book.live["grown", "1"].mark}
    live = ledger.book.live
    grown = live["grown", "1"]
    long = Plan((*grown.plan.steps, SetEnv("XCE_LONG", "x" * (1 << 16))))
    chosen = {"long": msgspec.structs.replace(grown, plan=long)}
    for key in (("grown", "1"), ("shrunk", "1"), ("killing", "1"), ("adopted", "1"), ("named", "")):
        if key in live:
            chosen[key[0]] = live[key]
    found = {}
    for name, binding in chosen.items():
        for released in (False, True):
            value = Label(binding.mark, record.encode(binding), released=released).value()
            found[f"{name} released" if released else name] = value.decode()
    found["no record"] = Label(grown.mark, b"").value().decode()
    return found


def write(path: Path, clock: Iterator[int]) -> None:
    """Write the ledger."""
    ledger = opened(path, clock)
    ledger.remember({"GPU-0": Seen("aa", 2), "": Seen("bb", 3)}, 3)
    for event in events():
        ledger.commit(event)
    if hasattr(ledger, "confirm"):
        ledger.confirm("2 bindings (1 adopted)")
    ledger.close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode=DELETE")
        db.execute("PRAGMA page_size=1024")
        db.execute("VACUUM")


def main(path: Path) -> None:
    """Write the sample."""
    clock = iter(range(1_000_000, 2_000_000))
    if not path.exists():
        write(path, clock)
    with tempfile.TemporaryDirectory() as folder:  # a ledger that is opened is written to
        ledger = opened(Path(shutil.copy(path, folder)), clock)
        told = msgspec.to_builtins({"read": read(ledger), "labels": labels(ledger)})
        ledger.close()
    text = json.dumps(told, indent=1, sort_keys=True)
    path.with_suffix(".json").write_text(f"{text}\n", "utf-8")
    path.with_name("ledger.reserve").unlink(missing_ok=True)


if __name__ == "__main__":
    main(Path(f"{sys.argv[1]}.db"))
