from __future__ import annotations

import re

from export.conftest import gpu, inventory
from hypothesis import given
from hypothesis import strategies as st

from xce_nodeagent.export.lsf import elim, indices, shared
from xce_nodeagent.model.instance import Holder
from xce_nodeagent.model.inventory import Inventory


def _read(line: str) -> dict[str, int]:
    """Read a line as LSF's documentation describes it."""
    count, *rest = line.rstrip("\n").split(" ")
    assert line.count("\n") == 1
    assert len(rest) == 2 * int(count)
    names, values = rest[::2], rest[1::2]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z][a-z0-9_]{0,38}", name) for name in names)
    return dict(zip(names, map(int, values), strict=True))


def test_a_line_counts_what_there_is_and_what_is_free() -> None:
    held = gpu(0, held_by=(Holder("1", ""),), overlaps=("GPU-9",))
    sick = gpu(2, healthy=False)
    told = _read(elim(inventory(held, gpu(1), sick)))
    assert told == {
        "xce_gpu_total": 2, "xce_gpu_free": 1, "xce_gpu_unhealthy": 1,
        "xce_nic_total": 0, "xce_nic_free": 0, "xce_nic_unhealthy": 0,
    }  # fmt: skip


def test_who_overlaps_what_is_held_is_not_free() -> None:
    port = gpu(0, type="nic", id="pf", overlaps=("vf0", "vf1"), held_by=(Holder("1", ""),))
    functions = [gpu(n, type="nic", id=f"vf{n}", overlaps=("pf",)) for n in range(2)]
    told = _read(elim(inventory(port, *functions)))
    assert (told["xce_nic_total"], told["xce_nic_free"]) == (2, 0)


def test_every_index_is_defined_as_a_dynamic_one() -> None:
    found = inventory(gpu(0), gpu(1, type="my scope!"))
    lines = shared(indices(found), 60).splitlines()
    assert (lines[0], lines[-1]) == ("Begin Resource", "End Resource")
    names = [line.split()[0] for line in lines[2:-1]]
    assert names == list(_read(elim(found)))
    assert "xce_my_scope_free Numeric 60 N (my_scope instances that no job holds)" in lines


@given(st.lists(st.text(), max_size=5))
def test_any_type_makes_a_name(kinds: list[str]) -> None:
    found: Inventory = inventory(*(gpu(n, type=kind) for n, kind in enumerate(kinds)))
    assert _read(elim(found)).keys() == {one.name for one in indices(found)}
