"""Metrics of a host's instances, in Prometheus' text format 0.0.4.

For the textfile collector of node_exporter, or any scraper. Names and units follow Prometheus'
conventions. There is a series for each instance, and none for a job: who holds what comes and goes
all the time, and would leave series behind. What is not known has no series.
"""

from __future__ import annotations

from collections.abc import Iterator

from xce_nodeagent.export.exposition import Labels, Metric, expose
from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.inventory import Inventory

_INFO = ("vendor", "model", "uuid", "pci_address", "numa_node", "driver_version", "mig_profile",
         "netdev", "rdma_device", "rail")  # fmt: skip
"""Attributes that are labels of xce_instance_info: what a query joins by; none of them moves."""

_VALUES = (
    ("memory_bytes", "xce_instance_memory_bytes", "Device memory.", 1),
    ("multiprocessors", "xce_instance_multiprocessors", "Multiprocessors, or compute units.", 1),
    ("power_limit_watts", "xce_instance_power_limit_watts", "What the card may draw.", 1),
    ("nvlink_count", "xce_instance_nvlinks", "NVLinks that are up.", 1),
    ("row_remap_pending", "xce_instance_row_remap_pending",
     "1 where memory rows are replaced at the next reset.", 1),
    ("row_remap_failed", "xce_instance_row_remap_failed",
     "1 where a bad memory row could not be replaced.", 1),
    ("speed_mbps", "xce_instance_link_speed_bytes_per_second", "Speed of a NIC's link.", 125_000),
    ("carrier", "xce_instance_carrier", "1 where the other end of a NIC's link is heard.", 1),
    ("foreign_count", "xce_instance_foreign_listeners", "Ports taken by processes of no job.", 1),
)  # fmt: skip
"""Attributes that are numbers: attribute, metric, help, and by how much it is multiplied."""


def metrics(inventory: Inventory) -> str:
    """Give the exposition of a host."""
    return expose(_metrics(inventory))


def _metrics(inventory: Inventory) -> Iterator[Metric]:
    every = inventory.instances
    number = [({"boot_id": inventory.boot_id}, inventory.number)]
    yield Metric(
        "xce_inventory_generation", "Rises with each change of the inventory in a boot.", number
    )
    problems = {(one.provider, one.state) for one in inventory.problems}
    missing = [({"provider": who, "state": state}, 1) for who, state in sorted(problems)]
    yield Metric(
        "xce_inventory_problem", "1 for what discovery did not find, or could not.", missing
    )
    kinds = sorted({one.type for one in every})
    counts = [({"type": kind}, sum(one.type == kind for one in every)) for kind in kinds]
    yield Metric("xce_instances", "Instances of this host by type.", counts)
    infos = [(_info(one), 1) for one in every]
    yield Metric("xce_instance_info", "What an instance is.", infos)
    states = (
        ("healthy", "1 where an instance is healthy.", [one.healthy for one in every]),
        ("drained", "1 where an admin drained an instance.", [one.drained for one in every]),
        ("reserved", "1 where the host keeps an instance for itself.",
         [bool(one.reserved) for one in every]),
    )  # fmt: skip
    for name, text, values in states:
        told = [(_own(one), int(is_so)) for one, is_so in zip(every, values, strict=True)]
        yield Metric(f"xce_instance_{name}", text, told)
    held = [(_own(one), int(bool(one.held_by))) for one in every if one.held_by is not None]
    yield Metric("xce_instance_held", "1 where a job holds an instance, or a part of it.", held)
    for key, name, text, factor in _VALUES:
        known = [one for one in every if isinstance(one.attributes.get(key), int)]
        yield Metric(name, text, [(_own(one), int(one.number(key)) * factor) for one in known])


def _own(one: Instance) -> Labels:
    return {"type": one.type, "id": one.id}


def _info(one: Instance) -> Labels:
    known = {key: one.text(key) for key in _INFO if key in one.attributes}
    return {**_own(one), **({"parent": one.parent} if one.parent else {}), **known}
