"""Each call of the library refused, on one card or on all: nothing else suffers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nvml.stand import Library, found

from xce_nodeagent.host import nvlink, nvmig, nvml
from xce_nodeagent.model.instance import Instance

COMMON = (
    "memory=85520809984 cc=9.0 ecc=1 remap=0,0 power=700000 persistence=1 mode=0 cores=16896"
    " cpus=ff nodes=1 platform=3,1,0 fabric=3,0,7,00000000000000000000000000000001,1 serial=1"
)
LINKS = "nvlinks=switch:9:00000000:05:00.0;switch:9:00000000:06:00.0"
ONE = f"gpu bus=00000000:1B:00.0 uuid=GPU-one name=H100 minor=2 mig=0 module=1 {COMMON} {LINKS}"
TWO = f"gpu bus=00000000:43:00.0 uuid=GPU-two name=H100 minor=0 mig=0 module=2 {COMMON} {LINKS}"
CUT = f"gpu bus=00000000:5B:00.0 uuid=GPU-cut name=H100 minor=1 mig=1 module=3 {COMMON}"
SLICES = (
    "gi id=1 index=2 profile=9 slices=3 sm=60 mib=40448 place=4,4",
    "mig uuid=MIG-1 name=H100_MIG_3g.40gb gi=1 ci=0 memory=42412802048 sm=60 gslices=3 cslices=3",
    "gi id=9 index=0 profile=19 slices=1 sm=16 mib=9984 place=3,1",
    "mig uuid=MIG-2 name=H100_MIG_1g.10gb gi=9 ci=0 memory=10468982784 sm=16 gslices=1 cslices=1",
)

# As pynvml and as the library name them, where that differs.
NAMES = {
    "nvmlInit": "nvmlInitWithFlags",
    "nvmlDeviceGetCount": "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex": "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetPciInfo": "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetNvLinkRemotePciInfo": "nvmlDeviceGetNvLinkRemotePciInfo_v2",
    "nvmlComputeInstanceGetInfo": "nvmlComputeInstanceGetInfo_v2",
}
WHOLE = {
    "nvmlInit", "nvmlShutdown", "nvmlDeviceGetCount", "nvmlSystemGetDriverVersion",
    "nvmlSystemGetCudaDriverVersion_v2",
}  # fmt: skip
OF_SLICE = {
    "nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId", "nvmlDeviceGetAttributes_v2",
    "nvmlGpuInstanceGetInfo", "nvmlGpuInstanceGetComputeInstanceById", "nvmlComputeInstanceGetInfo",
}  # fmt: skip
OF_CUT = {
    "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetGpuInstanceProfileInfo", "nvmlDeviceGetGpuInstances",
    "nvmlDeviceGetGpuInstanceById",
}  # fmt: skip
ERRORS = (1, 2, 3, 4, 6, 7, 13, 15, 16, 25, 28, 999, 12345)


def called() -> set[str]:
    """Every function that the product calls, by what its doors say."""
    return {
        name
        for door in (nvml, nvlink, nvmig)
        for name in re.findall(r"nvml\.(nvml[A-Z]\w+)", Path(door.__file__).read_text("utf-8"))
    }


CALLS = sorted(called() - {"nvmlDeviceGetGpuFabricInfo"})
"""All but the one that only an old library is asked."""

ADDRESSES = ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetPciInfo")
ESSENTIAL = ("nvmlDeviceGetUUID", "nvmlDeviceGetMinorNumber", *ADDRESSES)
"""Without what these tell, a card cannot be given to anybody."""

OF_CARD = sorted(called() - WHOLE - OF_SLICE - OF_CUT - {"nvmlDeviceGetGpuFabricInfo"})

pytestmark = pytest.mark.needs("cc")


def text(*lines: str, before: str = "") -> str:
    return f"driver 550.54.15\ncuda 12040\n{before}" + "".join(f"{line}\n" for line in lines)


def by_id(root: Path, library: Library, data: str) -> dict[str, Instance]:
    answer = library.ask(data)
    assert answer[0] == "found", answer
    return {one.id: one for one in found(root, answer).instances}


@pytest.fixture(scope="module")
def whole() -> str:
    return text(ONE, TWO, CUT, *SLICES)


def test_every_function_is_in_the_lists_and_in_the_stand_in() -> None:
    source = (Path(__file__).parents[1] / "machines/nvml/nvml_stub.c").read_text("utf-8")
    has = set(re.findall(r"^(?:int|const char \*)\s*\*?(nvml\w+)\(", source, re.MULTILINE))
    assert {NAMES.get(name, name) for name in called()} <= has
    assert called() >= WHOLE | OF_SLICE | OF_CUT


def test_nothing_refused(library: Library, root: Path, whole: str) -> None:
    seen = by_id(root, library, whole)
    assert {name: one.reason for name, one in seen.items()} == dict.fromkeys(
        ("GPU-one", "GPU-two", "GPU-cut", "MIG-1", "MIG-2"), ""
    )
    one = seen["GPU-one"].attributes
    assert one["nvlink_domain"] == "00000000-0000-0000-0000-000000000001/7"
    assert one["nvlink_count"] == 18
    assert (one["slot_number"], one["tray_index"], one["host_id"]) == (3, 1, 0)
    assert (one["local_cpus"], one["numa_node"]) == ("0-7", 0)
    assert (one["multiprocessors"], one["cuda_version"]) == (132, "12.4")
    assert seen["MIG-1"].attributes["placement"] == [4, 4]
    assert seen["MIG-1"].attributes["multiprocessors"] == 60
    assert "nvlink_domain" not in seen["MIG-1"].attributes
    assert "nvlink_count" not in seen["GPU-cut"].attributes


@pytest.mark.parametrize("call", OF_CARD)
def test_what_one_card_refuses_changes_no_other_card(
    library: Library, root: Path, whole: str, call: str
) -> None:
    for address in ("1b", "43", "5b"):
        (root / f"proc/driver/nvidia/gpus/0000:{address}:00.0").mkdir(parents=True)
    before = by_id(root, library, whole)
    for error in ERRORS:
        refusing = f"{TWO} fail={NAMES.get(call, call)}:{error}"
        after = by_id(root, library, text(ONE, refusing, CUT, *SLICES))
        for name in ("GPU-one", "GPU-cut", "MIG-1", "MIG-2"):
            assert after[name] == before[name], (call, error)
        # It is there, with its id or by its address, and what it tells is what it told before.
        (two,) = after.keys() - before.keys() | {"GPU-two"} & after.keys()
        assert after[two].healthy != (call in ESSENTIAL or error == 15), (call, error)
        told = after[two].attributes
        if "model" in told and call not in ("nvmlDeviceGetName", *ADDRESSES):
            assert all(before["GPU-two"].attributes[name] == told[name] for name in told)


@pytest.mark.parametrize("call", sorted(OF_CUT | OF_SLICE))
def test_what_a_slice_refuses_changes_no_other_card_and_no_whole_slice(
    library: Library, root: Path, whole: str, call: str
) -> None:
    before = by_id(root, library, whole)
    for error in ERRORS:
        mark = f" fail={NAMES.get(call, call)}:{error}"
        slices = list(SLICES)
        if call in OF_SLICE:
            slices[0], slices[1] = slices[0] + mark, slices[1] + mark
        cut = CUT + (mark if call in OF_CUT else "")
        after = by_id(root, library, text(ONE, TWO, cut, *slices))
        for name in ("GPU-one", "GPU-two"):
            assert after[name] == before[name], (call, error)
        if call in OF_SLICE and error != 15:  # a card is lost as a whole
            assert after["MIG-2"].healthy, (call, error, after["MIG-2"].reason)
            assert after["MIG-2"].devices == before["MIG-2"].devices
        assert "GPU-cut" in after


@pytest.mark.parametrize("call", CALLS)
def test_what_all_cards_refuse_removes_none_of_them(
    library: Library, root: Path, whole: str, call: str
) -> None:
    """Without a uuid or an address, what was known before stays: `discovery` has that."""
    for error in (3, 13, 15, 999):
        data = text(ONE, TWO, CUT, *SLICES, before=f"fail {NAMES.get(call, call)} {error}\n")
        state, reason, facts = library.ask(data)
        if state != "found":
            assert call in ("nvmlInit", "nvmlDeviceGetCount")
            assert reason
            continue
        assert len(facts["devices"]) == 3, (call, error)
        cards = [one for one in found(root, (state, reason, facts)).instances if one.type == "gpu"]
        if call not in ADDRESSES:
            assert len(cards) == 3, (call, error)
        assert all(one.healthy or one.reason for one in cards)


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_hangs_is_known_by_its_card_and_the_others_are_asked_without_it(
    library: Library, root: Path, whole: str, call: str
) -> None:
    name = NAMES.get(call, call)
    if call in WHOLE:
        assert library.hangs(text(ONE, TWO, before=f"hang {name}\n")) == name
        return
    lines = [ONE, TWO, CUT, *SLICES]
    # Two slices, so that one is asked before the one that hangs.
    place = 5 if call in OF_SLICE else 2 if call in OF_CUT else 1
    place = 6 if call in OF_SLICE and not call.startswith("nvmlGpuInstance") else place
    suspect = "0000:43:00.0" if place == 1 else "0000:5b:00.0"
    lines[place] += f" hang={name}"
    data = text(*lines)
    assert library.hangs(data) == name
    if call in ADDRESSES:
        suspect = "NVML device 1"
    assert library.started[-1] == suspect
    before = by_id(root, library, whole)
    state, _, facts = library.ask(data, (suspect,))
    assert state == "found"
    after = {one.id: one for one in found(root, (state, "", facts)).instances}
    for card in {"GPU-one", "GPU-two"} - ({"GPU-two"} if place == 1 else set()):
        assert after[card] == before[card]


def test_an_old_library_tells_what_it_knows(old_library: Library, root: Path) -> None:
    cards = by_id(root, old_library, text(ONE, TWO))
    assert all(card.healthy for card in cards.values())
    one = cards["GPU-one"].attributes
    assert {"uuid", "minor", "memory_bytes", "driver_version", "serial", "ecc_mode"} <= one.keys()
    assert not {"cuda_version", "module_id", "fabric_state", "tray_index"} & one.keys()
    # What is at the other end follows from its address.
    assert one["nvlink_count"] == 18
    assert one["nvlink_domain"] == "nvlink-0000:05:00.0"


@pytest.mark.parametrize(("newest", "has"), [(3, True), (2, True), (1, False)])
def test_each_version_of_the_fabric_s_structure_is_understood(
    library: Library, root: Path, newest: int, has: bool
) -> None:
    sick = "fabric=3,0,7,00000000000000000000000000000001,2"
    line = re.sub(r"fabric=\S+", sick, ONE) + f" fabricversion={newest}"
    (card,) = by_id(root, library, text(line)).values()
    assert card.attributes["fabric_clique"] == 7
    # Only the third one says how it is.
    assert card.healthy == (newest < 3)
    assert has or card.attributes["fabric_state"] == "completed"


def test_the_first_version_of_the_platform_s_structure_is_understood(
    library: Library, root: Path
) -> None:
    (card,) = by_id(root, library, text(ONE + " platformversion=1")).values()
    assert (card.attributes["slot_number"], card.attributes["tray_index"]) == (3, 1)


@pytest.mark.parametrize("count", [0, 1, 2, 4, 100000, 4294967295])
def test_a_library_that_lies_about_how_many_cards_there_are(
    library: Library, root: Path, count: int
) -> None:
    for address in ("1b", "43"):
        path = root / f"proc/driver/nvidia/gpus/0000:{address}:00.0/information"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("Model: \t H100\n")
    told = -1 if count == 4294967295 else count
    cards = by_id(root, library, text(ONE, TWO, before=f"count {told}\n"))
    addresses = {one.text("pci_address"): one.healthy for one in cards.values()}
    known = 2 if told < 0 else min(count, 2)
    assert list(addresses) == ["0000:1b:00.0", "0000:43:00.0"]
    assert list(addresses.values()) == [place < known for place in range(2)]


@pytest.mark.parametrize("count", [0, 1, 3, 1 << 31])
def test_a_library_that_lies_about_how_many_slices_there_are(
    library: Library, root: Path, count: int
) -> None:
    cards = by_id(root, library, text(ONE, f"{CUT} migcount={count}", *SLICES))
    assert cards["GPU-one"].healthy
    slices = [one for one in cards.values() if one.type == "mig"]
    assert len(slices) == min(count, 2)
    assert all(one.healthy for one in slices)
    assert cards["GPU-cut"].healthy == (count > 0)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A machine without anything, for the examples of one property."""
    return tmp_path_factory.mktemp("root")


@given(
    st.lists(st.sampled_from(OF_CARD), min_size=1, max_size=6),
    st.sampled_from(ERRORS),
    st.sampled_from(OF_CARD),
)
@settings(max_examples=30, deadline=None)
def test_any_set_of_refusals_on_one_card_leaves_the_other_as_it_was(
    library: Library,
    bare: Path,
    calls: list[str],
    error: int,
    more: str,
) -> None:
    root = bare
    marks = "".join(f" fail={NAMES.get(call, call)}:{error}" for call in calls)
    before = by_id(root, library, text(ONE))["GPU-one"]
    # The other card is the first one in the bus's order, so its index does not change either.
    refusing = f"{TWO}{marks} fail={NAMES.get(more, more)}:3".replace(LINKS, "nvlinks=-:1:-")
    assert by_id(root, library, text(refusing, ONE))["GPU-one"] == before


TEXTS = st.text(
    st.characters(codec="latin-1", exclude_characters=" \n\r\0", min_codepoint=1), max_size=90
)


@given(st.sampled_from(["uuid", "name", "serial", "bus"]), TEXTS)
@settings(max_examples=60, deadline=None)
def test_rubbish_in_a_text_costs_that_card_at_most(
    library: Library, bare: Path, key: str, rubbish: str
) -> None:
    root = bare
    before = by_id(root, library, text(ONE))["GPU-one"]
    line = re.sub(rf" {key}=\S+", lambda _: f" {key}={rubbish}", TWO)
    answer = library.ask(text(ONE, line))
    instances = {one.id: one for one in found(root, answer).instances}
    assert instances["GPU-one"] == before
    for one in instances.values():
        assert all(str(value).isprintable() for value in one.attributes.values())
        assert one.reason.isprintable()
