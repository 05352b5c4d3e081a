"""How a ledger came to begin anew: what people are told of it."""

from __future__ import annotations

import msgspec


class Rebuilt(msgspec.Struct, frozen=True):
    """How a ledger came to begin anew. `rows` were kept; the rest is for people.

    `whole`: these were all that it had, so nothing is missing: it could only not be written.
    """

    at: float
    why: str
    aside: str
    rows: int
    kernel: str = ""
    whole: bool = False
