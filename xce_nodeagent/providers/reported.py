"""What the site's own program reports: the same form as in files, as JSON.

The program runs elsewhere (privileged/runner.py); here is only what it printed last, and that is
believed in nothing: each node that it names must be one that the configuration lets it name.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from xce_nodeagent.host import Host, declared
from xce_nodeagent.model import environment
from xce_nodeagent.model.declared import read_report
from xce_nodeagent.model.instance import ResourceType
from xce_nodeagent.model.plan import AllowDevice, Plan
from xce_nodeagent.model.resource import ACCELERATOR, GPU, NIC
from xce_nodeagent.provider import Found, Grant, Provider

_SHOWN = 8  # faults of one report


class Reported:
    """The provider."""

    name: ClassVar[str] = "reported"
    types: ClassVar[tuple[ResourceType, ...]] = (GPU, NIC, ACCELERATOR)
    subsystems: ClassVar[frozenset[str]] = frozenset({"reported", "declared", "pci", "module"})
    declares: ClassVar[Literal[True]] = True

    def discover(self, host: Host) -> Found:
        """Read the last report; where it is none, say why, and what was known stays."""
        if host.report is None or host.site is None:
            return Found()
        state, reason, output = host.report()
        match state:
            case "none" | "not_yet":
                return Found(state=state, reason=reason)
            case "error":
                return Found(state="error", reason=reason)
        found = read_report(output)
        if found.faults:
            more = len(found.faults) - _SHOWN
            told = [*found.faults[:_SHOWN], *([f"and {more} more"] if more > 0 else [])]
            return Found(state="error", reason=f"what it printed is wrong: {'; '.join(told)}")
        patterns = host.site.patterns
        made = declared.instances(host, self.name, found.instances, within=patterns)
        return Found(instances=tuple(made), types=found.types)

    def plan(self, grant: Grant) -> Plan:
        """Allow the nodes, and say what the program said."""
        nodes = dict.fromkeys(node for one in grant.instances for node in one.devices)
        return Plan((*map(AllowDevice, nodes), *environment.declared(grant.instances)))


PROVIDER: Provider = Reported()
