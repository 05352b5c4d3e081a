"""What is held under an id that is gone: which instances that are known now are of its silicon."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec import structs

from xce_nodeagent.binding.book import Book
from xce_nodeagent.model.binding import Ask, Bound, Committed, Released, ReleaseIntended, Withheld
from xce_nodeagent.model.instance import DeviceNode, Instance
from xce_nodeagent.model.plan import AllowDevice, Plan
from xce_nodeagent.model.wire import LeftOver

CONTROL = (DeviceNode("/dev/nvidiactl", "c", 195, 255), DeviceNode("/dev/nvidia-uvm", "c", 237, 0))
KEY = ("1", "a")


def node(card: int) -> DeviceNode:
    return DeviceNode(f"/dev/nvidia{card}", "c", 195, card)


def card(number: int, *parts: str) -> Instance:
    return Instance(id=f"GPU-{number}", type="gpu", provider="nvidia", overlaps=parts,
                    devices=(node(number),))  # fmt: skip


def mig(name: str, number: int, *minors: int) -> Instance:
    caps = tuple(DeviceNode(f"/dev/nvidia-caps/nvidia-cap{m}", "c", 234, m) for m in minors)
    return Instance(id=name, type="mig", provider="nvidia", parent=f"GPU-{number}",
                    overlaps=(f"GPU-{number}",), devices=(node(number), *caps))  # fmt: skip


def mps(number: int, share: int, *slices: str) -> Instance:
    return Instance(id=f"mps-GPU-{number}-{share}", type="mps", provider="nvidia",
                    parent=f"GPU-{number}", overlaps=(f"GPU-{number}", *slices),
                    devices=(node(number),))  # fmt: skip


DONGLE = Instance(id="dongle", type="scope", provider="declared", devices=(node(0),))
CUT = (card(0, "MIG-1", "MIG-2"), mig("MIG-1", 0, 12, 13), mig("MIG-2", 0, 21, 22))
SHARED = (card(0, "mps-GPU-0-0", "mps-GPU-0-1"), mps(0, 0), mps(0, 1))
OTHER = (card(1, "MIG-8", "MIG-9"), mig("MIG-8", 1, 147, 148), mig("MIG-9", 1, 156, 157))


def holding(*held: Instance) -> Book:
    book = Book()
    nodes = dict.fromkeys((*(n for one in held for n in one.devices), *CONTROL))
    excluded = {other for one in held for other in one.overlaps} - {one.id for one in held}
    event = Committed(
        job=KEY[0], attempt=KEY[1], ask=Ask(), instances=tuple(one.id for one in held),
        excluded=tuple(sorted(excluded)), plan=Plan(tuple(map(AllowDevice, nodes))),
        generation="b:1", enforcement="cgroup2",
    )  # fmt: skip
    book.apply(event, 1.0)
    book.apply(Bound(job=KEY[0], attempt=KEY[1]), 1.0)
    return book


def stranded(book: Book, now: Iterable[Instance]) -> set[str]:
    found = book.stranded({one.id: one for one in now})
    assert set(found.values()) <= {KEY}
    return set(found)


SLICE = mig("MIG-3", 0, 12, 13)  # another one in the same place: it has the same capabilities
CASES = {
    "nothing is gone": ((CUT[1],), CUT, set()),
    "a node was declared, and a whole card has it": ((DONGLE,), (card(0), *OTHER), {"GPU-0"}),
    "and that card is cut": ((DONGLE,), (*CUT, *OTHER), {"GPU-0", "MIG-1", "MIG-2"}),
    "or shared": ((DONGLE,), (*SHARED, *OTHER), {"GPU-0", "mps-GPU-0-0", "mps-GPU-0-1"}),
    "another card has the node of one that is gone":
        ((card(1),), (structs.replace(card(1, "MIG-8"), id="GPU-7"),
                      structs.replace(mig("MIG-8", 1, 147), parent="GPU-7")), {"GPU-7", "MIG-8"}),
    "a slice that is gone leaves those beside it": ((CUT[1],), (CUT[0], CUT[2]), {"GPU-0"}),
    "but not one in its place": ((CUT[1],), (*CUT[::2], SLICE), {"GPU-0", "MIG-3"}),
    "nor the shares of its card": ((CUT[1],), SHARED, {"GPU-0", "mps-GPU-0-0", "mps-GPU-0-1"}),
    "a share that is gone leaves those beside it": ((SHARED[2],), SHARED[:2], {"GPU-0"}),
    "and no slices": ((SHARED[2],), CUT, {"GPU-0", "MIG-1", "MIG-2"}),
    "a job that has slices of its own": ((CUT[1], CUT[2]), (CUT[0], CUT[2], *OTHER), set()),
    "parts of two cards": ((CUT[1], OTHER[1]), (CUT[0], CUT[2], OTHER[0], OTHER[2]),
                           {"GPU-0", "GPU-1"}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_shares_silicon_with_what_is_gone_is_nobody_else_s(case: str) -> None:
    held, now, expected = CASES[case]
    assert stranded(holding(*held), now) == expected


LEFT = LeftOver(pid=7, uid=1, comm="x", what="/dev/nvidia0")


@pytest.mark.parametrize(("held", "now", "expected"),
    [((SHARED[2],), SHARED[:2], {"GPU-0"}), ((CUT[1],), (CUT[0], CUT[2]), {"GPU-0"}),
     ((CUT[1],), (*CUT[::2], SLICE), {"GPU-0", "MIG-3"}),
     ((DONGLE,), CUT, {"GPU-0", "MIG-1", "MIG-2"})])  # fmt: skip
def test_it_is_so_after_a_release_that_left_somebody(held, now, expected) -> None:
    book = holding(*held)
    before = book.live[KEY]
    job, attempt = KEY
    book.apply(ReleaseIntended(job=job, attempt=attempt), 2.0)
    quarantined = Released(job=job, attempt=attempt, left=(LEFT,), quarantined=before.instances)
    book.apply(quarantined, 2.0)
    assert stranded(book, now) == expected
    book = Book()
    nodes = [n for one in held for n in one.devices]
    withheld = Withheld(
        job=job, attempt=attempt, instances=before.instances, excluded=before.excluded,
        plan=Plan(tuple(map(AllowDevice, nodes))), left=(LEFT,), generation="b:1",
        enforcement="cgroup2", since=1.0,
    )  # fmt: skip
    book.apply(withheld, 2.0)
    assert stranded(book, now) == expected
