from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xce_nodeagent.errors import BadRequest
from xce_nodeagent.model.request import (
    COUNT_LIMIT,
    LENGTH_LIMIT,
    Need,
    Request,
    Rusage,
    parse,
    render,
)

NAMES = st.from_regex(r"[a-z][a-z0-9_-]{0,12}", fullmatch=True)
REQUESTS = st.dictionaries(NAMES, st.integers(0, COUNT_LIMIT), min_size=1, max_size=8).map(
    lambda needs: Request((Rusage(tuple(Need(name, count) for name, count in needs.items())),))
)
PIECES = st.lists(
    st.sampled_from(
        ["rusage", "select", "gpu", "nic", "[", "]", "=", ":", ",", " ", "\n", "2", "10000",
         "99999999999999999999", "-", "é", "\0", "GPU", '"', "||"]
    ),
    max_size=20,
).map("".join)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("rusage[gpu=2:nic=1]", {"gpu": 2, "nic": 1}),
        ("rusage[gpu=2,nic=1]", {"gpu": 2, "nic": 1}),
        ("  rusage [ gpu = 2 :\n\tnic= 1 ] ", {"gpu": 2, "nic": 1}),
        ("rusage[gpu=0]", {}),
        ("rusage[gpu=007]", {"gpu": 7}),
        ("rusage[fpga-u250=10000]", {"fpga-u250": 10000}),
    ],
)
def test_what_is_understood(text: str, counts: dict[str, int]) -> None:
    assert parse(text).counts() == counts


@pytest.mark.parametrize(
    ("text", "why", "position"),
    [
        ("", "expected a section", 0),
        ("   ", "expected a section", 3),
        ("gpu=2", r"gpu\[\] is no section; understood now: rusage\[\]", 0),
        ("select[mem>2]", r"select\[\] is not understood yet; understood now: rusage\[\]", 0),
        ("rusage[gpu=2] affinity[core(2)]", r"affinity\[\] is not understood yet", 14),
        ("rusage", r"expected '\[' after rusage", 6),
        ("rusage[]", "expected a resource type", 7),
        ("rusage[gpu]", "expected '=' and a count after gpu", 10),
        ("rusage[gpu=]", "expected a whole number from 0 to 10000", 11),
        ("rusage[gpu=-1]", "expected a whole number from 0 to 10000", 11),
        ("rusage[gpu=10001]", "expected a whole number from 0 to 10000", 11),
        ("rusage[gpu=" + "9" * 4000 + "]", "expected a whole number from 0 to 10000", 11),
        ("rusage[gpu=1.5]", "expected ':' and another need", 12),
        ("rusage[gpu=2", "or ']'", 12),
        ("rusage[gpu=2:]", "expected a resource type", 13),
        ("rusage[gpu=2:gpu=1]", "gpu is given twice", 13),
        ("rusage[gpu=2] rusage[nic=1]", r"rusage\[\] is given twice", 14),
        ("rusage[GPU=2]", "expected a resource type", 7),
        ("rusage[gpu=2]]", "expected a section", 13),
    ],
)
def test_faults_say_what_was_expected_and_where(text: str, why: str, position: int) -> None:
    with pytest.raises(BadRequest, match=why) as caught:
        parse(text)
    assert caught.value.details["position"] == position


@pytest.mark.parametrize(
    "text", ["rusage[gpu=x]", "x" * 100 + "[]", "rusage[\n\n gpu=2 nic=1]" + " " * 90]
)
def test_the_caret_stands_below_the_fault(text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(text)
    _, shown, caret = caught.value.message.split("\n")
    assert caret.strip() == "^"
    at = caught.value.details["position"]
    assert shown[caret.index("^")] == text[at]
    assert len(shown) < 90


def test_a_text_that_is_too_long_is_not_even_read() -> None:
    assert parse("rusage[gpu=2]" + " " * (LENGTH_LIMIT - 13)).counts() == {"gpu": 2}
    with pytest.raises(BadRequest, match="4097 characters"):
        parse(" " * (LENGTH_LIMIT + 1))


@given(REQUESTS)
def test_what_is_written_is_read_back(request: Request) -> None:
    assert parse(render(request)) == request


@given(st.text(max_size=200) | PIECES | PIECES.map(lambda text: f"rusage[{text}]"))
def test_any_text_is_a_request_or_a_bad_request(text: str) -> None:
    try:
        read = parse(text)
    except BadRequest as error:
        place = error.details["position"]
    else:
        assert parse(render(read)) == read
        return
    assert 0 <= place <= len(text)
