"""A shape as a reader uses it: its references followed once, for all hosts that have it. Pure."""

from __future__ import annotations

from msgspec import Struct

from xce_nodeagent.upstream import packing
from xce_nodeagent.upstream.shape import Shape, place

MOST_ROWS = 1 << 14
MOST_OVERLAPS = 1 << 18
"""Instances of a host, and pairs of them that are of the same silicon: a hundred times as many as
the largest host has that is known."""


class Form(Struct, frozen=True):
    """A shape, and of each row its type, its parent's place, and the places of what it overlaps."""

    shape: Shape
    types: tuple[str, ...]
    parents: tuple[int | None, ...]
    overlaps: tuple[tuple[int, ...], ...]
    cut: frozenset[int]
    """The places of cards that are cut into slices: they are no `gpu` for a count."""
    divisible: frozenset[str]


def form_of(shape: Shape) -> Form:
    """Follow a shape's references. Raise packing.Unreadable for one to nothing, or too many."""
    count = len(shape.rows)
    pairs = sum(len(row.overlaps) for row in shape.rows)
    if count > MOST_ROWS or pairs > MOST_OVERLAPS:
        raise packing.Unreadable(
            f"{count} instances that overlap {pairs} times; at most {MOST_ROWS} and"
            f" {MOST_OVERLAPS} are read"
        )
    types = tuple(row.type for row in shape.rows)
    parents = tuple(_place(row.parent, count) for row in shape.rows)
    return Form(
        shape=shape,
        types=types,
        parents=parents,
        overlaps=tuple(
            tuple(at for other in row.overlaps if (at := _place(other, count)) is not None)
            for row in shape.rows
        ),
        cut=frozenset(
            at
            for kind, at in zip(types, parents, strict=True)
            if kind == "mig" and at is not None and types[at] == "gpu"
        ),
        divisible=frozenset(kind.name for kind in shape.types if kind.divisible),
    )


def _place(reference: str | None, count: int) -> int | None:
    """Give the place that is referred to; None for what is no instance of this host."""
    at = None if reference is None else place(reference)
    if at is not None and at >= count:
        raise packing.Unreadable(f"a reference to instance {at} of {count}")
    return at
