"""Each failure that the design names has its tests, and each code that it pins is met by one.

The design is no part of the project: where it does not lie beside the clone, only the names of the
tests are looked at.
"""

from __future__ import annotations

import itertools
import re

import pytest
from faults import named
from faults.test_pinned_errors import CASES

DESIGN = named.ROOT.parent / "shared" / "DESIGN.md"

DESIGNED = "tests/faults/test_failure_is_designed.py::"
HARDWARE = "tests/faults/test_failure_of_hardware.py::"
ORPHAN = "tests/faults/test_orphan.py::"
DISK = "tests/ledger/test_disk.py::"
LOST = "tests/ledger/test_lost.py::"

HELD_BY = {
    "the agent is killed at any instruction": [
        f"{DESIGNED}test_the_agent_is_killed_at_any_instruction",
        "tests/ledger/test_torn.py::test_a_kill_loses_nothing_that_was_acknowledged",
    ],
    "the host reboots": [
        f"{DESIGNED}test_the_host_reboots",
        "tests/binding/test_lifecycle.py::test_a_reboot_closes_all_bindings_and_touches_nothing_else",
    ],
    "a binder hangs or dies": [f"{DESIGNED}test_a_binder_hangs_or_dies"],
    "a prober hangs or dies": [
        f"{HARDWARE}test_a_prober_hangs_or_dies",
        "tests/hung/test_nvml.py::test_a_prepare_is_not_slower_while_a_prober_hangs",
        "tests/hung/test_vendor.py::test_a_prober_that_is_lost_is_replaced_by_itself_and_asked_again",
    ],
    "one GPU falls off the bus": [f"{HARDWARE}test_one_gpu_falls_off_the_bus"],
    "the driver loads late": [
        f"{HARDWARE}test_the_driver_loads_late",
        f"{HARDWARE}test_a_driver_that_goes_takes_no_card_out_of_the_inventory",
        "tests/discovery/test_netlink.py::test_what_is_plugged_in_is_heard_of",
    ],
    "the worker dies or forgets": [
        f"{DESIGNED}test_the_worker_dies_or_forgets",
        f"{ORPHAN}test_a_worker_that_is_killed_between_the_commit_and_the_answer_gets_it_later",
        f"{ORPHAN}test_a_worker_that_comes_back_keeps_what_it_names_and_frees_the_rest_with_evidence",
    ],
    "a job's cgroup vanishes": [
        f"{DESIGNED}test_a_jobs_cgroup_vanishes",
        "tests/binding/test_lifecycle.py::test_verification_puts_back_what_differs_and_closes_what_vanished",
    ],
    "the ledger cannot be written": [
        f"{DISK}test_the_ledger_cannot_be_written_on_a_full_disk_and_releases_go_on",
        f"{DISK}test_a_release_that_cannot_be_recorded_closes_the_fence_and_says_so",
        f"{DISK}test_an_unrecorded_release_stands_after_the_agent_s_death",
        f"{DISK}test_a_read_only_disk_at_the_start_leaves_jobs_and_releases",
        f"{DISK}test_a_disk_that_fails_under_the_agent",
    ],
    "the ledger is corrupt or lost": [
        f"{DESIGNED}test_the_ledger_is_corrupt_or_lost",
        "tests/ledger/test_damaged.py::test_what_is_damaged_is_moved_aside_and_nothing_is_lost",
        f"{LOST}test_a_missing_ledger_is_made_again_from_the_cgroups",
    ],
    "the upstream is away": [
        f"{DESIGNED}test_the_upstream_is_away",
        "tests/agent/test_reports.py::test_after_an_outage_the_receiver_gets_the_newest_and_nothing_in_between",
        "tests/agent/test_reports.py::test_no_job_waits_for_a_receiver_that_hangs_nor_does_the_end",
    ],
    "a job's processes outlive it": [f"{DESIGNED}test_a_jobs_processes_outlive_it"],
    "release of something unknown, or twice": [
        f"{DESIGNED}test_release_of_something_unknown_or_twice"
    ],
}
"""The design's failures by their names there, without what stands in brackets."""


@pytest.fixture(scope="module")
def design():
    """Give the rows of the design's two tables: of failures, and of errors."""
    if not DESIGN.is_file():
        pytest.skip(f"needs the design, which is not here: no {DESIGN.name} in ../shared")
    lines = DESIGN.read_text("utf-8").splitlines()
    section = itertools.dropwhile(lambda line: not line.startswith("## 7."), lines)
    section = [
        next(section),
        *itertools.takewhile(lambda line: not line.startswith("## "), section),
    ]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section]
    rows = [row for row in cells if len(row) > 1 and set(row[0]) != {"-"}]
    heads = [at for at, row in enumerate(rows) if row[0] in ("what fails", "code")]
    assert len(heads) == 2, "the tables of section 7 are not as they were"
    first, second = heads
    return rows[first + 1 : second], rows[second + 1 :]


def test_every_named_test_exists():
    assert all(HELD_BY.values())
    assert named.missing(name for names in HELD_BY.values() for name in names) == []


def test_every_failure_of_the_design_has_its_test(design):
    failures, _ = design
    assert len(failures) > 10
    assert {re.sub(r" \(.*\)", "", row[0]) for row in failures} == set(HELD_BY)


def test_every_code_of_the_design_is_met_by_a_test_with_its_class(design):
    pinned = {}
    for codes, classes, _ in design[1]:
        found = re.findall(r"`(\w+)`", codes)
        several = classes.split(" / ")
        pinned |= dict(zip(found, several * (len(found) // len(several)), strict=True))
    assert len(pinned) > 10
    met = {code: error_class for code, (error_class, *_) in CASES.items()}
    assert {code: met.get(code) for code in pinned} == pinned
