"""What a host of a profile tells, and bindings on it, for tests that change one thing."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from random import Random

from msgspec import structs

from xce_nodeagent.discovery import scan
from xce_nodeagent.host import Host
from xce_nodeagent.model.binding import Ask, Binding
from xce_nodeagent.model.inventory import Inventory, advance
from xce_nodeagent.model.plan import Plan
from xce_nodeagent.providers import all_providers


@functools.cache
def scanned(profile: str = "dgx-h100") -> Inventory:
    """Give what is found on a host of a profile, at its first generation."""
    with tempfile.TemporaryDirectory() as nothing:
        host = Host(Path(nothing), live=False, simulate=profile, port_range=(20000, 20099))
        found = scan(host, all_providers())
    return advance(structs.replace(found, node="n1", boot_id="b" * 8, source="agent"), {}, 0)[0]


def after(before: Inventory, place: int, **changes) -> Inventory:
    """Give the inventory after one instance has changed, numbered as the agent does."""
    instances = list(before.instances)
    instances[place] = structs.replace(instances[place], **changes)
    _, seen, number = advance(before, {}, 0)
    seen = {key: structs.replace(one, changed=before.number) for key, one in seen.items()}
    changed = structs.replace(before, instances=tuple(instances))
    return advance(changed, seen, max(number, before.number))[0]


def binding(job: str, *instances: str, state="bound", attempt="") -> Binding:
    """Give a binding of some instances."""
    return Binding(
        job=job, attempt=attempt, state=state, asks=(Ask(uid=1000),), instances=instances,
        excluded=(), plan=Plan(()), generation="b:1", enforcement="cgroup2",
        since=1000.0, changed=1000.0,
    )  # fmt: skip


def chance(seed: int) -> Random:
    """Give chance that is the same each time."""
    return Random(seed)  # noqa: S311  # nothing here is secret
