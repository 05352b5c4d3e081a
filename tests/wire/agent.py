"""An agent without a host: the real server before a service that keeps its bindings in memory.

Run as a program: `agent.py SOCKET [--stall SECONDS] [--connections N] [--per-uid N]
[--passes-rights]`.

It says `ready` on stdout, ends on SIGTERM, and ends by itself when its stdin does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import structs

from xce_nodeagent import errors
from xce_nodeagent.daemon.server import Limits, Peer, Server, listen
from xce_nodeagent.model import name, wire
from xce_nodeagent.model.instance import DeviceNode, Holder, Instance
from xce_nodeagent.model.inventory import Inventory, Problem, advance, overlapping, with_holders
from xce_nodeagent.model.resource import GPU, NIC, PORTS

BOOT = "00000000-0000-4000-8000-000000000001"


def gpu(index: int) -> Instance:
    return Instance(
        id=f"GPU-{index}",
        type="gpu",
        provider="here",
        overlaps=(f"MIG-{index}",),
        healthy=index != 7,
        reason="XID 79: it has fallen off the bus" if index == 7 else "",
        attributes={
            "vendor": "nvidia",
            "model": "NVIDIA H100 80GB HBM3",
            "pci_address": f"0000:{0x10 + index:02x}:00.0",
            "pcie_root": f"pci0000:0{index // 4}",
            "pcie_switch": f"0000:0{index // 4}:00.0",
            "numa_node": index // 4,
            "memory_bytes": 85899345920,
            "index": index,
        },
        devices=(DeviceNode(f"/dev/here/gpu{index}", "c", 60, index),),
    )


INVENTORY = Inventory(
    source="agent",
    node="here",
    boot_id=BOOT,
    types=(GPU, NIC, PORTS),
    instances=(
        *(gpu(index) for index in range(8)),
        Instance(id="MIG-0", type="mig", provider="here", parent="GPU-0", overlaps=("GPU-0",)),
        Instance(
            id="0000:20:00.0",
            type="nic",
            provider="here",
            attributes={"netdev": "eth0", "speed_mbps": 100000, "state": "up", "numa_node": 0},
        ),
        Instance(id="ports", type="ports", provider="here", attributes={"port_range": "20000-29"}),
    ),
    problems=(Problem("nvidia", "none", "no driver is loaded"),),
)


class InMemory:
    """A service with real answers and no host: what is bound is bound until released."""

    def __init__(self) -> None:
        self.bindings: dict[tuple[str, str], wire.BindingView] = {}
        self.drained: dict[str, str] = {}
        self.gate = asyncio.Event()
        self.callbacks: list[Callable[[Inventory], None]] = []
        self.seen, self.number = {}, 0
        self.calls: list[str] = []

    def may_prepare(self, uid: int) -> bool:
        return uid == os.geteuid()

    def inventory(self) -> Inventory:
        found = structs.replace(
            INVENTORY,
            instances=tuple(
                structs.replace(i, drained=True, reason=self.drained[i.id])
                if i.id in self.drained
                else i
                for i in INVENTORY.instances
            ),
        )
        found, self.seen, self.number = advance(found, self.seen, self.number)
        holders: dict[str, list[Holder]] = {}
        for binding in self.bindings.values():
            for held in binding.instances:
                holders.setdefault(held, []).append(Holder(binding.job, binding.attempt))
        return with_holders(found, holders)

    def changed(self) -> None:
        for callback in tuple(self.callbacks):
            callback(self.inventory())

    def subscribe(self, callback: Callable[[Inventory], None]) -> Callable[[], None]:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    async def get_inventory(self, peer: Peer) -> Inventory:
        return self.inventory()

    async def prepare(self, peer: Peer, ask: wire.Prepare) -> wire.Prepared:
        job, attempt = name.job_id(ask.job), name.attempt(ask.attempt or "")
        self.calls.append(job)
        if job.startswith("waits"):
            await self.gate.wait()
        if job == "yields":
            await asyncio.sleep(0)
        if job == "fault":
            raise ZeroDivisionError("a fault that a test asked for")
        if job == "fault-later":
            await asyncio.sleep(0)
            raise ZeroDivisionError("a fault that a test asked for")
        if job == "no-json":
            return wire.Prepared(job=job, attempt="", instances=(), env={}, cgroup={},
                                 generation="\ud800", enforcement="off")  # fmt: skip
        instances = self.inventory().by_id()
        for wanted in ask.instances or ():
            if wanted not in instances:
                raise errors.UnknownInstance(
                    f"instance {wanted[:80]!r} is not of this host; `inventory` lists them",
                    instance=wanted[:80],
                )
            if not instances[wanted].healthy:
                raise errors.Unhealthy(f"instance {wanted}: {instances[wanted].reason}")
            if instances[wanted].drained:
                raise errors.Drained(f"instance {wanted} is drained: {instances[wanted].reason}")
            for shared in overlapping(instances, wanted):
                others = [
                    holder
                    for holder in (instances[shared].held_by if shared in instances else ()) or ()
                    if holder != Holder(job, attempt)
                ]
                if others:
                    raise errors.Busy(
                        f"instance {wanted} is held by job {others[0].job}", holders=others
                    )
        held = self.bindings.get((job, attempt))
        if held and held.instances != (ask.instances or ()):
            raise errors.Conflict(f"job {job} holds something else")
        ports = tuple(
            wire.PortHeld(20000 + number, asked.name or "")
            for number, asked in enumerate(ask.ports or ())
        )
        env = {"XCE_JOB_ID": job, "CUDA_VISIBLE_DEVICES": ",".join(ask.instances or ())}
        env |= {"WITH_QUOTE": "it's $HOME", "XCE_PORTS": ",".join(str(p.port) for p in ports)}
        self.bindings[job, attempt] = wire.BindingView(
            job=job, attempt=attempt, uid=ask.uid, state="held", reason="",
            instances=ask.instances or (), ports=ports, cgroup={}, enforcement="off",
            since=1.7e9, last_seen=1.7e9, populated=None, env=env,
        )  # fmt: skip
        self.changed()
        return wire.Prepared(
            job=job, attempt=attempt, instances=ask.instances or (), env=env, cgroup={},
            generation=self.inventory().generation, enforcement="off", ports=ports,
        )  # fmt: skip

    async def release(self, peer: Peer, ask: wire.Release) -> wire.Released:
        keys = [key for key in self.bindings if key[0] == ask.job and ask.attempt in (None, key[1])]
        for key in keys:
            del self.bindings[key]
        self.changed()
        if ask.job == "unclean":
            left = (wire.LeftOver(4711, "cgroup", "sleep", 1000),)
            return wire.Released(released=True, clean=False, holders=left, quarantined=("GPU-1",))
        return wire.Released(released=True, clean=True, known=bool(keys))

    async def join(self, peer: Peer, ask: wire.Join) -> wire.Joined:
        binding = await self._binding(ask.job, ask.attempt)
        self.calls.append(f"join {peer.pid if ask.pid is None else ask.pid}")
        return wire.Joined(cgroup={}, env={**binding.env, "JOINED": str(peer.pid)})

    async def reconcile(self, peer: Peer, ask: wire.Reconcile) -> wire.Reconciled:
        named = {(ref.job, ref.attempt or "") for ref in ask.jobs}
        gone = set(self.bindings) - named
        for key in gone:
            del self.bindings[key]

        def refs(keys: set[tuple[str, str]]) -> tuple[wire.JobRef, ...]:
            return tuple(wire.JobRef(job=job, attempt=attempt) for job, attempt in sorted(keys))

        return wire.Reconciled(
            kept=refs(named & set(self.bindings)),
            released=refs(gone),
            unknown=refs(named - set(self.bindings)),
        )

    async def list_bindings(self, peer: Peer) -> wire.Bindings:
        return wire.Bindings(
            bindings=tuple(structs.replace(b, env={}) for b in self.bindings.values())
        )

    async def get_binding(self, peer: Peer, ask: wire.JobRef) -> wire.OneBinding:
        return wire.OneBinding(binding=await self._binding(ask.job, ask.attempt))

    async def _binding(self, job: str, attempt: str | None) -> wire.BindingView:
        for key, binding in self.bindings.items():
            if key[0] == job and attempt in (None, key[1]):
                return binding
        raise errors.BadRequest(f"job {job[:80]!r} holds nothing here; `jobs` lists who does")

    async def drain(self, peer: Peer, ask: wire.Drain) -> None:
        self.drained[ask.id] = ask.reason
        self.changed()

    async def undrain(self, peer: Peer, ask: wire.Undrain) -> None:
        if ask.id == "gate":
            self.gate.set()
        self.drained.pop(ask.id, None)
        self.changed()

    async def doctor(self, peer: Peer, ask: wire.Doctor) -> wire.Checks:
        found = [wire.Check(name="ledger", state="ok", text="is written")]
        if self.drained:
            found.append(
                wire.Check(name="drained", state="fault", text="too much", remedy="undrain it")
            )
        return wire.Checks(checks=tuple(found))


async def serve(path: str, limits: Limits, *, passes_rights: bool) -> None:
    listener = listen(path)
    if passes_rights:  # as every socket does before Linux 6.16
        with contextlib.suppress(OSError):
            listener.setsockopt(socket.SOL_SOCKET, 83, 1)
    server = Server(InMemory(), listener, version="0", limits=limits)
    server.start()
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    loop.add_reader(0, ended.set)
    os.write(1, b"ready\n")
    await ended.wait()
    await server.close(grace_seconds=0.1)


@contextlib.contextmanager
def running(directory: Path, *options: str, log: Path | None = None) -> Iterator[str]:
    """Run one, in a process of its own; give its socket."""
    path = str(directory / "agent.sock")
    with (
        open(log or os.devnull, "wb") as stderr,
        subprocess.Popen(
            [sys.executable, __file__, path, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr if log else None,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield path
        finally:
            process.terminate()
            assert process.wait(10) == 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("socket")
    parser.add_argument("--stall", type=float, default=30.0)
    parser.add_argument("--connections", type=int, default=1024)
    parser.add_argument("--per-uid", type=int, default=64)
    parser.add_argument("--passes-rights", action="store_true")
    given = parser.parse_args()
    asyncio.run(
        serve(
            given.socket,
            Limits(
                connections=given.connections,
                per_uid=given.per_uid,
                stall_seconds=given.stall,
            ),
            passes_rights=given.passes_rights,
        )
    )
