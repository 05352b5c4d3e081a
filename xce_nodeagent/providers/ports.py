"""Ports: one divisible instance, the range that the configuration names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec import structs

from xce_nodeagent.host import Host
from xce_nodeagent.host.sockdiag import PortTable
from xce_nodeagent.model import environment
from xce_nodeagent.model.instance import AttributeValue, Instance, ResourceType
from xce_nodeagent.model.plan import HoldPort, Plan
from xce_nodeagent.model.resource import PORTS
from xce_nodeagent.provider import Found, Grant, Provider

INSTANCE = "ports"
SHOWN = 16
"""Parts of the list of foreign listeners that are written out; the rest is a count."""


class Ports:
    """The provider. It keeps a socket to the kernel, for it is asked on the path of a prepare."""

    name: ClassVar[str] = "ports"
    types: ClassVar[tuple[ResourceType, ...]] = (PORTS,)
    subsystems: ClassVar[frozenset[str]] = frozenset()

    def __init__(self) -> None:
        self._kept: tuple[tuple[int, int], PortTable] | None = None

    def discover(self, host: Host) -> Found:
        """Give the range, and who is in it already."""
        if host.port_range is None:
            return Found(state="none", reason="no port range is configured: set [ports] range")
        first, last = host.port_range
        attributes: dict[str, AttributeValue] = {"port_range": f"{first}-{last}"}
        instance = Instance(id=INSTANCE, type="ports", provider=self.name, attributes=attributes)
        if host.live:
            try:
                # A scan may run beside a prepare, in a thread of its own.
                with PortTable(first, last) as table:
                    foreign = table.in_use() - host.held_ports
            except OSError as error:
                return Found(state="error", reason=f"sock_diag does not answer: {error}")
            instance = self.taken(instance, foreign)
        return Found(instances=(instance,))

    def plan(self, grant: Grant) -> Plan:
        """Hold the ports, and name them to the job."""
        holder = grant.instances[0].id
        held = tuple(HoldPort(holder, port.port, port.name) for port in grant.ports)
        return Plan(held + environment.ports([(port.port, port.name) for port in grant.ports]))

    def parts(self, instance: Instance) -> Sequence[range]:
        """Give the ports that the instance consists of."""
        first, last = (int(part) for part in instance.text("port_range").split("-"))
        return (range(first, last + 1),)

    def in_use(self, host: Host, instance: Instance) -> frozenset[int]:
        """Give the ports with a listening TCP socket or a bound UDP socket; none if recorded.

        Raise OSError where the kernel does not answer: nobody may then be told that a port is free.
        """
        return self._table(instance).in_use() if host.live else frozenset()

    def taken(self, instance: Instance, strangers: frozenset[int]) -> Instance:
        """Give the instance with the ports that processes outside any job use."""
        attributes = {"port_range": instance.attributes["port_range"]}
        if strangers:
            attributes["foreign_listeners"] = _short(environment.ranges(strangers))
            attributes["foreign_count"] = len(strangers)
        return structs.replace(instance, attributes=attributes)

    def served(self, host: Host, instance: Instance) -> frozenset[int]:
        """Give the ports with a listening TCP socket: UDP knows no listening.

        Raise OSError where the kernel does not answer.
        """
        return self._table(instance).listening() if host.live else frozenset()

    def _table(self, instance: Instance) -> PortTable:
        (ports,) = self.parts(instance)
        wanted = (ports[0], ports[-1])
        if self._kept is None or self._kept[0] != wanted:
            self.close()
            self._kept = (wanted, PortTable(*wanted))
        return self._kept[1]

    def close(self) -> None:
        """Close the socket; it is opened again when it is needed."""
        if self._kept is not None:
            self._kept[1].close()
            self._kept = None


def _short(text: str) -> str:
    parts = text.split(",")
    if len(parts) <= SHOWN:
        return text
    return ",".join(parts[:SHOWN]) + f",… ({len(parts) - SHOWN} more)"


PROVIDER: Provider = Ports()
