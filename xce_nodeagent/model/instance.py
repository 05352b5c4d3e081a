"""An instance: one identified thing of this host that a job can hold, and its device nodes."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

NOT_YET = "not yet: "
"""So begins the reason of what is unhealthy only for a while, and comes right by itself."""

AttributeValue = str | int | float | bool | list[str | int]


class DeviceNode(Struct, frozen=True, gc=False, order=True):
    """A device node as the kernel judges it: type, major and minor. The path is for people."""

    path: str
    type: Literal["c", "b"]
    major: int
    minor: int


class Holder(Struct, frozen=True, gc=False, order=True):
    """Who holds an instance."""

    job: str
    attempt: str


class Instance(Struct, frozen=True, kw_only=True):
    """What `inventory` shows of one instance.

    `id` is what survives a reboot and a renumbering: a vendor's UUID, a PCI address, `ports`.
    `overlaps` names the instances that are made of the same silicon; it is symmetric.
    `changed` is the N of the generation in which this instance last changed.
    `devices` are the nodes that are this instance's own; control nodes that go with the first
    grant of a provider are in `Inventory.control`. An attribute that the hardware does not
    answer is absent. `held_by` is None where nobody who knows was asked. `reserved` says why the
    host keeps it for itself; it is empty where a job may have the instance.
    """

    id: str
    type: str
    provider: str
    parent: str | None = None
    overlaps: tuple[str, ...] = ()
    healthy: bool = True
    reason: str = ""
    reserved: str = ""
    drained: bool = False
    changed: int = 0
    attributes: dict[str, AttributeValue] = {}
    devices: tuple[DeviceNode, ...] = ()
    held_by: tuple[Holder, ...] | None = None

    @property
    def waits(self) -> bool:
        """Whether it is unhealthy for nothing but what comes right by itself."""
        return not self.healthy and self.reason.startswith(NOT_YET)

    def text(self, name: str) -> str:
        """Give an attribute as text, or an empty string when it is absent."""
        value = self.attributes.get(name)
        return "" if value is None else str(value)

    def number(self, name: str, default: int = -1) -> int:
        """Give an attribute as a whole number, or the default when it is absent."""
        value = self.attributes.get(name)
        return value if isinstance(value, int) else default


class Attribute(Struct, frozen=True):
    """The descriptor of an attribute."""

    name: str
    type: Literal["string", "int", "float", "bool", "list"]
    meaning: str
    unit: str = ""


class ResourceType(Struct, frozen=True, kw_only=True):
    """The descriptor of a resource type: what one is, how it is counted, what is known of it."""

    name: str
    layer: Literal["attribute", "counter", "instance"] = "instance"
    unit: str
    meaning: str
    divisible: bool = False
    attributes: tuple[Attribute, ...] = ()
