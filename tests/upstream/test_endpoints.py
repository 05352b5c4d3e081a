from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xce_nodeagent.upstream.endpoints import BLAMED_SECONDS, Endpoints

URLS = ("a", "b", "c")
ACTS = st.lists(st.tuples(st.sampled_from(("worked", "failed")), st.sampled_from(URLS)))


@given(ACTS, st.integers())
def test_a_round_has_each_once_and_the_failed_ones_last(acts, seed):
    one = Endpoints(URLS, Random(seed))  # noqa: S311  # no secret
    bad = {}
    for now, (act, url) in enumerate(acts):
        if act == "failed":
            one.failed(url, now)
            bad[url] = now
        else:
            one.worked(url)
            bad.pop(url, None)
    now = len(acts)
    told = one.round(now)
    assert sorted(told) == sorted(URLS)
    blamed = {url: at for url, at in bad.items() if now - at < BLAMED_SECONDS}
    assert set(told[len(URLS) - len(blamed) :]) == set(blamed)
    # Of those, the one that failed longest ago comes first.
    last = [blamed[url] for url in told[len(URLS) - len(blamed) :]]
    assert last == sorted(last)


def test_the_one_that_worked_is_asked_again(chance):
    one = Endpoints(URLS, chance)
    for url in URLS:
        one.worked(url)
        assert one.round(0.0)[0] == url


def test_many_nodes_begin_with_different_members():
    begun = [Endpoints(URLS, Random(seed)).round(0.0)[0] for seed in range(300)]  # noqa: S311  # no secret
    assert all(begun.count(url) > 50 for url in URLS)


def test_others_are_taken(chance):
    one = Endpoints(URLS, chance)
    one.failed("a", 0.0)
    one.move(["d", "a", "d"])
    assert one.urls == ("d", "a")
    assert one.round(1.0) == ("d", "a")
    with pytest.raises(ValueError, match="at least one"):
        one.move([])
