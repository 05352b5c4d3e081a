"""Device nodes that are not what they should be, cards that claim one of them, and links."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xce_nodeagent.discovery import scan
from xce_nodeagent.host import Host, node
from xce_nodeagent.model import nvlink
from xce_nodeagent.model.instance import DeviceNode
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.model.nvlink import End
from xce_nodeagent.providers.nvidia import PROVIDER

ONE = {"pci_address": "0000:1b:00.0", "uuid": "GPU-one", "minor": 2}
TWO = {"pci_address": "0000:43:00.0", "uuid": "GPU-two", "minor": 0}


def look(root: Path, *cards: Any, live: bool = False) -> Inventory:
    answer = ("found", "", {"devices": list(cards)})
    return scan(Host(root, live=live, probe=lambda _: answer), (PROVIDER,))


def health(seen: Inventory) -> dict[str, str]:
    return {one.id: one.reason for one in seen.instances}


# ---- nodes on disk ----------------------------------------------------------------------------


@pytest.mark.needs("root")
def test_a_card_whose_node_is_missing_or_another_s_is_not_given(root: Path) -> None:
    (root / "dev").mkdir()
    path = root / "dev/nvidia2"
    os.mknod(root / "dev/nvidia0", stat.S_IFCHR | 0o600, os.makedev(195, 0))
    states = []
    for make in (
        lambda: None,
        path.touch,
        lambda: path.symlink_to("nvidia0"),
        lambda: os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(195, 2)),
        lambda: os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(195, 0)),
        lambda: os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(195, 2)),
    ):
        make()
        seen = health(look(root, ONE, TWO, live=True))
        assert seen["GPU-two"] == ""
        states.append(seen["GPU-one"])
        path.unlink(missing_ok=True)
    missing, *wrong, right = states
    assert "/dev/nvidia2 is not there" in missing
    assert right == ""
    assert all("it should be c 195:2" in why for why in wrong)


@pytest.mark.needs("root")
def test_nodes_that_computing_does_not_need_may_be_missing_and_not_wrong(tmp_path: Path) -> None:
    host = Host(tmp_path)
    wanted = DeviceNode("/dev/dri/card0", "c", 226, 0)
    assert node.faults(host, [wanted]) == ""
    (tmp_path / "dev/dri").mkdir(parents=True)
    os.mknod(tmp_path / "dev/dri/card0", stat.S_IFCHR | 0o600, os.makedev(226, 1))
    assert "c 226:1" in node.faults(host, [wanted])


# ---- cards that cannot be told apart ------------------------------------------------------------


def test_two_cards_with_one_uuid_are_both_there_and_neither_is_given(root: Path) -> None:
    seen = look(root, ONE, ONE | {"pci_address": "0000:2b:00.0", "minor": 1}, TWO)
    assert seen.problems == ()
    reasons = health(seen)
    assert reasons.pop("GPU-two") == ""
    assert list(reasons) == ["gpu-0000:1b:00.0", "gpu-0000:2b:00.0"]
    assert all("GPU-one" in why for why in reasons.values())
    # Their nodes stay managed, so that nobody gets them by accident.
    assert {n.path for one in seen.instances for n in one.devices} == {
        "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2",
    }  # fmt: skip


def test_a_lost_card_takes_no_uuid_and_no_node_from_one_that_answers(root: Path) -> None:
    stale = {"pci_address": "0000:2b:00.0", "uuid": "GPU-one", "minor": 2, "lost": "GPU is lost"}
    assert health(look(root, ONE, stale, TWO)) == {
        "GPU-one": "", "GPU-two": "", "gpu-0000:2b:00.0": "GPU is lost",
    }  # fmt: skip


def test_two_cards_with_one_node_are_not_given(root: Path) -> None:
    reasons = health(look(root, ONE, TWO | {"minor": 2}))
    assert all("/dev/nvidia2" in why for why in reasons.values())
    assert len(reasons) == 2


def test_two_cards_at_one_address_are_one_that_is_not_given(root: Path) -> None:
    reasons = health(look(root, ONE, TWO, TWO | {"uuid": "GPU-x"}))
    assert reasons.pop("GPU-one") == ""
    assert list(reasons) == ["gpu-0000:43:00.0"]


def test_a_library_and_a_driver_that_name_different_nodes_are_not_believed(root: Path) -> None:
    told = root / "proc/driver/nvidia/gpus/0000:1b:00.0/information"
    told.parent.mkdir(parents=True)
    told.write_text("Device Minor: \t 1\n")
    seen = look(root, ONE, TWO)
    assert "/dev/nvidia2 says the library, /dev/nvidia1 the driver" in health(seen)["GPU-one"]
    assert health(seen)["GPU-two"] == ""


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"compute_mode": "prohibited"}, "prohibited"),
        ({"fabric_state": "in_progress"}, "not yet"),
        ({"fabric_state": "not_started"}, "not yet"),
        ({"fabric_state": "completed", "fabric_fault": "it is unhealthy"}, "fabric"),
        ({"fabric_state": "completed"}, ""),
        ({"compute_mode": "exclusive_process"}, ""),
    ],
)
def test_a_card_that_cuda_would_refuse_is_not_given(
    root: Path, facts: dict[str, Any], why: str
) -> None:
    seen = look(root, ONE | facts, TWO)
    reasons = health(seen)
    assert reasons["GPU-two"] == ""
    assert why in reasons["GPU-one"]
    assert seen.by_id()["GPU-one"].waits is (why == "not yet")
    assert bool(why) == bool(reasons["GPU-one"])


# ---- links --------------------------------------------------------------------------------------


def told(*ends: tuple[str, str, int]) -> dict[str, Any]:
    return {"nvlinks": [{"type": kind, "address": at, "count": n} for kind, at, n in ends]}


def test_links_between_cards_are_told_once_and_by_their_ids(root: Path) -> None:
    seen = look(
        root,
        ONE | told(("gpu", "0000:43:00.0", 4), ("switch", "0000:05:00.0", 2)),
        TWO | told(("", "0000:1b:00.0", 3), ("", "0000:05:00.0", 2), ("npu", "0004:00:00.0", 1)),
    )
    assert seen.topology["links"] == [
        {"kind": "nvlink", "one": "GPU-one", "other": "0000:05:00.0", "count": 2},
        {"kind": "nvlink", "one": "GPU-one", "other": "GPU-two", "count": 4},
        {"kind": "nvlink", "one": "GPU-two", "other": "0000:05:00.0", "count": 2},
    ]
    by_id = seen.by_id()
    assert [by_id[one].attributes["nvlink_count"] for one in ("GPU-one", "GPU-two")] == [6, 6]
    assert by_id["GPU-one"].attributes["nvlink_domain"] == "nvlink-0000:05:00.0"


def test_switches_that_a_guest_does_not_see_connect_its_cards(root: Path) -> None:
    three = {"pci_address": "0000:5b:00.0", "uuid": "GPU-three", "minor": 1}
    seen = look(root, ONE | told(("switch", "", 18)), TWO | told(("", "", 18)), three)
    domains = {one.id: one.text("nvlink_domain") for one in seen.instances}
    assert domains == {"GPU-one": "nvlink-nvswitch", "GPU-two": "nvlink-nvswitch", "GPU-three": ""}


def test_a_domain_keeps_its_name_when_a_card_of_it_is_lost(root: Path) -> None:
    mesh = [
        {**card, **told(*(("gpu", o["pci_address"], 4) for o in (ONE, TWO) if o is not card))}
        for card in (ONE, TWO)
    ]
    before = look(root, *mesh).by_id()["GPU-two"].text("nvlink_domain")
    after = look(root, {**ONE, "lost": "GPU is lost"}, mesh[1]).by_id()["GPU-two"]
    assert after.text("nvlink_domain") == before == "nvlink-0000:1b:00.0"


CARDS = [f"0000:{bus:02x}:00.0" for bus in range(1, 6)]
ENDS = st.builds(
    End,
    st.sampled_from(["", "gpu", "switch", "npu"]),
    st.sampled_from([*CARDS, "0000:f0:00.0", "0000:f1:00.0", ""]),
    st.integers(1, 18),
)


@given(
    st.dictionaries(st.sampled_from(CARDS), st.lists(ENDS, max_size=4)),
    st.dictionaries(
        st.sampled_from(CARDS),
        st.tuples(st.sampled_from([nvlink._ONE_HOST, "c1", "c2"]), st.integers(0, 1)),
    ),
)
def test_cards_that_are_linked_are_in_one_domain_and_links_are_whole(
    ends: dict[str, list[End]], fabrics: dict[str, tuple[str, int]]
) -> None:
    ids = {address: f"GPU-{place}" for place, address in enumerate(CARDS)}
    links = nvlink.links(ids, ends)
    assert list(links) == sorted(set(links))
    assert len({(link.one, link.other) for link in links}) == len(links)
    names = set(ids.values())
    assert all(link.one in names and link.one != link.other and link.count > 0 for link in links)
    assert all(link.one < link.other for link in links if link.other in names)
    domains = nvlink.domains(ids, ends, fabrics)
    if not fabrics:
        at = {name: address for address, name in ids.items()}
        for link in links:
            if link.other in names:
                assert domains[at[link.one]] == domains[at[link.other]]
            assert at[link.one] in domains
    for address, (cluster, clique) in fabrics.items():
        if cluster != nvlink._ONE_HOST:
            assert domains[address] == f"{cluster}/{clique}"


@pytest.mark.parametrize("loaded", [True, False])
def test_a_library_that_is_missing_is_no_word_on_cards_while_the_driver_is_there(
    root: Path, loaded: bool
) -> None:
    if not loaded:
        (root / "proc/devices").write_text("Character devices:\n  1 mem\n\nBlock devices:\n")
    host = Host(root, probe=lambda _: ("none", "no NVIDIA driver library", {}))
    found = PROVIDER.discover(host)
    assert (found.state, found.silent) == ("none", loaded)
