"""The algebra of device rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xce_nodeagent.model.rule import ALL, Access, Device, Rule, allows, closed, normal, opened

devices = st.builds(Device, st.sampled_from(["c", "b"]), st.integers(60, 62), st.integers(0, 3))
accesses = st.integers(1, 7)
rules = st.lists(st.builds(Rule, devices, accesses), max_size=8)
sets = st.frozensets(devices, max_size=6)


@pytest.mark.parametrize(("bits", "text"), [(2, "r"), (6, "rw"), (7, "rwm"), (1, "m")])
def test_an_access_is_written_in_the_letters_of_cgroup_v1(bits, text):
    assert str(Access(bits)) == text


@given(sets, rules, devices, accesses)
def test_an_unmanaged_device_is_never_ruled(managed, grants, device, access):
    if device not in managed:
        assert allows(managed, grants, device, Access(access))


@given(sets, devices, accesses)
def test_no_grants_means_no_managed_device(managed, device, access):
    assert allows(managed, (), device, Access(access)) == (device not in managed)


@given(sets, rules, devices, accesses)
def test_uniting_the_rules_changes_no_verdict(managed, grants, device, access):
    verdict = allows(managed, grants, device, Access(access))
    assert allows(managed, normal(grants), device, Access(access)) == verdict


@given(sets, rules, devices, accesses)
def test_one_more_grant_never_takes_anything_away(managed, grants, device, access):
    if allows(managed, grants, device, Access(access)):
        assert allows(managed, [*grants, Rule(device, 2)], device, Access(access))


@given(sets, rules, devices, accesses)
def test_what_is_closed_and_opened_judges_as_the_algebra_does(managed, grants, device, access):
    """Play the lines by the rules of the v1 controller under a default allow."""
    exceptions: dict[Device, int] = {}
    for line in closed(managed, grants):
        exceptions[line.device] = exceptions.get(line.device, 0) | line.access
    for line in opened(managed, grants):
        if line.device in exceptions:
            exceptions[line.device] &= ~line.access
    denied = exceptions.get(device, 0) & access
    assert (not denied) == allows(managed, grants, device, Access(access))


@given(sets, rules)
def test_nothing_that_is_granted_is_closed_on_the_way(managed, grants):
    given_bits = {rule.device: rule.access for rule in normal(grants)}
    for line in closed(managed, grants):
        assert not line.access & given_bits.get(line.device, 0)


def test_a_grant_of_an_unmanaged_device_opens_nothing():
    assert opened(frozenset(), [Rule(Device("c", 1, 1), int(ALL))]) == ()


def test_a_rule_is_written_as_v1_reads_it():
    assert Rule(Device("c", 120, 3), 6).line() == "c 120:3 rw"
