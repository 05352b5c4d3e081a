"""The table of causes, and how a site changes it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xce_nodeagent.errors import BadConfig
from xce_nodeagent.model import policy
from xce_nodeagent.model.config import parse
from xce_nodeagent.model.policy import DEFAULT


def test_every_row_says_what_is_wrong_and_how_it_ends() -> None:
    for cause, row in DEFAULT.items():
        if row.verdict != "ignore":
            assert row.text, cause
            assert policy.remedy(row), cause
        assert (row.seconds > 0) == (row.ends == "quiet"), cause
        assert "{" not in policy.remedy(row), cause


def test_every_xid_of_the_catalogue_that_is_in_use_has_a_row() -> None:
    """Those that the catalogue (172 at most, in 2026) marks as unused need none."""
    unused = {
        *range(1, 8), 9, 10, 12, *range(15, 25), *range(26, 31), *range(33, 37), 42, 47,
        *range(49, 54), *range(55, 60), 65, 73, 81, 87, 90, 91, *range(111, 119), *range(122, 126),
        138,
    }  # fmt: skip
    rows = {int(cause[4:]) for cause in DEFAULT if cause[4:].isdigit()}
    assert rows == set(range(1, 173)) - unused


def test_a_site_changes_rows_and_adds_some() -> None:
    config = parse(
        "[health]\nthermal_seconds = 5\n[health.policy]\n"
        'xid-31 = "unhealthy slice quiet 3600"\nxid-79 = "note"\nxid-999 = "unhealthy undrain"\n'
        'thermal = "ignore"\n',
        "c.toml",
    )
    table = policy.merged(config.health.policy)
    assert config.health.thermal_seconds == 5
    row = table["xid-31"]
    assert (row.verdict, row.hits, row.ends, row.seconds) == ("unhealthy", "slice", "quiet", 3600)
    assert row.text
    assert (table["xid-79"].verdict, table["xid-79"].ends) == ("note", "reboot")
    assert (table["xid-999"].verdict, table["xid-999"].ends) == ("unhealthy", "undrain")
    assert table["thermal"].verdict == "ignore"
    assert table["xid-48"] == DEFAULT["xid-48"]


def test_all_faults_are_told_at_once_each_with_its_line() -> None:
    with pytest.raises(BadConfig) as caught:
        parse(
            '[health]\ncool_seconds = "x"\ncorrected_per_hour = -1\nwhat = 1\n[health.policy]\n'
            'xid-31 = "bad"\nthermal = "note card"\nfoo = "note"\nxid-48 = 3\n'
            'xid-62 = "note card quiet"\nxid-63 = "unhealthy level"\nxid-0 = "note"\n'
            'xid-64 = "unhealthy quiet 0"\nxid-70000 = "note"\nxid-65 = "note reset reset"\n',
            "c.toml",
        )
    lines = caught.value.message.splitlines()
    assert [line.split(": ")[0] for line in lines] == [
        f"c.toml:{number}" for number in (2, 3, 4, *range(6, 16))
    ]
    assert "expected 'ignore', 'note' or 'unhealthy' first" in lines[3]
    assert "figures are of a whole card" in lines[4]


def test_a_policy_that_is_no_table_is_told() -> None:
    with pytest.raises(BadConfig, match="expected a table"):
        parse('[health]\npolicy = "xid-31"\n', "c.toml")


@given(
    st.dictionaries(
        st.sampled_from([*DEFAULT, "xid-5", "xid-99999", "x"]) | st.text(max_size=8),
        st.lists(
            st.sampled_from(["ignore", "note", "unhealthy", "card", "slice", "peers", "quiet",
                             "5", "0", "reset", "reboot", "undrain", "level"]), max_size=5,
        ).map(" ".join) | st.integers() | st.text(max_size=8),
    )
)  # fmt: skip
def test_each_rule_is_read_or_told_to_be_wrong(rules: dict[str, object]) -> None:
    found, faults = policy.changed(rules)
    assert len(found) + len(faults) == len(rules)
    for row in found.values():
        assert (row.seconds > 0) == (row.ends == "quiet")
        assert row.text or row.verdict == "ignore"
