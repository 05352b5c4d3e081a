"""Device nodes on disk: looked at before a grant, and shown where they are wrong."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from msgspec import structs

from xce_nodeagent.errors import Unhealthy
from xce_nodeagent.host import Host, node
from xce_nodeagent.host.event import NODES, Event
from xce_nodeagent.host.nodewatch import NodeWatch
from xce_nodeagent.model.instance import DeviceNode, Instance
from xce_nodeagent.model.inventory import Inventory

log = logging.getLogger(__name__)

AGAIN_SECONDS = 10.0
"""How often wrong nodes are looked at again where the kernel tells of none that come and go."""


class Nodes:
    """Looks at nodes; two microseconds for each that is right.

    `changed` is called where the inventory may say otherwise than the disk.
    """

    def __init__(self, host: Host, changed: Callable[[Event], None] = lambda _: None) -> None:
        self._host = host
        self._changed = changed
        self._watch: NodeWatch | None = None
        self._again: asyncio.TimerHandle | None = None
        self._wrong = False

    def look(self, instances: Iterable[Instance], nodes: Iterable[DeviceNode]) -> None:
        """Raise Unhealthy where an instance's node is missing, or any is another device's."""
        host = self._host
        looked: set[DeviceNode] = set()
        for instance in instances:
            for own in instance.devices:
                looked.add(own)
                if not node.is_right(host, own) and (why := node.faults(host, (own,))):
                    self._changed(NODES)
                    raise Unhealthy(
                        f"instance {instance.id} is unhealthy: {why}",
                        instance=instance.id,
                        reason=why,
                    )
        for granted in nodes:
            if granted in looked or node.is_right(host, granted):
                continue
            if why := node.fault(host, granted):
                self._changed(NODES)
                raise Unhealthy(f"nothing can be granted: {why}", reason=why)

    def judge(self, inventory: Inventory) -> Inventory:
        """Give the inventory with what has a wrong node; the same one where nothing has.

        A control node that is another device's would be granted with each instance.
        """
        host = self._host
        control: dict[str, str] = {}
        for provider, nodes in inventory.control.items():
            found = (node.fault(host, one.node) for one in nodes if one.granted)
            control[provider] = next(filter(None, found), "")
        reasons: dict[str, str] = {}
        for one in inventory.instances:
            wrong = [own for own in one.devices if not node.is_right(host, own)]
            why = node.faults(host, wrong) or control.get(one.provider, "")
            if why and one.healthy:
                reasons[one.id] = why
        self._wrong = bool(reasons)
        if not reasons:
            return inventory
        marked = (
            structs.replace(one, healthy=False, reason=reasons[one.id])
            if one.id in reasons
            else one
            for one in inventory.instances
        )
        return structs.replace(inventory, instances=tuple(marked))

    def watch(self, watch: NodeWatch | None) -> None:
        """Hear of nodes that come and go, if the kernel has a watch to spare."""
        self._watch = watch
        if watch is not None:
            asyncio.get_running_loop().add_reader(watch.fileno(), self._told)

    def published(self, inventory: Inventory) -> None:
        """Watch the nodes of a new inventory."""
        if self._watch is not None:
            nodes = [node for one in inventory.instances for node in one.devices]
            for control in inventory.control.values():
                nodes += [one.node for one in control if one.granted]
            self._watch.follow(dict.fromkeys(one.path for one in nodes))
        elif self._wrong and self._again is None:
            self._again = asyncio.get_running_loop().call_later(AGAIN_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._again = None
        self._changed(NODES)

    def _told(self) -> None:
        if self._watch is not None and self._watch.drain():
            self._changed(NODES)

    def close(self) -> None:
        """Stop."""
        if self._again is not None:
            self._again.cancel()
        if self._watch is not None:
            asyncio.get_running_loop().remove_reader(self._watch.fileno())
            self._watch.close()


def node_watch() -> NodeWatch | None:
    """Give what sees nodes come and go; None where the kernel has no watch to spare."""
    try:
        return NodeWatch()
    except OSError as error:
        log.warning("device nodes that come and go are seen late: %s", error)
        return None
