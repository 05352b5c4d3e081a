"""Names that a caller gives, and what is made of them."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xce_nodeagent.errors import BadJobId, BadPort, BadRequest
from xce_nodeagent.model import name

allowed = "".join(c for c in map(chr, range(33, 127)) if c not in "/\\\"'`")
ids = st.text(alphabet=allowed, min_size=1, max_size=128)


@pytest.mark.parametrize("text", ["1", "12[3]", "12[].server", "a" * 128, "job@x:y,z;(w)"])
def test_ids_of_other_schedulers_fit(text):
    assert name.job_id(text) == text


@pytest.mark.parametrize("text", ["", "a b", "a/b", "a\\b", 'a"b', "a'b", "ü", "a\n", "x" * 129])
def test_other_ids_are_refused(text):
    with pytest.raises(BadJobId):
        name.job_id(text)


@given(st.text())
def test_a_job_id_is_taken_whole_or_refused(text):
    try:
        assert name.job_id(text) == text
        assert set(text) <= set(allowed)
        assert 1 <= len(text) <= 128
    except BadJobId:
        pass


@given(ids, ids)
def test_two_ids_never_share_a_cgroup(one, other):
    if one != other:
        assert name.cgroup_name(one) != name.cgroup_name(other)


@given(ids)
def test_a_cgroups_name_is_one_plain_file_name(job):
    made = name.cgroup_name(job)
    assert made.startswith("job-")
    assert len(made) <= 255
    assert set(made) <= set(string.ascii_letters + string.digits + "._-=")


def test_the_pinned_name_of_a_plain_job():
    assert name.cgroup_name("4711") == "job-4711"


@pytest.mark.parametrize("text", ["http", "A1", "x_y"])
def test_port_names(text):
    assert name.port_name(text) == text


@pytest.mark.parametrize("text", ["", "1a", "a-b", "a b", "x" * 33, "ä"])
def test_other_port_names_are_refused(text):
    with pytest.raises(BadPort):
        name.port_name(text)


def test_a_generation_is_a_boot_and_a_number():
    boot = "2b4e0b5e-0000-4000-8000-000000000000"
    assert name.generation(f"{boot}:17") == (boot, 17)
    for text in ("", "17", "x:y", f"{boot}:-1", f"{boot}:1\n"):
        with pytest.raises(BadRequest):
            name.generation(text)
