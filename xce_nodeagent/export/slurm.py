"""Slurm's gres.conf (gres.conf(5), of Slurm 22.05), and the lines of slurm.conf that go with it.

- A line is for one type and place. `Type` is what users write in `--gres=gpu:TYPE:2`: of cards the
  model, of slices with the profile after it, of NICs their kind.
- `Cores` are Slurm's own numbers: the first core of the first socket is 0, whatever its CPU number
  ("Core L#" of lstopo). It is left out where all cores are as near.
- `Links` are a card's NVLinks or XGMI links to each card of this file, in its order; itself is -1.
- A slice has several nodes, so it is told by `MultipleFiles`.
- What a job cannot have is a comment. Slurm has no shares of silicon but MPS: see `offer.offered`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from msgspec import Struct

from xce_nodeagent.export.cpus import listed, numbers
from xce_nodeagent.export.offer import LeftOut, offered, one_line, word
from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.inventory import Inventory

_PATH = re.compile(r"/[A-Za-z0-9_./:@+-]+")  # what gres.conf takes without a meaning of its own
_LIMIT = 63  # of a type; longer ones do not fit squeue, and nobody types them
_ENV = {"nvidia": "nvidia_gpu_env", "amd": "amd_gpu_env", "intel": "intel_gpu_env"}
"""Which variables Slurm sets, by the vendor of a card; else it sets those of all vendors."""


class _Record(Struct, frozen=True):
    """What becomes a line, alone or with others like it."""

    name: str
    type: str
    files: tuple[str, ...]
    cores: str
    links: str
    flags: str
    count: int = 1

    @property
    def like(self) -> tuple[Any, ...]:
        """What must be equal for two to stand in one line."""
        # Links tell one device from all others, and several files are one device.
        alone = self.files if self.links or len(self.files) != 1 else ()
        return self.name, self.type, self.cores, self.flags, self.links, alone


def gres_conf(inventory: Inventory) -> str:
    """Give the text of gres.conf for this host."""
    offer = offered(inventory)
    left_out = list(offer.left_out)
    told = [one for one in offer.instances if _telling(one, offer.instances, left_out)]
    records = sorted(_records(inventory, told), key=lambda one: (one.name != "gpu", one.name))
    # slurmd goes by the host's name up to its first dot, too.
    node = re.sub(r"[^A-Za-z0-9-]+", "-", inventory.node.partition(".")[0]).strip("-")
    where = f"NodeName={node} " if node else ""
    lines = [f"# gres.conf of {one_line(inventory.node)}"]
    if records:
        names = dict.fromkeys(record.name for record in records)
        lines += [
            "# In slurm.conf:",
            f"#   GresTypes={','.join(names)}",
            f"#   {where}Gres={','.join(_totals(records))}",
        ]
    auto = "AutoDetect=off "  # once for a node
    for _, group in groupby(records, key=lambda one: one.like):
        lines.append(f"{where}{auto}{_line(list(group))}")
        auto = ""
    lines += [
        f"# left out: {one_line(f'{one.instance.type} {one.instance.id}: {one.why}')}"
        for one in left_out
    ]
    return "\n".join(lines) + "\n"


def _telling(one: Instance, instances: Sequence[Instance], left_out: list[LeftOut]) -> bool:
    """Say whether gres.conf can name an instance; if not, say why in `left_out`."""
    why = ""
    bad = [node.path for node in one.devices if not _PATH.fullmatch(node.path)]
    if bad:
        why = f"gres.conf cannot name {bad[0]}"
    elif not one.devices and one.type in ("gpu", "mig", "mps"):
        why = "it has no device node, which Slurm demands of a GPU"
    elif not one.devices and any(
        other.devices for other in instances if _name(other) == _name(one)
    ):
        why = "it has no device node, and others of its name have: Slurm takes all or none"
    if why:
        left_out.append(LeftOut(one, why))
    return not why


def _name(one: Instance) -> str:
    return "gpu" if one.type == "mig" else word(one.type).replace(".", "_") or "other"


def _records(inventory: Inventory, told: Sequence[Instance]) -> Iterator[_Record]:
    order = cores(inventory.topology)
    cards = [one for one in told if _name(one) == "gpu"]
    shares: dict[tuple[str, ...], list[Instance]] = {}
    for one in told:
        files = tuple(node.path for node in one.devices)
        if one.type == "mps":
            shares.setdefault(files, []).append(one)
            continue
        yield _Record(
            name=_name(one),
            type=_type(one),
            files=files,
            cores=_cores(one, order),
            links=_links(inventory, one, cards) if one in cards else "",
            flags=_ENV.get(one.text("vendor"), "") if one in cards else "",
        )
    for files, parts in shares.items():
        percent = sum(one.number("mps_percent", 0) for one in parts)
        if percent > 0:
            near = _cores(parts[0], order)
            yield _Record("mps", "", files, near, "", "", count=percent)


def _type(one: Instance) -> str:
    if one.type == "nic":
        text = one.text("nic_kind") or one.text("link_layer")
    else:
        text = f"{one.text('model')} {one.text('mig_profile')}"
        vendor = one.text("vendor")
        if vendor and not text.lower().startswith(vendor):
            text = f"{vendor} {text}"
    made = word(text)[:_LIMIT].strip("_.-")
    return f"type_{made}" if made.isdigit() else made  # a number would be a count


def cores(topology: dict[str, Any]) -> dict[int, int]:
    """Give Slurm's number of each CPU's core.

    Cores are counted socket by socket, in a socket NUMA node by NUMA node, each by its first CPU.
    Where sockets stand in groups (four and more, at different distances), hwloc, and so slurmd, may
    count group by group; that is not followed.
    """
    package = _first(topology.get("packages", ()))
    node = _first(topology.get("numa_nodes", ()))
    every = [listed(text) for text in topology.get("cores", ())]
    every = sorted(
        (cpus for cpus in every if cpus),
        key=lambda cpus: (package.get(cpus[0], 0), node.get(cpus[0], 0), cpus[0]),
    )
    return {cpu: number for number, cpus in enumerate(every) for cpu in cpus}


def _first(groups: Sequence[dict[str, Any]]) -> dict[int, int]:
    """Give, for each CPU, the first one of the group that it is in."""
    return {cpu: min(cpus) for one in groups for cpus in [listed(one["cpus"])] for cpu in cpus}


def _cores(one: Instance, order: dict[int, int]) -> str:
    near = {order[cpu] for cpu in listed(one.text("local_cpus")) if cpu in order}
    return "" if len(near) == len(set(order.values())) else numbers(near)


def _links(inventory: Inventory, one: Instance, cards: Sequence[Instance]) -> str:
    counts = []
    for other in cards:
        between = inventory.layout.between(one.id, other.id)
        linked = re.fullmatch(r"(?:NV|XGMI)(\d*)", between)
        counts.append(-1 if other is one else int(linked[1] or 1) if linked else 0)
    return ",".join(map(str, counts)) if any(count > 0 for count in counts) else ""


def _totals(records: Sequence[_Record]) -> Iterator[str]:
    totals: dict[str, int] = {}
    for record in records:
        key = f"{record.name}:{record.type}" if record.type else record.name
        totals[key] = totals.get(key, 0) + record.count
    yield from (f"{key}:{count}" for key, count in totals.items())


def _line(records: Sequence[_Record]) -> str:
    one = records[0]
    parts = [f"Name={one.name}"]
    if one.type:
        parts.append(f"Type={one.type}")
    if one.flags:
        parts.append(f"Flags={one.flags}")
    if len(one.files) > 1:
        parts.append(f"MultipleFiles={','.join(one.files)}")
    elif one.files:
        parts.append(f"File={','.join(record.files[0] for record in records)}")
    if one.count > 1 or not one.files:
        parts.append(f"Count={sum(record.count for record in records)}")
    if one.cores:
        parts.append(f"Cores={one.cores}")
    if one.links:
        parts.append(f"Links={one.links}")
    return " ".join(parts)
