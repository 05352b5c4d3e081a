"""What may be asked of the helpers that load vendors' libraries: the prober and the listener.

It is a part of the closed table in `ops.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from xce_nodeagent.model.health import Sample, Xid

PciAddress = Annotated[str, Meta(pattern=r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")]


class Probe(Struct, frozen=True, tag="probe"):
    """Ask a vendor's library about its devices; those in `skip` hung a prober before.

    `only`: open these and no others, because somebody wants another one for himself. None is all.
    """

    vendor: Literal["nvidia"]
    skip: tuple[str, ...] = ()
    only: tuple[PciAddress, ...] | None = None


class Probed(Struct, frozen=True, tag="probed"):
    """What the library said, as `host/nvml.py` describes it, or why it said nothing."""

    state: Literal["found", "none", "not_yet", "error"]
    reason: str
    facts: dict[str, Any]


class Listen(Struct, frozen=True, tag="listen"):
    """Wait so many seconds for what these cards tell; 0 asks for their figures.

    A pipe's end comes with it. One listener has the same cards open until it ends.
    """

    cards: tuple[PciAddress, ...]
    seconds: Annotated[float, Meta(ge=0, le=3600)] = 0


class Heard(Struct, frozen=True, tag="heard"):
    """The XIDs with their cards (0 is none, but a reason to ask for figures), or figures by card.

    `cut` are cards whose MIG layout has changed. `deaf` says of which cards nothing is heard, and
    why; `fault` why nothing is heard at all; `hung` what did not answer: the listener has ended.
    """

    events: tuple[tuple[str, Xid], ...] = ()
    cut: tuple[str, ...] = ()
    samples: dict[str, Sample] = {}
    deaf: dict[str, str] = {}
    fault: str = ""
    hung: str = ""
