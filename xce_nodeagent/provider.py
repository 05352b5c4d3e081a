"""The contract of a resource provider, and nothing else.

A provider is one file below `providers/` that ends with `PROVIDER: Provider = ...()`. It finds its
instances through `Host`, and says as a value what a job needs to use them. It never acts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, Protocol, runtime_checkable

from msgspec import Struct

from xce_nodeagent.host import Host
from xce_nodeagent.model.instance import DeviceNode, Instance, ResourceType
from xce_nodeagent.model.inventory import ControlNode
from xce_nodeagent.model.link import Link
from xce_nodeagent.model.plan import Plan


class Found(Struct, frozen=True, kw_only=True):
    """What a provider found.

    `state` says how to read an empty list: `found` (there may be none, and that is the answer),
    `none` (this host cannot have any: no driver, no such bus), `not_yet` (ask again: a driver is
    still loading; what was known before stays), `error` (asking failed; the same). `reason` is
    for people, and is empty only when the state is `found`.

    `lost` are the ids of instances that are there but do not answer (a card that fell off the
    bus). What was known of them, and of the slices of such a card, stays and is unhealthy; where
    not even the id is told, the PCI address says which one it was.

    `kept` are those of them that nobody asked, because they are drained: what was known of them
    stays as it was.

    `silent`: there was nobody to ask, where that is no proof that there are none. What was known,
    and was on no bus that is looked at, may be there all the same: it is `not_yet` then.

    `links` are those between the cards, for `topology.links` of the inventory. `types` are those
    of a site's own; `faults` say what was left out of the instances, and why.
    """

    state: Literal["found", "none", "not_yet", "error"] = "found"
    reason: str = ""
    instances: tuple[Instance, ...] = ()
    control: tuple[ControlNode, ...] = ()
    lost: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    silent: bool = False
    links: tuple[Link, ...] = ()
    types: tuple[ResourceType, ...] = ()
    faults: tuple[str, ...] = ()


class PortGrant(Struct, frozen=True):
    """A port of a divisible instance that a job is given, maybe under a name."""

    port: int
    name: str = ""


class Grant(Struct, frozen=True, kw_only=True):
    """What a job was granted of one provider's instances, as `plan` sees it.

    `instances` are all the job's instances of the provider (never empty), in inventory order;
    `ports` all its ports, in the order asked; `control` the provider's control nodes that may be
    granted; `visible` the site's policy for variables such as CUDA_VISIBLE_DEVICES; `contained`
    says that the job is fenced, so that a library sees only the job's cards, counted from 0.
    """

    instances: tuple[Instance, ...]
    ports: tuple[PortGrant, ...] = ()
    control: tuple[DeviceNode, ...] = ()
    visible: Literal["uuid", "index"] = "uuid"
    contained: bool = True


class Provider(Protocol):
    """One resource kind, whole."""

    name: ClassVar[str]
    """Unique, and in the ledger for ever."""

    types: ClassVar[tuple[ResourceType, ...]]
    """The types that its instances may have."""

    def discover(self, host: Host) -> Found:
        """Find the instances. Reads only; never raises for what the hardware does not answer."""
        ...

    def plan(self, grant: Grant) -> Plan:
        """Say what a job needs to use its grant: AllowDevice, SetEnv and HoldPort steps. Pure."""
        ...


@runtime_checkable
class Divides(Protocol):
    """The optional ability of a provider whose instances are held in parts, by number."""

    def parts(self, instance: Instance) -> Sequence[range]:
        """Give the numbers that the instance consists of, as ranges in rising order. Pure."""
        ...

    def in_use(self, host: Host, instance: Instance) -> frozenset[int]:
        """Give the numbers that somebody on this host uses now, held or not.

        It is asked on the path of a prepare, so it must be cheap (well below a millisecond).
        """
        ...

    def taken(self, instance: Instance, strangers: frozenset[int]) -> Instance:
        """Give the instance as it is shown when processes outside any job use these numbers.

        Pure. The attribute `foreign_count` says how many there are.
        """
        ...

    def served(self, host: Host, instance: Instance) -> frozenset[int]:
        """Give those of them that somebody waits on for others, as a server does.

        It is asked on the path of a release, for what outlived the job.
        """
        ...


@runtime_checkable
class Watches(Protocol):
    """The optional ability of a provider to say what concerns it; without it, each event does."""

    subsystems: ClassVar[frozenset[str]]
    """The kernel's subsystems (and `host.event.ROUTES`) whose events can change what it finds.

    What a vendor's library tells of itself concerns the provider that the event names.

    A provider may have `pci_classes` as well: of `pci`, events of functions of these base classes
    (the upper 8 bits of the class code) are enough for it.
    """


@runtime_checkable
class Declares(Protocol):
    """The optional ability of a provider that goes by what people wrote, not by what it found.

    What another provider found goes before it: a device node of theirs is not its own.
    """

    declares: ClassVar[Literal[True]]
