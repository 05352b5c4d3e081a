"""The agent's whole job on this host, told as it happens; what is claimed is checked.

Everything is real but the eight GPUs: the agent, its helpers, the kernel's fence, the death by
SIGKILL, this host's NICs and ports. It has configuration, state, sockets, cgroups and device nodes
of its own, and takes them away again. Exit status 1 if anything was not as claimed.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from stage import Stage

JOB = ("--job", "demo-1", "--attempt", "1")
NAMES = ("http", "metrics", "rpc", "debug")
SHOWN = ("XCE_", "CUDA_", "NVIDIA_", "ROCR_", "ZE_", "NCCL_", "UCX_", "GLOO_")


class Story:
    """What the demo says, and which of its claims held."""

    def __init__(self) -> None:
        self.bold, self.green, self.red, self.plain = (
            ("\033[1m", "\033[32m", "\033[31m", "\033[0m") if sys.stdout.isatty() else ("",) * 4
        )
        self.step = 0
        self.held = 0
        self.broken: list[str] = []

    def say(self, text: str = "") -> None:
        """Print a line."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def chapter(self, title: str) -> None:
        """Begin the next part."""
        self.step += 1
        self.say(f"\n{self.bold}{self.step}. {title}{self.plain}")

    def command(self, *words: str) -> None:
        """Show a command as one would type it."""
        self.say(f"   $ {shlex.join(words)}")

    def block(self, text: str) -> None:
        """Show what a command printed."""
        for line in text.rstrip().splitlines():
            self.say(f"     {line}")

    def claim(self, text: str, *, holds: bool, seen: object = "") -> None:
        """Say what should be so, and whether it is."""
        if holds:
            self.held += 1
            self.say(f"   {self.green}ok{self.plain}  {text}")
        else:
            self.broken.append(text)
            self.say(f"   {self.red}NOT SO{self.plain}  {text}; seen: {seen}")


def main() -> int:
    """Tell the story."""
    began = time.monotonic()
    story = Story()
    root = os.geteuid() == 0
    with Stage(fenced=root) as stage:
        fenced = bool(stage.cgroup)
        opening(story, fenced=fenced, root=root)
        tell(story, stage)
    story.chapter("What is left behind")
    for what, left in stage.left().items():
        story.claim(f"no {what}", holds=not left, seen=", ".join(map(str, left)))
    return verdict(story, fenced=fenced, seconds=time.monotonic() - began)


def opening(story: Story, *, fenced: bool, root: bool) -> None:
    """Say what will be shown, and what cannot be on this host."""
    story.say(
        f"{story.bold}The XCE node agent, one job from end to end.{story.plain}"
        " The node: 8 simulated H100 beside\nthis host's real NICs and a real port range."
    )
    if fenced:
        return
    why = "no cgroup of this host can fence devices" if root else "this is not root"
    story.say(
        f"\n{story.bold}enforcement: off{story.plain}, because {why}. Shown are inventory,"
        " selection, environment, and\nhow a binding outlives the agent. Root would add: real"
        " device nodes, a cgroup for the job, the\nkernel's fence around it, privileged helpers,"
        " and the agent as a user of its own without privileges."
    )


def tell(story: Story, stage: Stage) -> None:
    """Walk a job from the inventory to its release."""
    story.chapter("The agent starts")
    story.command("xce-nodeagent", "run", "--simulate", "dgx-h100")
    seconds = stage.start()
    story.claim(f"it serves after {seconds:.1f} s, as {stage.identity()}", holds=True)

    story.chapter("What this host has")
    story.command("xce-nodeagent", "inventory", "--table")
    story.block(stage.run("inventory", "--table").stdout)
    inventory = stage.json("inventory", "--json")
    gpus = [one for one in inventory["instances"] if one["type"] == "gpu"]
    real = [
        one
        for one in inventory["instances"]
        if one["type"] == "nic" and one["provider"] != "simulated"
    ]
    simulated = [one for one in gpus if one["provider"] == "simulated"]
    story.claim("8 simulated GPUs", holds=len(simulated) == 8, seen=len(simulated))
    devices = sorted({name for name in os.listdir("/sys/class/net") if physical(name)})
    found = sorted(one["attributes"].get("netdev", one["id"]) for one in real)
    story.claim(
        f"this host's own NICs are among them: {', '.join(devices) or 'it has none'}",
        holds=set(devices) <= set(found),
        seen=found,
    )

    prepared = prepare(story, stage)
    nodes = [node["path"] for one in gpus for node in one["devices"]]
    mine = {
        node["path"]
        for one in gpus
        if one["id"] in prepared["instances"]
        for node in one["devices"]
    }
    with stage.job(prepared, nodes) as job:
        if stage.cgroup:
            story.chapter(f"A process inside the job tries all {len(gpus)} GPUs")
            fence(story, stage.attempt(job), mine, show=True)
            outside = stage.outside(nodes)
            story.claim(
                f"the same tries outside of the job: all {len(outside)} pass",
                holds=all(passed(result) for result in outside.values()),
                seen=outside,
            )
        else:
            story.chapter("The job's process")
            story.say("   enforcement: off, so nothing stops it; the environment is its only guide")
        story.say("   its environment:")
        for name in sorted(prepared["env"]):
            if name.startswith(SHOWN):
                story.say(f"     {name}={prepared['env'][name]}")
        death_and_return(story, stage, job, prepared, mine)
    release(story, stage)


def physical(name: str) -> bool:
    """Whether a network interface is a piece of hardware: it has a device behind it."""
    return Path(f"/sys/class/net/{name}/device").exists()


def passed(result: str) -> bool:
    """Whether the fence let it pass. ENXIO: it did, but behind a simulated node is no driver."""
    return result in ("open", "ENXIO")


def fence(story: Story, tried: dict[str, str], mine: set[str], *, show: bool = False) -> None:
    """Claim that exactly the job's own nodes can be opened."""
    if show:
        for path, result in tried.items():
            word = "may open" if passed(result) else f"refused: {result}"
            story.say(f"     {path}  {word}")
    good = {path for path, result in tried.items() if passed(result)}
    denied = {result for path, result in tried.items() if path not in mine}
    story.claim(
        f"it opens its {len(mine)} GPUs; the other {len(tried) - len(mine)} are refused (EPERM)",
        holds=good == mine and denied == {"EPERM"},
        seen=tried,
    )


def prepare(story: Story, stage: Stage) -> dict[str, Any]:
    """Bind 2 GPUs, a NIC and 4 named ports to the job."""
    story.chapter("A job is prepared: 2 GPUs, a NIC, 4 named ports")
    ports = [word for name in NAMES for word in ("--ports", f"{name}=1")]
    words = ("prepare", *JOB, "--request", "rusage[gpu=2:nic=1]", *ports, "--format", "json")
    story.command("xce-nodeagent", *words)
    before = time.monotonic()
    prepared = stage.json(*words)
    seconds = time.monotonic() - before
    story.say(f"     instances    {'  '.join(prepared['instances'])}")
    story.say(f"     cgroup       {' '.join(prepared['cgroup'].values()) or 'none'}")
    story.say(f"     enforcement  {prepared['enforcement']}")
    got = [prepared["env"].get(f"XCE_PORT_{name.upper()}", "") for name in NAMES]
    story.claim(
        f"it has 4 ports by name: {' '.join(map('='.join, zip(NAMES, got, strict=True)))}",
        holds=all(got) and len(set(got)) == 4,
        seen=prepared["env"],
    )
    wanted = ("cgroup2", "cgroup1") if stage.cgroup else ("off",)
    story.claim(
        f"enforcement is {prepared['enforcement']} ({1000 * seconds:.0f} ms with the start of the"
        " command)",
        holds=prepared["enforcement"] in wanted,
        seen=prepared["enforcement"],
    )
    again = stage.json(*words)
    story.claim("asked again, the answer is the same", holds=again == prepared, seen=again)
    return prepared


def death_and_return(
    story: Story,
    stage: Stage,
    job: subprocess.Popen[str],
    prepared: dict[str, Any],
    mine: set[str],
) -> None:
    """Kill the agent, look at the fence, start the agent again."""
    story.chapter("The agent is killed")
    pid = stage.agent()
    story.command("kill", "-KILL", str(pid))
    stage.kill()
    dead = stage.run("jobs", "--json", check=False)
    story.claim(
        f"nobody answers now: exit {dead.returncode}, try again later",
        holds=dead.returncode == 75,
        seen=dead.stderr,
    )
    story.claim("the job goes on", holds=job.poll() is None)
    if stage.cgroup:
        fence(story, stage.attempt(job), mine)

    story.chapter("The agent comes back")
    story.command("xce-nodeagent", "run", "--simulate", "dgx-h100")
    seconds = stage.start()
    story.command("xce-nodeagent", "jobs")
    story.block(stage.run("jobs").stdout)
    bindings = stage.json("jobs", "--json")["bindings"]
    known = [one for one in bindings if one["job"] == "demo-1"]
    story.claim(
        f"after {seconds:.1f} s it knows the binding, with all of its instances",
        holds=len(known) == 1 and set(known[0]["instances"]) == set(prepared["instances"]),
        seen=bindings,
    )
    taken = stage.run(
        "prepare", "--job", "demo-2", "--instance", prepared["instances"][0], check=False
    )
    story.claim(
        f"another job can't have them: exit {taken.returncode}",
        holds=taken.returncode == 75 and "held by demo-1" in taken.stderr,
        seen=taken.stderr,
    )
    if stage.cgroup:
        fence(story, stage.attempt(job), mine)


def release(story: Story, stage: Stage) -> None:
    """End the job and the agent."""
    story.chapter("The job has ended and is released")
    story.command("xce-nodeagent", "release", *JOB)
    released = stage.json("release", *JOB, "--json")
    story.claim(
        "released, and clean: no process of it is left",
        holds=released["released"] and released["clean"],
        seen=json.dumps(released),
    )
    bindings = stage.json("jobs", "--json")["bindings"]
    story.claim("nothing is bound now", holds=bindings == [], seen=bindings)


def verdict(story: Story, *, fenced: bool, seconds: float) -> int:
    """Say how it went, and give the exit status."""
    story.say()
    if story.broken:
        story.say(f"{story.red}{len(story.broken)} claims did not hold:{story.plain}")
        for text in story.broken:
            story.say(f"   {text}")
        return 1
    off = "" if fenced else " Enforcement was off: run it as root to see the fence."
    story.say(
        f"{story.green}All {story.held} claims held{story.plain}, in {seconds:.0f} seconds.{off}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
