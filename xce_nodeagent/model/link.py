"""Links between cards that go past the PCI bus: NVLink and XGMI."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Link(Struct, frozen=True, gc=False, order=True):
    """So many links of one kind between two ends.

    `one` is the id of an instance; `other` that of another, or the PCI address of a switch
    (NVSwitch), or `nvswitch` for those of a host that shows none. Between two instances it is told
    once, with the lesser id first.
    """

    kind: Literal["nvlink", "xgmi"]
    one: str
    other: str
    count: int
