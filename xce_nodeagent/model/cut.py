"""A card that is cut into MIG slices: the instances that the library's facts come to.

A slice (type `mig`) is a compute instance. A GPU instance that one slice fills is that slice; one
that several share, or that is not filled, is an instance of its own (type `gi`): it says what the
slices share, and it is not given to a job, because only slices can be used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from xce_nodeagent.model import mig
from xce_nodeagent.model.instance import AttributeValue, DeviceNode, Instance
from xce_nodeagent.model.resource import GPU_INSTANCE, MIG

Facts = Mapping[str, Any]
"""What `host/fact.py` lets through."""

Capabilities = Callable[..., tuple[DeviceNode, ...]]
"""Gives the nodes for a card's minor, a GPU instance and compute instances in it; () if unknown."""

_UUID = "its UUID"

# There are no NVLinks in MIG mode (MIG User Guide).
_INHERITED = frozenset(one.name for one in MIG.attributes) - {
    "uuid",
    "memory_bytes",
    "multiprocessors",
    "nvlink_domain",
}


class Cut(Struct, frozen=True, kw_only=True):
    """A card as far as its slices need it.

    `lost` says why it cannot be asked, `fault` what else is wrong with all of its slices.
    """

    card: str
    minor: int | None
    facts: Facts
    attributes: Mapping[str, AttributeValue]
    devices: tuple[DeviceNode, ...]
    lost: str = ""
    fault: str = ""

    def instances(self, capabilities: Capabilities, taken: set[str]) -> Iterator[Instance]:
        """Give the slices in the library's order, then the GPU instances.

        `taken` are the ids that others have; it grows. Of two slices with one UUID, or one place,
        none is sound.
        """
        told = [one for one in self.facts.get("mig", ()) if "uuid" in one or not self.lost]
        groups: dict[int, list[Facts]] = {}
        for one in self.facts.get("gpu_instances", ()):
            groups[one["gpu_instance"]] = []
        for one in told:
            groups.setdefault(one.get("gpu_instance", -1), []).append(one)
        uuids = Counter(one.get("uuid") for one in told)
        places = Counter(_place(one) for one in told)
        made: dict[int, list[str]] = {}
        for one in told:
            group = one.get("gpu_instance", -1)
            shared = len(groups[group]) > 1 and group >= 0
            double = ""
            if uuids[one.get("uuid")] > 1 or one.get("uuid") in taken:
                double = f"{_UUID}, {one.get('uuid')}"
            elif _place(one) is not None and places[_place(one)] > 1:
                double = "its GPU instance and compute instance"
            part = group if shared or _is_part(one) else -1
            instance = self._slice(one, capabilities, double=double, shared=shared, part=part)
            made.setdefault(group, []).append(instance.id)
            yield instance
            taken.add(instance.id)
        for group, members in sorted(groups.items()):
            if group >= 0 and not (len(members) == 1 and not _is_part(members[0])):
                yield self._gpu_instance(group, members, made.get(group, []), capabilities)

    def _common(self) -> dict[str, AttributeValue]:
        return {key: value for key, value in self.attributes.items() if key in _INHERITED}

    def _slice(
        self, one: Facts, capabilities: Capabilities, *, double: str, shared: bool, part: int
    ) -> Instance:
        """Make a slice. It is used through its card's node and the two capabilities of its own.

        `double` says what another slice has too; `part` is the GPU instance that it is a part of,
        -1 where it is all of it.
        """
        gpu_instance, compute_instance = one.get("gpu_instance"), one.get("compute_instance")
        attributes = self._common()
        copied = ("memory_bytes", "gpu_instance", "compute_instance", "multiprocessors")
        for key in (*copied, "placement"):
            if key in one:
                attributes[key] = one[key]
        if "uuid" in one and not double.startswith(_UUID):
            attributes["uuid"] = one["uuid"]
        if profile := self._profile(one):
            attributes["mig_profile"] = profile
        if shared:
            attributes["memory_shared"] = True
        if part >= 0 and "compute_placement" in one:
            attributes["compute_placement"] = one["compute_placement"]
        caps = capabilities(self.minor, gpu_instance, compute_instance)
        reason = self.lost
        if not reason and "uuid" not in one:
            reason = f"its UUID is not known: {one.get('missing', {}).get('uuid', 'no answer')}"
        elif not reason and double:
            reason = f"another slice has {double}, too"
        elif not reason and not caps:
            reason = "its capability nodes are not in /proc/driver/nvidia-caps/mig-minors"
        reason = reason or self.fault
        overlaps = (self.card,) if part < 0 else (self.card, self._id(part))
        named = f"mig-{self.card}-{gpu_instance}-{compute_instance}"
        return Instance(
            id=str(attributes.get("uuid", named)),
            type="mig",
            provider="nvidia",
            parent=self.card,
            overlaps=tuple(sorted(overlaps)),
            healthy=not reason,
            reason=reason,
            attributes=attributes,
            devices=self.devices + caps,
        )

    def _id(self, gpu_instance: int) -> str:
        return f"gi-{self.card}-{gpu_instance}"

    def _profile(self, one: Facts) -> str:
        """Name a slice's profile: the library has it behind the card's name, in its own words."""
        told = str(one.get("name", "")).partition(" MIG ")[2]
        return told or mig.profile(
            compute_slices=one.get("compute_slices", 0),
            gpu_slices=one.get("gpu_slices", 0),
            memory=one.get("memory_bytes", 0),
            card_memory=self.facts.get("memory_bytes", 0),
            media=one.get("ofa_engines", 0) > 0,
        )

    def _gpu_instance(
        self,
        number: int,
        members: Sequence[Facts],
        ids: Sequence[str],
        capabilities: Capabilities,
    ) -> Instance:
        """Make a GPU instance that several slices share, or that has none."""
        told: dict[str, Any] = {}
        for one in (*members, *self.facts.get("gpu_instances", ())):
            if one.get("gpu_instance") == number:
                told |= one
        attributes = self._common() | {"gpu_instance": number}
        for key in ("memory_bytes", "placement"):
            if key in told:
                attributes[key] = told[key]
        for one in self.facts.get("gpu_instances", ()):
            if one["gpu_instance"] == number and "multiprocessors" in one:
                attributes["multiprocessors"] = one["multiprocessors"]
        whole = {**told, "name": "", "compute_slices": told.get("gpu_slices", 0)}
        if profile := self._profile(whole):
            attributes["mig_profile"] = profile
        computing = [one.get("compute_instance") for one in members]
        reason = self.lost or self.fault
        return Instance(
            id=self._id(number),
            type=GPU_INSTANCE.name,
            provider="nvidia",
            parent=self.card,
            overlaps=tuple(sorted((self.card, *ids))),
            healthy=not reason,
            reason=reason,
            reserved="a job has the slices in it" if ids else "there is no slice in it",
            attributes=attributes,
            devices=self.devices + capabilities(self.minor, number, *computing),
        )


def _place(one: Facts) -> tuple[int, int] | None:
    """Give a slice's GPU instance and compute instance; None where one is not told."""
    if "gpu_instance" in one and "compute_instance" in one:
        return one["gpu_instance"], one["compute_instance"]
    return None


def _is_part(one: Facts) -> bool:
    """Say whether a slice is only a part of its GPU instance."""
    if "compute_slices" in one and "gpu_slices" in one:
        return bool(one["compute_slices"] < one["gpu_slices"])
    return "c." in str(one.get("name", "")).partition(" MIG ")[2]
