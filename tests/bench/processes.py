"""What is measured of whole processes: hooks, discovery, memory, wake-ups, forks."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from client import Client, Shape, message
from figures import Figure, p50
from started import HERE, ROOT, Agent

BARE = ["-I", "-S", "-c", "import socket, json"]
"""The least that a hook in Python can be."""


def spawn(command: Sequence[str], env: Mapping[str, str]) -> tuple[float, str]:
    """Run a program to its end: milliseconds, and what it printed."""
    started = time.perf_counter_ns()
    done = subprocess.run(
        command, check=False, stdin=subprocess.DEVNULL, capture_output=True, env=dict(env)
    )
    took = (time.perf_counter_ns() - started) / 1e6
    if done.returncode:
        text = done.stderr.decode("utf-8", "replace").strip()
        raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}: {text}")
    return took, done.stdout.decode("utf-8", "replace")


def interpreter(script: Path) -> list[str]:
    """Give the interpreter that a script names in its first line, with its options."""
    first = script.read_text("utf-8").partition("\n")[0]
    words = first.removeprefix("#!").split()
    while words and (words[0].endswith("/env") or words[0] == "-S" or "=" in words[0]):
        words.pop(0)
    return words or [sys.executable]


def hooks(one: Agent, shape: Shape, jobs: Iterator[str], times: int) -> list[Figure]:
    """Time hooks/prepare and hooks/release as processes, beside a bare interpreter."""
    # The hooks name `python3`: let it be this interpreter, and not a wrapper that is found first.
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '/usr/bin:/bin')}"
    env = {"PATH": path, "XCE_NODEAGENT_SOCKET": str(one.socket)}
    samples: dict[str, list[float]] = {"prepare": [], "release": [], "bare": []}
    python = interpreter(ROOT / "hooks" / "prepare")[0]
    named = [word for instance in shape.instances for word in ("--instance", instance)]
    if shape.ports:
        named += ["--ports", str(shape.ports)]
    for _ in range(times):
        job = next(jobs)
        which = ["--job", job, "--attempt", "1"]
        samples["bare"].append(spawn([python, *BARE], env)[0])
        hook = [str(ROOT / "hooks" / "prepare"), *which, *named]
        samples["prepare"].append(spawn(hook, env)[0])
        samples["release"].append(spawn([str(ROOT / "hooks" / "release"), *which], env)[0])
    bare = p50(samples["bare"])
    return [
        Figure(f"hook_{what}_p50", p50(samples[what]), "ms", bare, 2.5, times)
        for what in ("prepare", "release")
    ]


IMPORTS = """
from xce_nodeagent import discovery
from xce_nodeagent.host import Host
from xce_nodeagent.providers import all_providers
providers = all_providers()
"""
SCAN = f"""{IMPORTS}
import time
for _ in range(2):
    started = time.perf_counter()
    discovery.scan(Host(), providers)
    print((time.perf_counter() - started) * 1000)
"""
"""What a scan needs it imports as it goes: the first counts that, the second does not."""


def discovery(times: int) -> list[Figure]:
    """Time a discovery of this host in fresh processes, beside the same that only imports."""
    whole, only, again = [], [], []
    for _ in range(times):
        only.append(spawn([sys.executable, "-c", IMPORTS], os.environ)[0])
        took, out = spawn([sys.executable, "-c", SCAN], os.environ)
        again.append(float(out.split()[1]))
        whole.append(took - again[-1])
    note = "from exec to exit; the floor is a process that imports the same and looks at nothing"
    return [
        Figure("discovery_cold_p50", p50(whole), "ms", None, 200, times, "a process, whole"),
        Figure("discovery_process_p50", p50(whole), "ms", p50(only), None, times, note),
        Figure("discovery_scan_p50", p50(again), "ms", None, None, times, "imports not counted"),
    ]


def memory(one: Agent) -> list[Figure]:
    """Give the proportional memory of each of an agent's processes, and the sum."""
    found: list[Figure] = []
    seen: Counter[str] = Counter()
    for pid, name in one.processes().items():
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii")
        except PermissionError:
            raise RuntimeError(f"only root may look into {name}; run it as root") from None
        lines = dict(line.split(":", 1) for line in text.splitlines()[1:])
        size = int(lines["Pss"].split()[0]) / 1000
        seen[name] += 1
        number = f"_{seen[name]}" if seen[name] > 1 else ""
        found.append(Figure(f"memory_pss_{name.removeprefix('xce-')}{number}", size, "MB"))
    total = sum(figure.value for figure in found)
    return [Figure("memory_pss_total", total, "MB", None, 120, len(found)), *found]


def resident_mib(one: Agent) -> float:
    """Give the memory of the agent's largest process."""
    pages = [0]
    for pid in one.processes():
        with contextlib.suppress(OSError):
            pages.append(int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]))
    return max(pages) * os.sysconf("SC_PAGESIZE") / 2**20


class Idle:
    """Counts how often an agent's processes wake up, from now until `figures` is asked."""

    def __init__(self, one: Agent) -> None:
        self.names = one.processes()
        self.since = time.monotonic()
        self.before = {pid: _switches(pid) for pid in self.names}

    def figures(self) -> list[Figure]:
        """Give what was counted; the target is for all processes together."""
        seconds = time.monotonic() - self.since
        rates = {pid: (_switches(pid) - before) / seconds for pid, before in self.before.items()}
        note = ", ".join(f"{self.names[pid]} {rate:.2f}" for pid, rate in rates.items())
        note += f" (over {seconds:.0f} s)"
        return [Figure("idle_wakeups", sum(rates.values()), "/s", None, 1, len(rates), note)]


def _switches(pid: int) -> int:
    """Give the context switches of all threads of a process: each is a wake-up or an eviction."""
    total = 0
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for line in (task / "status").read_text("ascii").splitlines():
                if line.startswith(("voluntary_ctxt", "nonvoluntary_ctxt")):
                    total += int(line.split()[1])
    return total


def forks(times: int) -> list[Figure]:
    """Time a fork in a small and in a large process, beside a round trip to a helper."""
    found: list[Figure] = []
    for label, megabytes in (("14mb", 14), ("2gib", 2048)):
        command = [sys.executable, str(HERE / "forking.py"), str(megabytes), str(times)]
        told: dict[str, Any] = json.loads(spawn(command, os.environ)[1])
        note = "what forking would cost; the floor is a round trip to a helper made before"
        fork, helper = p50(told["fork"]), p50(told["helper"])
        found.append(Figure(f"fork_{label}_p50", fork, "ms", helper, None, times, note))
    return found


def varlink(one: Agent, peer: str, shape: Shape, job: str, times: int) -> list[Figure]:
    """Time one call and its answer, where there is nothing to do: GetBinding, with its environment.

    The floor is asyncvarlink, which gives what a Prepare answers as a constant: about as much.
    """
    ours: list[float] = []
    theirs: list[float] = []
    wire = message("GetBinding", job=job, attempt="1")
    held = shape.prepare(job)
    with Client(str(one.socket)) as product, Client(peer) as library:
        product.call(held)
        for _ in range(times // 10):
            ours += [product.call(wire)[0] for _ in range(10)]
            theirs += [library.call(held)[0] for _ in range(10)]
        product.call(Shape.release(job))
    note = "GetBinding with its environment; the floor is asyncvarlink with a constant answer"
    return [Figure("varlink_call_p50", p50(ours), "ms", p50(theirs), 1, times, note)]
