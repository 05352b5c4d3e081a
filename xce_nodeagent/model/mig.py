"""MIG arithmetic: the numbers of capability nodes, the names of profiles, memory counted once.

A card in MIG mode is cut into GPU instances, which have memory of their own, and these into
compute instances, which share it. What CUDA calls a MIG device, and this project a slice (type
`mig`), is a compute instance.
"""

from __future__ import annotations

from collections.abc import Iterable

from xce_nodeagent.model.instance import Instance

CONFIG, MONITOR = 1, 2
"""Minors of the capabilities to change and to watch every layout."""

_FIRST = 3
_GPU_INSTANCES, _COMPUTE_INSTANCES = 15, 8
_GIB = 1 << 30
_EIGHTHS = 8  # a card's memory is cut into eight slices


def access(gpu: int, gpu_instance: int, compute_instance: int | None = None) -> int | None:
    """Give the minor of the capability to use a GPU instance, or a compute instance in it.

    `gpu` is the minor of the card's own node. None for ids beyond those that have numbers. The
    kernel driver (open-gpu-kernel-modules, nv-caps.c) deals the numbers out in a fixed order; it
    writes them to /proc/driver/nvidia-caps/mig-minors, which wins where it is there.
    """
    if gpu < 0 or not 0 <= gpu_instance < _GPU_INSTANCES:
        return None
    each = 1 + _COMPUTE_INSTANCES
    whole = _FIRST + each * (_GPU_INSTANCES * gpu + gpu_instance)
    if compute_instance is None:
        return whole
    return whole + 1 + compute_instance if 0 <= compute_instance < _COMPUTE_INSTANCES else None


def profile(
    *, compute_slices: int, gpu_slices: int, memory: int, card_memory: int, media: bool = False
) -> str:
    """Name a profile as NVIDIA does: `3g.40gb`; `1c.3g.40gb` of a part; `+me` with media engines.

    The name's memory is no measure: it is so many eighths of the card's memory in whole GiB (a
    1g.10gb has 9.75 GiB). Bytes are given. `media` says that it has the engine for optical flow.
    Empty where a number is missing (0).
    """
    if min(compute_slices, gpu_slices, memory, card_memory) <= 0:
        return ""
    eighths = max(1, round(memory * _EIGHTHS / card_memory))
    size = (eighths * -(-card_memory // _GIB) + _EIGHTHS // 2) // _EIGHTHS  # halves go up
    part = f"{compute_slices}c." if compute_slices < gpu_slices else ""
    # Of the profiles with one slice, one alone has them; the large ones have them anyway.
    return f"{part}{gpu_slices}g.{size}gb{'+me' if media and gpu_slices == 1 else ''}"


def memory(instances: Iterable[Instance]) -> dict[str, int]:
    """Give the bytes of device memory of each type's instances, each piece of memory once.

    Slices in one GPU instance have the same memory. What of it a GPU has too is told of both
    types: they are ways to give out one thing.
    """
    pieces: dict[tuple[str, str, int], int] = {}
    totals: dict[str, int] = {}
    for one in instances:
        amount = one.number("memory_bytes", 0)
        if amount <= 0:
            continue
        if one.attributes.get("memory_shared"):
            piece = (one.type, one.parent or one.id, one.number("gpu_instance"))
            pieces[piece] = max(amount, pieces.get(piece, 0))
        else:
            totals[one.type] = totals.get(one.type, 0) + amount
    for (kind, _, _), amount in pieces.items():
        totals[kind] = totals.get(kind, 0) + amount
    return totals
