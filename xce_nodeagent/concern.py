"""Whom events concern: which providers are to be asked again. Pure.

A provider says it by its `subsystems` and, of functions on PCI, by its `pci_classes`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from xce_nodeagent.host.event import AGAIN, LIBRARY, Event
from xce_nodeagent.provider import Found, Provider


def kinds(
    events: Iterable[Event], before: Mapping[str, int], now: Mapping[str, int]
) -> frozenset[int] | None:
    """Give the PCI base classes of the functions that events are about; None: of any."""
    addresses = {event.name for event in events if event.subsystem == "pci"}
    if not addresses <= before.keys() | now.keys():
        return None
    return frozenset(
        codes[one] >> 16 for codes in (before, now) for one in addresses & codes.keys()
    )


def concerned(
    provider: Provider,
    before: Found,
    events: Collection[Event],
    kinds: Collection[int] | None,
) -> bool:
    """Say whether a provider must be asked after these events; who does not say, always."""
    subsystems = getattr(provider, "subsystems", None)
    if subsystems is None or (before.state == "not_yet" and AGAIN in events):
        return True
    classes = getattr(provider, "pci_classes", None)
    if kinds is not None and classes is not None and classes.isdisjoint(kinds):
        # What it is said to be is not what the provider has: it may have something there.
        names = {event.name for event in events}
        if not any(one.text("pci_address") in names for one in before.instances):
            subsystems = subsystems - {"pci"}
    return any(
        event.subsystem in subsystems
        or (event.subsystem == LIBRARY and event.name == provider.name)
        for event in events
    )
