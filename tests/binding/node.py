"""A node to bind on, without a kernel: simulated cards, and a binder that keeps books."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from xce_nodeagent.binding.composer import Site
from xce_nodeagent.binding.executor import Executor
from xce_nodeagent.binding.ledger import Ledger
from xce_nodeagent.binding.lifecycle import Lifecycle
from xce_nodeagent.errors import BY_CODE, Conflict, Enforcement
from xce_nodeagent.model import wire
from xce_nodeagent.model.config import ReleaseConfig
from xce_nodeagent.model.instance import DeviceNode, Instance
from xce_nodeagent.model.inventory import Inventory, advance
from xce_nodeagent.model.plan import AllowDevice, CgroupRef, HoldPort, Plan, SetEnv
from xce_nodeagent.model.resource import GPU, MIG, PORTS
from xce_nodeagent.model.rule import Rule
from xce_nodeagent.privileged.ops import (
    Bind,
    Done,
    HomeVerified,
    Join,
    Look,
    Looked,
    Seen,
    Unbind,
    Unbound,
    Verified,
    Verify,
    VerifyHome,
)
from xce_nodeagent.provider import Found, Grant

HOME = CgroupRef("cgroup2", "/cg/home")


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


class Books:
    """A binder that keeps what it was told, as the kernel would, and fails when it is told to."""

    def __init__(self) -> None:
        self.bound: dict[str, tuple[str, tuple[Rule, ...]]] = {}
        self.processes: dict[str, tuple[int, ...]] = {}
        self.fail: list[str] = []
        self.asked: list[Any] = []

    async def call(
        self,
        request: Any,
        fds: Sequence[int] = (),
        *,
        meanwhile: Callable[[], None] | None = None,
    ) -> Any:
        if isinstance(request, VerifyHome):
            return HomeVerified("", 0.0)
        self.asked.append(request)
        if meanwhile is not None:
            meanwhile()
        code = self.fail.pop(0) if self.fail else ""
        if code:  # an empty one lets this one pass
            raise BY_CODE[code](f"told to fail with {code}")
        path = request.cgroup.path
        held = self.bound.get(path)
        if held is not None and held[0] != request.mark:
            if isinstance(request, Unbind):
                return Unbound(gone=True)
            raise Conflict(f"{path} bears another mark")
        match request:
            case Bind(mark=mark, grants=packed):
                grants = msgspec.msgpack.decode(packed, type=tuple[Rule, ...])
                self.bound[path] = (mark, grants)
                return Done()
            case Unbind():
                pids = self.processes.get(path, ())
                if held is not None and pids:
                    self.bound[path] = (request.mark, ())
                    return Unbound(gone=False, pids=pids)
                self.bound.pop(path, None)
                return Unbound(gone=held is None)
            case Verify(grants=packed):
                grants = msgspec.msgpack.decode(packed, type=tuple[Rule, ...])
                if held is None:
                    return Verified("gone")
                return Verified("ok") if held[1] == grants else Verified("differs", "grants")
            case Join():
                return Done()
        raise Enforcement(f"unknown request {request}")


class Cards:
    """Four cards, one of them in two slices, and a range of ports."""

    name = "cards"
    types = (GPU, MIG, PORTS)

    def __init__(self) -> None:
        self.listening: set[int] = set()

    def discover(self, host: object) -> Found:
        cards = [
            Instance(
                id=f"GPU-{i}",
                type="gpu",
                provider=self.name,
                devices=(DeviceNode(f"/dev/card{i}", "c", 120, i),),
                overlaps=("MIG-0", "MIG-1") if i == 0 else (),
            )
            for i in range(4)
        ]
        slices = [
            Instance(
                id=f"MIG-{i}",
                type="mig",
                provider=self.name,
                parent="GPU-0",
                overlaps=("GPU-0",),
                devices=(DeviceNode(f"/dev/slice{i}", "c", 121, i),),
            )
            for i in range(2)
        ]
        ports = Instance(
            id="ports", type="ports", provider=self.name, attributes={"port_range": "20000-20009"}
        )
        return Found(instances=(*cards, *slices, ports))

    def plan(self, grant: Grant) -> Plan:
        nodes = [node for instance in grant.instances for node in instance.devices]
        ports = tuple(HoldPort("ports", p.port, p.name) for p in grant.ports)
        names = ",".join(instance.id for instance in grant.instances)
        return Plan((*map(AllowDevice, nodes), *ports, SetEnv("XCE_GPU_UUIDS", names)))

    def parts(self, instance: Instance) -> tuple[range, ...]:
        return (range(20000, 20010),)

    def in_use(self, host: object, instance: Instance) -> frozenset[int]:
        return frozenset(self.listening)

    served = in_use

    def taken(self, instance: Instance, strangers: frozenset[int]) -> Instance:
        return instance


class FirstFree:
    """A selector that takes the first that is free."""

    def instances(
        self, inventory: Inventory, request: str, *, unavailable: set[str], near: set[str]
    ) -> tuple[str, ...]:
        cards = [i for i in inventory.instances if i.type == "gpu" and i.healthy]
        free = [i.id for i in cards if i.id not in unavailable]
        if len(free) < int(request):
            raise BY_CODE["no_fit_now"]("not enough cards are free")
        return tuple(free[: int(request)])

    def ports(
        self, parts: Sequence[range], asks: Sequence[wire.PortAsk], *, held: Any, in_use: Any
    ) -> tuple[tuple[int, str], ...]:
        free = iter(p for part in parts for p in part if p not in held and p not in in_use)
        chosen: list[tuple[int, str]] = []
        for ask in asks:
            for _ in range(ask.count or 1):
                port = next(free, None)
                if port is None:
                    raise BY_CODE["no_fit_now"]("no port is free")
                chosen.append((port, ask.name or ""))
        return tuple(chosen)


class Node:
    """A ledger, a binder and all bindings; `restart` is a crash and a new start."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ledger.db"
        self.clock = Clock()
        self.uptime = Clock()
        self.books = Books()
        self.cards = Cards()
        self.boot = "boot-1"
        found = Inventory(
            source="local",
            node="n",
            boot_id=self.boot,
            types=Cards.types,
            instances=self.cards.discover(None).instances,
        )
        self.inventory, self.seen, self.number = advance(found, {}, 0)
        self.policy: Any = "required"
        self.release = ReleaseConfig()
        self.seen: tuple[Seen, ...] = ()
        self.without_node: set[str] = set()
        self.open()

    def open(self) -> None:
        self.ledger = Ledger(self.path, self.boot, self.clock, uptime=self.uptime, log_bytes=0)
        self.executor = Executor(self.books, self.inventory.managed)
        self.life = Lifecycle(
            ledger=self.ledger,
            executor=self.executor,
            site=Site(policy=self.policy, home=HOME, roots=("/cg/other",)),
            providers={"cards": self.cards},
            selector=FirstFree(),
            inventory=lambda: self.inventory,
            parts=self,
            mounted={},
            clock=self.clock,
            uptime=self.uptime,
            release=self.release,
            look_at_nodes=self.look_at_nodes,
            populated=lambda cgroup: bool(self.books.processes.get(cgroup.path)),
        )

    def look_at_nodes(self, instances: Iterable[Instance], nodes: Iterable[DeviceNode]) -> None:
        for instance in instances:
            if instance.id in self.without_node:
                raise BY_CODE["unhealthy"]("no node", instance=instance.id, reason="no node")

    def in_use(self, instance: Instance) -> frozenset[int]:
        return self.cards.in_use(None, instance)

    def served(self, instance: Instance) -> frozenset[int]:
        return self.cards.served(None, instance)

    async def who(self, ports: tuple[int, ...]) -> tuple[wire.LeftOver, ...]:
        return tuple(wire.LeftOver(77, f"listens on tcp {port}", "srv", 5) for port in ports)

    async def look(self, what: Look) -> Looked:
        wanted = set(map(str, what.devices))
        return Looked(tuple(seen for seen in self.seen if seen.what in wanted), 0)

    def crash(self) -> None:
        """End without a word: what was not committed is lost."""
        self.ledger._store.db.close()

    def reboot(self) -> None:
        """Come up again, at the first second of another boot."""
        self.boot += "+"
        self.uptime.now = 0.0
        self.open()

    def held(self) -> dict[str, list[tuple[str, str]]]:
        """Give who holds what, from the book."""
        return {
            instance: [(h.job, h.attempt) for h in holders]
            for instance, holders in self.ledger.book.held().items()
        }
