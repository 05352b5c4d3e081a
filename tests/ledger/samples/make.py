"""Make a sample ledger with whatever version is imported: `python make.py FILE`, once for each.

A sample is kept for ever: what was written once must be readable. It has a live binding, one that
grew, one that is quarantined, an attempt that was released, a drained instance, and hardware.
"""

from __future__ import annotations

import contextlib
import inspect
import sqlite3
import sys
from pathlib import Path

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

KEY = {"job": "adopted", "attempt": "1"}
HOME = "/sys/fs/cgroup/xce-sample"


def plan(job: str, *minors: int, own: bool = True) -> Plan:
    """Give a plan with these devices of card 120."""
    cgroup = CgroupRef("cgroup2", f"{HOME}/job-{job}")
    return Plan(
        (
            MakeCgroup(cgroup) if own else AdoptCgroup(cgroup, populated=True),
            *(AllowDevice(DeviceNode(f"/dev/card{i}", "c", 120, i)) for i in minors),
            HoldPort("ports", 20000 + minors[0], "http"),
            SetEnv("XCE_JOB_ID", job),
        )
    )


def committed(job: str, minor: int, *, own: bool = True) -> b.Committed:
    """Commit one card to a job."""
    return b.Committed(
        job=job,
        attempt="1",
        ask=b.Ask(uid=1000, instances=(f"GPU-{minor}",), ports=(PortAsk(count=1, name="http"),)),
        instances=(f"GPU-{minor}", "ports"),
        excluded=("MIG-0",) if minor == 0 else (),
        plan=plan(job, minor, own=own),
        generation="boot-1:3",
        enforcement="cgroup2",
    )


def main(path: Path) -> None:
    """Write the sample."""
    clock = iter(range(1_000_000, 2_000_000))
    known = inspect.signature(Ledger.__init__).parameters
    more = {"uptime": lambda: float(next(clock) - 999_000)} if "uptime" in known else {}
    more |= {"reserve_bytes": 0} if "reserve_bytes" in known else {}
    ledger = Ledger(path, "boot-1", lambda: float(next(clock)), log_bytes=0, **more)
    ledger.remember({"GPU-0": Seen("aa", 2), "": Seen("bb", 3)}, 3)
    for job, minor in (("live", 0), ("grown", 1), ("left", 3), ("over", 4)):
        ledger.commit(committed(job, minor, own=job != "left"))
        ledger.note(b.Bound(job=job, attempt="1"))
    ledger.commit(
        b.Changed(
            job="grown",
            attempt="1",
            asks=(committed("grown", 1).ask, b.Ask(instances=("GPU-2",))),
            instances=("GPU-1", "GPU-2", "ports"),
            excluded=(),
            plan=plan("grown", 1, 2),
            generation="boot-1:3",
        )
    )
    for job in ("left", "over"):
        ledger.commit(b.ReleaseIntended(job=job, attempt="1"))
    left = LeftOver(77, "in the job's cgroup", "srv", 5)
    ledger.note(b.Released(job="left", attempt="1", left=(left,), quarantined=("GPU-3",)))
    ledger.note(b.Released(job="over", attempt="1"))
    ledger.commit(b.Drained(id="GPU-5", reason="its fan is loud"))
    if hasattr(b, "Adopted"):  # since version 2
        bound = b.follow(b.follow(None, committed("adopted", 6), 5.0), b.Bound(**KEY), 6.0)
        ledger.commit(b.Adopted(binding=bound, **KEY))
        ledger.note(b.Ended(job="ended", attempt="1"))
    ledger.close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode=DELETE")
        db.execute("VACUUM")
    path.with_name("ledger.reserve").unlink(missing_ok=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
