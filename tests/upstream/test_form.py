"""A shape's references, followed once."""

from __future__ import annotations

import pytest

from xce_nodeagent.upstream.form import form_of
from xce_nodeagent.upstream.packing import Unreadable
from xce_nodeagent.upstream.shape import Row, Shape, place


@pytest.mark.parametrize(
    ("text", "at"),
    [("#3", 3), ("#0", 0), ("#03", 3), ("3", None), ("#", None), ("##3", None), ("#-1", None),
     ("#²", None), ("#٣", None), ("GPU-#3", None), ("", None), ("#" + "9" * 5000, 10**9)],
)  # fmt: skip
def test_what_refers_to_an_instance(text: str, at: int | None) -> None:
    assert place(text) == at


def row(kind: str, *overlaps: str, parent: str | None = None) -> Row:
    return Row(type=kind, provider="p", parent=parent, overlaps=overlaps)


def test_cards_that_are_cut_are_known_by_their_slices() -> None:
    form = form_of(
        Shape(
            rows=(
                row("gpu", "#1"), row("mig", "#0", parent="#0"), row("gpu", "pci-7"),
                row("mps", parent="#2"), row("gi", parent="#0"), row("mig", parent="#4"),
            )
        )
    )  # fmt: skip
    assert form.cut == {0}
    assert form.parents == (None, 0, None, 2, 0, 4)
    assert form.overlaps == ((1,), (0,), (), (), (), ())


@pytest.mark.parametrize("wrong", [row("gpu", "#2"), row("mps", parent="#99999999999")])
def test_a_reference_to_nothing_is_unreadable(wrong: Row) -> None:
    with pytest.raises(Unreadable, match="a reference to instance"):
        form_of(Shape(rows=(row("gpu"), wrong)))
