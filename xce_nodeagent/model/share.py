"""Shares of GPUs under CUDA MPS, as the configuration declares them.

MPS lets processes of several jobs use one GPU at a time; each is limited to a part of its threads
and its memory (CUDA MPS documentation, "Client Early Termination" and what is said of
CUDA_MPS_ACTIVE_THREAD_PERCENTAGE and CUDA_MPS_PINNED_DEVICE_MEM_LIMIT). The limits are kept by
CUDA in the job itself: a fence keeps others from the card, not the job from more than its share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from msgspec import Struct, structs

from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.resource import MPS
from xce_nodeagent.model.setting import Fault, Faults

MOST = 48
"""Clients that one GPU can have (Volta to Hopper)."""

_EXPECTED = "expected percentages, such as [50, 25, 25], or into how many equal shares, 1 to 48"
_INHERITED = frozenset(one.name for one in MPS.attributes)


class MpsConfig(Struct, frozen=True, kw_only=True):
    """`[mps]`: which cards are shared, and where their control daemon listens.

    `shares` has the percentages of a card's shares by its UUID, its PCI address, a pattern for its
    model, or `all`; the first of these that fits a card counts, in this order.
    """

    pipe_directory: str = "/run/nvidia-mps"
    shares: dict[str, tuple[int, ...]] = {}


def table(value: Any) -> dict[str, tuple[int, ...]]:
    """Take `[mps.shares]`; raise Fault, or Faults for all that is wrong."""
    if not isinstance(value, dict):
        raise Fault("expected a table, such as { '*H100*' = [50, 25, 25] }")
    found: dict[str, tuple[int, ...]] = {}
    faults: list[str] = []
    for cards, told in value.items():
        try:
            found[cards] = _percents(told)
        except Fault as fault:
            faults.append(f"{cards!r} = {told!r}: {fault}")
        if not cards or not cards.isprintable():
            faults.append(f"{cards!r}: expected a UUID, a PCI address, a pattern, or 'all'")
    if faults:
        raise Faults(faults)
    return found


def _percents(told: Any) -> tuple[int, ...]:
    if type(told) is int and 1 <= told <= MOST:
        return (100 // told,) * told
    if not isinstance(told, list) or not 1 <= len(told) <= MOST:
        raise Fault(_EXPECTED)
    if not all(type(percent) is int and 1 <= percent <= 100 for percent in told):
        raise Fault(f"{_EXPECTED}; each 1 to 100")
    if sum(told) > 100:
        raise Fault(f"{sum(told)} % in all; a card has 100")
    return tuple(told)


def divided(
    instances: Sequence[Instance], config: MpsConfig, listens: Callable[[str], bool]
) -> tuple[Instance, ...]:
    """Give the instances, each shared card with its shares behind it; both sides name the overlap.

    Shares of one card do not exclude each other; each excludes the card and its MIG slices.
    A card that is cut into slices has no shares: a process under MPS sees one slice, which would
    need a control daemon of its own. `listens` says whether a control daemon does, in a folder.
    """
    if not config.shares:
        return tuple(instances)
    cut = _cut(instances)
    shares = {
        one.id: tuple(_shares(one, config, listens))
        for one in instances
        if one.type == "gpu" and one.id not in cut
    }
    found: list[Instance] = []
    for one in instances:
        own = shares.get(one.id if one.type == "gpu" else one.parent or "", ())
        overlaps = sorted({*one.overlaps, *(share.id for share in own)})
        found.append(structs.replace(one, overlaps=tuple(overlaps)))
        if one.type == "gpu":
            found += own
    return tuple(found)


def without(instances: Sequence[Instance], config: MpsConfig) -> str:
    """Say which cards have no shares though the configuration means them, and what to do.

    Whoever writes `all` means those that can have some.
    """
    shares = {name: told for name, told in config.shares.items() if name != "all"}
    cut = _cut(instances) if shares else frozenset()
    cards = [one.id for one in instances if one.id in cut and percents(one, shares)]
    if not cards:
        return ""
    return (
        f"[mps.shares] means {', '.join(cards)}, cut into MIG slices, so there are no shares:"
        " take it out there, or make the card whole again (`nvidia-smi -mig 0`)"
    )


def _cut(instances: Sequence[Instance]) -> frozenset[str]:
    return frozenset(one.parent for one in instances if one.type == "mig" and one.parent)


def percents(card: Instance, shares: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Give the percentages of a card's shares; nothing where it is not shared."""
    for name in (card.id, card.text("uuid"), card.text("pci_address")):
        if name in shares:
            return shares[name]
    model = card.text("model")
    for pattern, told in shares.items():
        if pattern != "all" and fnmatchcase(model, pattern):
            return told
    return shares.get("all", ())


def is_of(wanted: str, card: str) -> bool:
    """Say whether an id is that of a share of a card, which may have none any more."""
    return wanted.startswith(_id(card))


def _id(card: str) -> str:
    return f"mps-{card}-"


def _shares(
    card: Instance, config: MpsConfig, listens: Callable[[str], bool]
) -> Iterator[Instance]:
    told = percents(card, config.shares)
    where = config.pipe_directory
    reason = card.reason
    if not reason and told and not listens(where):
        reason = (
            f"no MPS control daemon listens in {where}:"
            f" `CUDA_MPS_PIPE_DIRECTORY={where} nvidia-cuda-mps-control -d` starts one"
        )
    for number, percent in enumerate(told):
        attributes = {key: value for key, value in card.attributes.items() if key in _INHERITED}
        for key in ("memory_bytes", "multiprocessors"):
            if key in attributes:
                attributes[key] = card.number(key) * percent // 100
        attributes["mps_percent"] = percent
        attributes["mps_pipe_directory"] = where
        yield Instance(
            id=f"{_id(card.id)}{number}",
            type=MPS.name,
            provider=card.provider,
            parent=card.id,
            overlaps=tuple(sorted({card.id, *card.overlaps})),
            healthy=not reason,
            reason=reason,
            attributes=attributes,
            devices=card.devices,
        )
