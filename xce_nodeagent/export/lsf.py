"""What an external load information manager (ELIM) tells LSF, and the lines of lsf.shared for it.

An ELIM writes a line at each interval: how many indices follow, then a name and a number of each
(IBM Spectrum LSF, "Create an elim executable file"). Names are letters, digits and `_`, as many as
lsf.shared has; the numbers are below INFINIT_LOAD (2147483647.0, lsf.h).

Never run against LSF, which can be had by its customers only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from xce_nodeagent.export.offer import offered
from xce_nodeagent.model.inventory import Inventory, overlapping

_NAME_LIMIT = 39  # MAXLSFNAMELEN is 40, with its NUL


class Index(Struct, frozen=True):
    """A load index: its name, its value, and what it is."""

    name: str
    value: int
    meaning: str


def indices(inventory: Inventory) -> tuple[Index, ...]:
    """Give the indices of a host, the same ones while the types of its instances are the same.

    For each type how many there are, how many of these nobody holds, and how many are unhealthy.
    Without the agent (`--local`) nobody knows who holds what, so all are free.
    """
    held = {one.id for one in inventory.instances if one.held_by}
    busy = {other for one in held for other in overlapping(inventory.by_id(), one)}
    offer = offered(inventory).instances
    every = [one for one in inventory.instances if one.type not in inventory.divisible]
    found: dict[str, Index] = {}
    for kind in sorted({one.type for one in every} | {"gpu", "nic"}):
        mine = [one for one in offer if one.type == kind]
        sick = sum(one.type == kind and not one.healthy for one in every)
        for suffix, value, meaning in (
            ("total", len(mine), "that jobs may have"),
            ("free", sum(one.id not in busy for one in mine), "that no job holds"),
            ("unhealthy", sick, "that are unhealthy"),
        ):
            name = _name(kind, suffix)
            found.setdefault(name, Index(name, value, f"{_plain(kind)} instances {meaning}"))
    return tuple(found.values())


def elim(inventory: Inventory) -> str:
    """Give the line of one interval."""
    told = indices(inventory)
    return " ".join([str(len(told)), *(f"{one.name} {one.value}" for one in told)]) + "\n"


def shared(told: Iterable[Index], seconds: int) -> str:
    """Give the Resource section of lsf.shared that defines the indices, to be added to it.

    lsf.cluster.NAME then maps each to its hosts: `xce_gpu_free [default]`.
    """
    lines = ["Begin Resource", "RESOURCENAME  TYPE  INTERVAL  INCREASING  DESCRIPTION"]
    lines += [
        f"{one.name} Numeric {seconds} {'Y' if one.name.endswith('_unhealthy') else 'N'}"
        f" ({one.meaning})"
        for one in told
    ]
    return "\n".join([*lines, "End Resource"]) + "\n"


def _name(kind: str, suffix: str) -> str:
    room = _NAME_LIMIT - len(suffix) - len("xce__")
    return f"xce_{_plain(kind)[:room]}_{suffix}"


def _plain(kind: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", kind.lower()).strip("_") or "other"
