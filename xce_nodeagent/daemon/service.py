"""What the socket's server asks of the agent: one method for each method of the interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from xce_nodeagent.daemon.connection import Peer
from xce_nodeagent.model import wire
from xce_nodeagent.model.inventory import Inventory


class Service(Protocol):
    """The agent, as its clients see it.

    Every method may raise an AgentError, which becomes the answer. The server has checked the
    shape of the message, and that `may_prepare` holds where the table in `method.py` says so;
    the rest is checked here.

    A call runs to its end when its client goes away: what was committed stays.

    The server takes a method's first step itself, without a task, because that is 20 µs faster:
    until its first `await` of something unfinished, `asyncio.current_task()` is None, so
    `asyncio.timeout` does not work there.
    """

    def may_prepare(self, uid: int) -> bool:
        """Say whether this user may prepare, release, reconcile and drain."""
        ...

    async def prepare(self, peer: Peer, ask: wire.Prepare) -> wire.Prepared:
        """Bind instances to a job."""
        ...

    async def release(self, peer: Peer, ask: wire.Release) -> wire.Released:
        """Release a job's binding, or some instances of it."""
        ...

    async def join(self, peer: Peer, ask: wire.Join) -> wire.Joined:
        """Move a process into a job's cgroup; checks itself whether the peer may."""
        ...

    async def reconcile(self, peer: Peer, ask: wire.Reconcile) -> wire.Reconciled:
        """Release what the caller does not name."""
        ...

    async def get_inventory(self, peer: Peer) -> Inventory:
        """Give the inventory as it is now, with `held_by`."""
        ...

    def subscribe(self, callback: Callable[[Inventory], None]) -> Callable[[], None]:
        """Call back, in the event loop, with each new inventory; the result ends that."""
        ...

    async def list_bindings(self, peer: Peer) -> wire.Bindings:
        """Give all bindings, without their environment."""
        ...

    async def get_binding(self, peer: Peer, ask: wire.JobRef) -> wire.OneBinding:
        """Give one binding; its environment only to who may prepare and to the job's user."""
        ...

    async def drain(self, peer: Peer, ask: wire.Drain) -> None:
        """Keep an instance from being granted."""
        ...

    async def undrain(self, peer: Peer, ask: wire.Undrain) -> None:
        """Let an instance be granted again."""
        ...

    async def doctor(self, peer: Peer, ask: wire.Doctor) -> wire.Checks:
        """Look at everything that the agent depends on; checks itself who may have it repaired."""
        ...
