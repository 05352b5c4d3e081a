"""What the site declared in files: see model/declaration.py for their form."""

from __future__ import annotations

from typing import ClassVar, Literal

from xce_nodeagent.host import Host, declared
from xce_nodeagent.model import environment
from xce_nodeagent.model.instance import ResourceType
from xce_nodeagent.model.plan import AllowDevice, Plan
from xce_nodeagent.model.resource import ACCELERATOR, GPU, NIC
from xce_nodeagent.provider import Found, Grant, Provider


class Declared:
    """The provider."""

    name: ClassVar[str] = "declared"
    types: ClassVar[tuple[ResourceType, ...]] = (GPU, NIC, ACCELERATOR)
    subsystems: ClassVar[frozenset[str]] = frozenset({"declared", "pci", "module"})
    declares: ClassVar[Literal[True]] = True

    def discover(self, host: Host) -> Found:
        """Read the files; a file with a fault costs its own instances."""
        site = host.site
        if site is None and host.live:
            return Found()
        seen = host.answer("declared", lambda: declared.seen(site) if site else None, declared.Seen)
        if seen is None:
            return Found()
        found = seen.declared()
        made = declared.instances(host, self.name, found.instances, look=seen.node)
        return Found(
            instances=tuple(made),
            types=found.types,
            faults=found.faults,
        )

    def plan(self, grant: Grant) -> Plan:
        """Allow the nodes, and say what the site said."""
        nodes = dict.fromkeys(node for one in grant.instances for node in one.devices)
        return Plan((*map(AllowDevice, nodes), *environment.declared(grant.instances)))


PROVIDER: Provider = Declared()
