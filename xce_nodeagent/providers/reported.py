"""What the site's own program reports: the same form as in files, as JSON.

The program runs elsewhere (privileged/runner.py); here is only what it printed last, and that is
believed in nothing: each node that it names must be one that the configuration lets it name.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from xce_nodeagent.host import Host, declared
from xce_nodeagent.model import environment
from xce_nodeagent.model.instance import ResourceType
from xce_nodeagent.model.plan import AllowDevice, Plan
from xce_nodeagent.model.resource import ACCELERATOR, GPU, NIC
from xce_nodeagent.provider import Found, Grant, Provider


class Reported:
    """The provider."""

    name: ClassVar[str] = "reported"
    types: ClassVar[tuple[ResourceType, ...]] = (GPU, NIC, ACCELERATOR)
    subsystems: ClassVar[frozenset[str]] = frozenset({"reported", "declared", "pci", "module"})
    declares: ClassVar[Literal[True]] = True

    def discover(self, host: Host) -> Found:
        """Look for what was reported last; while the program fails, also say so."""
        if host.report is None or host.site is None:
            return Found()
        report = host.report()
        if report.declared is None:
            return Found(state=report.state, reason=report.reason)
        made = declared.instances(
            host, self.name, report.declared.instances, within=host.site.patterns
        )
        return Found(
            instances=tuple(made),
            types=report.declared.types,
            faults=(report.reason,) if report.state != "found" else (),
        )

    def plan(self, grant: Grant) -> Plan:
        """Allow the nodes, and say what the program said."""
        nodes = dict.fromkeys(node for one in grant.instances for node in one.devices)
        return Plan((*map(AllowDevice, nodes), *environment.declared(grant.instances)))


PROVIDER: Provider = Reported()
