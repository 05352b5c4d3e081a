"""Grants as they come with a `Bind`: unpacked and checked, and known again by their bytes.

The same sets come again and again (a whole node, a card with its NIC), and to unpack and check 26
rules takes longer than to make the cgroup.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import msgspec

from xce_nodeagent.model.rule import ALL, Device, Rule
from xce_nodeagent.privileged.channel import Violation

KEPT = 512

_unpack = msgspec.msgpack.Decoder(tuple[Rule, ...]).decode


class Grants:
    """Unpacks grants. What it knows was checked against one set of managed devices."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Rule, ...]] = {}

    def forget(self) -> None:
        """Know nothing any more: other devices are managed now."""
        self._known.clear()

    def unpack(self, packed: bytes, managed: AbstractSet[Device]) -> tuple[Rule, ...]:
        """Give the rules; raise Violation for what nobody honest grants."""
        known = self._known.get(packed)
        if known is not None:
            return known
        try:
            grants = _unpack(packed)
        except msgspec.MsgspecError as error:
            raise Violation(f"grants that are none: {error}") from None
        for rule in grants:
            if not 0 < rule.access <= ALL:
                raise Violation(f"a grant of {rule.device} with the access {rule.access}")
            if rule.device not in managed:
                raise Violation(f"a grant of {rule.device}, which is not managed")
        if len(self._known) >= KEPT:
            self._known.clear()
        self._known[packed] = grants
        return grants
