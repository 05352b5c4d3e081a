"""MIG: names and numbers by arithmetic, shared GPU instances, and layouts that change."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvml.stand import Library, found

from xce_nodeagent.discovery import scan
from xce_nodeagent.host import Host
from xce_nodeagent.model import mig
from xce_nodeagent.model.inventory import Inventory, advance
from xce_nodeagent.providers.nvidia import PROVIDER

MACHINES = Path(__file__).parents[3] / "shared/machines"

CARD = (
    "gpu bus=00000000:1B:00.0 uuid=GPU-a name=NVIDIA_H100_80GB_HBM3 minor=3 mig=1"
    " memory=85520809984 cc=9.0"
)
# As on a real H100: 3g.40gb has 40448 MiB and 60 multiprocessors.
SHARED = (
    "gi id=2 index=2 profile=9 slices=3 sm=60 mib=40448 place=0,4",
    "mig uuid=MIG-1 gi=2 ci=0 memory=42412802048 sm=20 gslices=3 cslices=1 place=0,1",
    "mig uuid=MIG-2 gi=2 ci=1 memory=42412802048 sm=40 gslices=3 cslices=2 place=1,2",
)
ALONE = (
    "gi id=9 index=0 profile=19 slices=1 sm=16 mib=9984 place=6,1",
    "mig uuid=MIG-3 gi=9 ci=0 memory=10468982784 sm=16 gslices=1 cslices=1 place=0,1",
)
EMPTY = "gi id=11 index=0 profile=19 slices=1 sm=16 mib=9984 place=7,1"

needs_library = pytest.mark.needs("cc")


def text(*lines: str) -> str:
    return "driver 550.54.15\n" + "".join(f"{line}\n" for line in lines)


def look(library: Library, root: Path, *lines: str, before: Inventory | None = None) -> Inventory:
    answer = library.ask(text(*lines))
    return scan(Host(root, probe=lambda _: answer), (PROVIDER,), before)


@needs_library
def test_slices_of_one_gpu_instance_share_its_memory_and_exclude_only_the_whole(
    library: Library, root: Path
) -> None:
    seen = look(library, root, CARD, *SHARED, *ALONE)
    by_id = seen.by_id()
    whole = by_id["gi-GPU-a-2"]
    assert [one.type for one in seen.instances] == ["gpu", "mig", "mig", "mig", "gi"]
    assert by_id["GPU-a"].overlaps == ("MIG-1", "MIG-2", "MIG-3", "gi-GPU-a-2")
    assert by_id["MIG-1"].overlaps == by_id["MIG-2"].overlaps == ("GPU-a", "gi-GPU-a-2")
    assert by_id["MIG-3"].overlaps == ("GPU-a",)
    assert (whole.parent, whole.overlaps) == ("GPU-a", ("GPU-a", "MIG-1", "MIG-2"))
    assert (whole.healthy, bool(whole.reserved)) == (True, True)
    assert {one.id: one.attributes["mig_profile"] for one in seen.instances[1:]} == {
        "MIG-1": "1c.3g.40gb", "MIG-2": "2c.3g.40gb", "MIG-3": "1g.10gb", "gi-GPU-a-2": "3g.40gb",
    }  # fmt: skip
    assert {one.id: one.attributes["multiprocessors"] for one in seen.instances[1:]} == {
        "MIG-1": 20, "MIG-2": 40, "MIG-3": 16, "gi-GPU-a-2": 60,
    }  # fmt: skip
    assert whole.attributes["placement"] == by_id["MIG-1"].attributes["placement"] == [0, 4]
    assert by_id["MIG-2"].attributes["compute_placement"] == [1, 2]
    # 3 + 135 * 3 + 9 * 2: each has the capability of the GPU instance and its own.
    assert [n.minor for n in by_id["MIG-1"].devices] == [3, 426, 427]
    assert [n.minor for n in by_id["MIG-2"].devices] == [3, 426, 428]
    assert [n.minor for n in whole.devices] == [3, 426, 427, 428]
    # Both can use all of that memory, and it is there once.
    assert by_id["MIG-1"].attributes["memory_bytes"] == 40448 << 20
    assert by_id["MIG-1"].attributes["memory_shared"] is True
    assert "memory_shared" not in by_id["MIG-3"].attributes
    once = (40448 + 9984) << 20
    assert seen.counters["mig_memory_bytes"] == {"total": once, "healthy": once}
    assert seen.counters["gpu_memory_bytes"]["total"] == 85520809984
    assert seen.counters["mig"]["total"] == 3
    assert seen.problems == ()


@needs_library
def test_without_the_privilege_to_see_gpu_instances_they_are_known_by_their_slices(
    library: Library, root: Path
) -> None:
    seen = look(library, root, f"{CARD} private=1", *SHARED, *ALONE, EMPTY).by_id()
    whole = seen["gi-GPU-a-2"]
    assert whole.attributes["mig_profile"] == "3g.40gb"
    assert whole.attributes["memory_bytes"] == 40448 << 20
    assert "placement" not in whole.attributes
    assert "placement" not in seen["MIG-1"].attributes
    assert "gi-GPU-a-11" not in seen


@needs_library
def test_a_gpu_instance_without_a_slice_is_shown_and_not_given(
    library: Library, root: Path
) -> None:
    seen = look(library, root, CARD, *ALONE, EMPTY).by_id()
    empty = seen["gi-GPU-a-11"]
    assert empty.reserved
    assert empty.attributes["placement"] == [7, 1]
    assert seen["GPU-a"].overlaps == ("MIG-3", "gi-GPU-a-11")


@needs_library
def test_a_layout_that_an_admin_changed_is_seen_at_the_next_look(
    library: Library, root: Path
) -> None:
    first, seen, number = advance(look(library, root, CARD, *ALONE), {}, 0)
    assert [one.id for one in first.instances] == ["GPU-a", "MIG-3"]
    again, seen, number = advance(look(library, root, CARD, *ALONE, before=first), seen, number)
    assert again.generation == first.generation
    other, seen, number = advance(look(library, root, CARD, *SHARED, before=first), seen, number)
    assert [one.id for one in other.instances] == ["GPU-a", "MIG-1", "MIG-2", "gi-GPU-a-2"]
    assert other.generation != first.generation
    off = look(library, root, CARD.replace("mig=1", "mig=0"), before=other)
    assert [(one.id, one.healthy, one.overlaps) for one in off.instances] == [("GPU-a", True, ())]


@needs_library
def test_slices_that_cannot_be_told_apart_are_not_given(library: Library, root: Path) -> None:
    twin = ALONE[1].replace("gi=9", "gi=10")
    seen = look(library, root, CARD, ALONE[1], twin, SHARED[1].replace("MIG-1", "GPU-a"))
    cards = {one.id: one for one in seen.instances}
    assert cards["GPU-a"].healthy
    slices = [one for one in seen.instances if one.type == "mig"]
    assert len(slices) == 3
    assert not any(one.healthy for one in slices)
    assert all("too" in one.reason for one in slices)
    same = [ALONE[1], ALONE[1].replace("MIG-3", "MIG-4")]
    seen = look(library, root, CARD, *same, *SHARED)
    assert {one.id: one.healthy for one in seen.instances if one.type == "mig"} == {
        "MIG-1": True, "MIG-2": True, "MIG-3": False, "MIG-4": False,
    }  # fmt: skip


@needs_library
def test_the_driver_s_own_list_of_numbers_wins_over_arithmetic(
    library: Library, root: Path
) -> None:
    path = root / "proc/driver/nvidia-caps/mig-minors"
    path.parent.mkdir(parents=True)
    path.write_text("config 1\nmonitor 2\ngpu3/gi9/access 700\ngpu3/gi9/ci0/access 701\n")
    seen = look(library, root, CARD, *ALONE, *SHARED).by_id()
    assert [n.minor for n in seen["MIG-3"].devices] == [3, 700, 701]
    # What the list has not, is not there.
    assert not seen["MIG-1"].healthy
    assert "mig-minors" in seen["MIG-1"].reason


def test_numbers_are_those_of_the_driver_s_list() -> None:
    assert mig.access(0, 0) == 3
    assert mig.access(3, 9, 0) == 3 + 135 * 3 + 9 * 9 + 1


@pytest.mark.needs("recorded")
def test_every_number_of_a_recorded_list_is_computed(compared) -> None:
    lines = (MACHINES / "mig/mig-minors.8gpu.generated").read_text("utf-8").splitlines()
    count = 0
    for line in lines:
        if match := re.fullmatch(r"gpu(\d+)/gi(\d+)(?:/ci(\d+))?/access (\d+)", line):
            gpu, gi, ci, minor = match.groups()
            assert mig.access(int(gpu), int(gi), None if ci is None else int(ci)) == int(minor)
            count += 1
    compared("mig-minors", count)
    assert count == 8 * 15 * 9


PLACES = st.tuples(st.integers(-2, 40), st.integers(-2, 17), st.integers(-2, 10))


@given(PLACES, PLACES)
def test_no_two_capabilities_have_one_number(
    one: tuple[int, int, int], other: tuple[int, int, int]
) -> None:
    first, second = mig.access(*one), mig.access(*other)
    if first is not None and second is not None:
        assert (first == second) == (one == other)
        assert first not in (mig.CONFIG, mig.MONITOR, mig.access(*other[:2]))


# MIG User Guide, "Supported MIG Profiles": the names of each product's profiles.
NAMES = {
    "a100_40gb": "1g.5gb 1g.5gb+me 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb",
    "a100_80gb": "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
    "h100_80gb": "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
    "h200_141gb": "1g.18gb 1g.18gb+me 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb",
    "b200_180gb": "1g.23gb 1g.23gb+me 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb",
    "a30_24gb": "1g.6gb 1g.6gb+me 2g.12gb 4g.24gb",
}


@pytest.mark.needs("recorded")
def test_the_profiles_of_the_vendor_s_tables_have_the_names_of_its_guide() -> None:
    tables = json.loads((MACHINES / "mig/go-nvml-mig-tables.json").read_text("utf-8"))
    named = 0
    for family in tables.values():
        for config in family["configs"].values():
            model = config["MIGProfiles"].removesuffix("_MIGProfiles")
            table = family["gpu_instance_profiles"].get(f"{model}_GpuInstanceProfiles")
            if table is None or model not in NAMES:
                continue
            got = {
                mig.profile(
                    compute_slices=row["SliceCount"],
                    gpu_slices=row["SliceCount"],
                    memory=row["MemorySizeMB"] << 20,
                    card_memory=int(config["MemoryMB"]) << 20,
                    media=row["OfaCount"] > 0,
                )
                for row in table.values()
            }
            assert got <= set(NAMES[model].split()), (model, got)
            named += len(got)
    print(f"\n{named} names of profiles match")  # noqa: T201  # part of the result
    assert named > 20


@pytest.mark.parametrize("absent", ["compute_slices", "gpu_slices", "memory", "card_memory"])
def test_a_profile_that_is_not_known_has_no_name(absent: str) -> None:
    whole = {"compute_slices": 1, "gpu_slices": 3, "memory": 40448, "card_memory": 81559}
    assert mig.profile(**{key: value << 20 for key, value in whole.items()}) != ""
    assert mig.profile(**(whole | {absent: 0})) == ""


def test_control_characters_in_a_slice_s_name_reach_nobody(root: Path) -> None:
    """The prober may be somebody else's."""
    one = {"uuid": "MIG-1", "name": "X MIG 1g\x1b[31m.10gb", "gpu_instance": 1}
    card = {"pci_address": "0000:1b:00.0", "uuid": "GPU-a", "minor": 0, "mig_mode": 1, "mig": [one]}
    instances = found(root, ("found", "", {"devices": [card]})).instances
    assert all(str(v).isprintable() for i in instances for v in i.attributes.values())
