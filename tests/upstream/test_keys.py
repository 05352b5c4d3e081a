from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xce_nodeagent.upstream.keys import (
    EntryKey,
    Keys,
    LiveKey,
    RivalKey,
    ShapeKey,
    end,
    escape,
    unescape,
)

KEYS = Keys()
# Names of nodes, instances and jobs are of the site: any text, also what was no UTF-8.
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1) | st.binary(min_size=1).map(
    lambda raw: raw.decode("utf-8", "surrogateescape")
)
SHA = "0123456789abcdef" * 4


@given(NAMES)
def test_a_name_survives_its_escape(name):
    part = escape(name)
    assert unescape(part) == name
    assert b"/" not in part
    assert part.isascii()


@given(NAMES, st.lists(NAMES, min_size=1))
def test_an_entry_is_read_back(node, parts):
    entry = "/".join(parts)
    found = KEYS.parse(KEYS.entry(node, entry))
    if entry.startswith("/"):
        assert found is None  # an entry has a name; none of ours begins so
    else:
        assert found == EntryKey(node, entry)


@given(NAMES, NAMES)
def test_the_others_are_read_back(node, agent):
    assert KEYS.parse(KEYS.live(node)) == LiveKey(node)
    assert KEYS.parse(KEYS.rival(node, agent)) == RivalKey(node, agent)
    assert KEYS.parse(KEYS.shape(SHA)) == ShapeKey(SHA)


@given(NAMES, NAMES, NAMES, NAMES)
def test_two_names_are_never_one_key(node, entry, other_node, other_entry):
    same = KEYS.entry(node, entry) == KEYS.entry(other_node, other_entry)
    assert same == ((node, entry) == (other_node, other_entry))


@given(st.binary() | st.binary().map(lambda raw: KEYS.prefix + raw))
def test_any_key_is_one_of_ours_or_none(key):
    found = KEYS.parse(key)
    assert found is None or KEYS.write(found) == key


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"/xce/v1/",
        b"/xce/v2/live/n1",
        b"/xce/v1/node/n1",
        b"/xce/v1/node/n1/",
        b"/xce/v1/node//head",
        b"/xce/v1/live/",
        b"/xce/v1/live/a/b",
        b"/xce/v1/live/n%31",  # n1, written in another way
        b"/xce/v1/live/n%2f1",  # small letters
        b"/xce/v1/live/n\xff",
        b"/xce/v1/live/n 1",
        b"/xce/v1/live/n%",
        b"/xce/v1/rival/n1",
        b"/xce/v1/shape/abc",
        b"/xce/v1/shape/" + SHA.upper().encode(),
        b"/xce/v1/other/n1",
    ],
)
def test_what_is_no_key_of_this_layout(key):
    assert KEYS.parse(key) is None


def test_how_keys_look():
    assert KEYS.entry("n1.site", "state/GPU-1") == b"/xce/v1/node/n1.site/state/GPU-1"
    assert KEYS.entry("n1", "binding/12[3]/") == b"/xce/v1/node/n1/binding/12%5B3%5D/"
    assert Keys("/a").live("~x") == b"/a/live/%7Ex"


@given(st.binary(min_size=1), st.binary())
def test_the_end_of_a_prefix_is_after_all_that_begin_with_it(prefix, rest):
    after = end(prefix)
    assert after == b"\0" or prefix + rest < after
    # And nothing that begins otherwise lies between.
    if after != b"\0" and prefix <= rest < after:
        assert rest.startswith(prefix)
