"""The fences of a host: one for each hierarchy that it has and that can fence."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from xce_nodeagent.errors import AgentError, Enforcement, exhausted
from xce_nodeagent.host.cgroup import hierarchies
from xce_nodeagent.model.plan import Backend, CgroupRef
from xce_nodeagent.model.rule import Device
from xce_nodeagent.privileged import fence2
from xce_nodeagent.privileged.cgroup import Cgroup
from xce_nodeagent.privileged.fence import Fence
from xce_nodeagent.privileged.fence1 import Fence1
from xce_nodeagent.privileged.fence2 import SharedFence
from xce_nodeagent.privileged.jobfence import JobFence

BoundCgroups = Callable[[Backend], Iterable[Cgroup]]
"""Opens each bound cgroup of a hierarchy, in turn."""


class Fences:
    """What this host can fence with. `shared=False` goes without the shared program.

    `program` is the kind of program on cgroup v2, `recovered` says that the maps of an earlier
    binder were found, and `managed` is what they hold then.
    """

    def __init__(self, *, proc: Path, shared: bool) -> None:
        self.program = "none"
        self.recovered = False
        self.managed: frozenset[Device] | None = None
        self._proc = proc
        self._shared = shared
        self._open: dict[Backend, Fence] = {}
        self._lacking: dict[Backend, str] = {}

    def open(self, home: Cgroup | None, bound: BoundCgroups) -> None:
        """Find out what there is. `home` is the jobs' home, where that is on cgroup v2."""
        mountinfo = (self._proc / "self/mountinfo").read_text("utf-8")
        present = {mount.backend for mount in hierarchies(mountinfo)}
        if "cgroup2" in present:
            try:
                fence = fence2.take(home, bound("cgroup2"), shared=self._shared)
            except (AgentError, OSError) as error:
                if exhausted(error) or exhausted(error.__cause__):
                    raise
                why = error.message if isinstance(error, AgentError) else error.strerror
                self._lacking["cgroup2"] = why or str(error)
            else:
                self._take(fence)
        if "cgroup1" in present:
            self._open["cgroup1"] = Fence1(self.managed or frozenset())

    def _take(self, fence: SharedFence | JobFence) -> None:
        self._open["cgroup2"] = fence
        self._lacking["cgroup2"] = fence.note
        self.program, self.recovered = fence.kind, fence.recovered
        if fence.recovered:
            self.managed = fence.managed()

    @property
    def backends(self) -> tuple[Backend, ...]:
        """The hierarchies that can be fenced."""
        return tuple(self._open)

    @property
    def reason(self) -> str:
        """What is lacking, if anything is."""
        return "; ".join(f"{backend}: {why}" for backend, why in self._lacking.items() if why)

    def of(self, cgroup: CgroupRef) -> Fence:
        """Give the fence for a cgroup. Raise Enforcement where its hierarchy has none."""
        fence = self._open.get(cgroup.backend)
        if fence is None:
            why = self._lacking.get(cgroup.backend) or "it is not mounted"
            raise Enforcement(
                f"cgroup {cgroup.path}: {cgroup.backend} cannot be fenced on this host: {why}",
                cgroup=cgroup.path,
            )
        return fence

    def manage(self, devices: frozenset[Device], bound: BoundCgroups, home: Cgroup | None) -> None:
        """Make these the managed devices, in every hierarchy, and put the home right."""
        for backend, fence in self._open.items():
            fence.repair_home(home)
            fence.manage(devices, bound(backend))

    def verify_home(self, home: Cgroup | None) -> str:
        """Compare what all bindings share; give the fault, "" where there is none."""
        faults = (fence.verify_home(home) for fence in self._open.values())
        return "; ".join(fault for fault in faults if fault)

    def close(self) -> None:
        """Let go of descriptors; what is enforced stays."""
        while self._open:
            self._open.popitem()[1].close()
