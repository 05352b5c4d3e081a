"""The last look before a grant: are the nodes on disk those that the job is let to?"""

from __future__ import annotations

from collections.abc import Iterable

from xce_nodeagent.errors import Unhealthy
from xce_nodeagent.host import Host, node
from xce_nodeagent.model.instance import DeviceNode, Instance


class Nodes:
    """Looks at nodes; some microseconds for each."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def look(self, instances: Iterable[Instance], nodes: Iterable[DeviceNode]) -> None:
        """Raise Unhealthy where an instance's node is missing, or any is another device's."""
        looked: set[DeviceNode] = set()
        for instance in instances:
            looked.update(instance.devices)
            if why := node.faults(self._host, instance.devices):
                raise Unhealthy(
                    f"instance {instance.id} is unhealthy: {why}", instance=instance.id, reason=why
                )
        for granted in nodes:
            if granted in looked:
                continue
            if why := node.fault(self._host, granted):
                raise Unhealthy(f"nothing can be granted: {why}", reason=why)
