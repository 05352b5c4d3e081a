"""The documentation has the metrics that there are, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from xce_nodeagent.export.figures import TABLE
from xce_nodeagent.model.histogram import BOUNDS

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
BEGIN, END = "tests/metrics/test_docs.py -->\n", "<!-- end -->"


def _table() -> str:
    rows = [
        f"| `{row.name}` | {row.kind} | {', '.join(f'`{one}`' for one in row.labels)}"
        f" | {row.help} |\n"
        for row in TABLE
    ]
    return "| name | type | labels | meaning |\n|---|---|---|---|\n" + "".join(rows)


def test_the_table_is_that_of_the_program() -> None:
    """Where it is not: `python tests/metrics/test_docs.py` writes it anew."""
    page = PAGE.read_text("utf-8")
    assert page.partition(BEGIN)[2].partition(END)[0] == _table()


def test_expressions_name_metrics_that_there_are() -> None:
    rest = PAGE.read_text("utf-8").partition("## Expressions")[2]
    named = set(re.findall(r"xce_nodeagent_[a-z_]+", rest))
    assert len(named) > 8
    ends = ("", "_bucket", "_sum", "_count")
    there = {row.name + end for row in TABLE for end in ends[: 4 if row.kind == "histogram" else 1]}
    assert named <= there


def test_names_follow_prometheus_conventions() -> None:
    """prometheus.io/docs/practices/naming: base units at the end, `_total` of what accumulates."""
    names = [row.name for row in TABLE]
    assert len(names) == len(set(names))
    for row in TABLE:
        assert re.fullmatch(r"(xce_nodeagent|process)_[a-z_]+", row.name)
        assert row.name.endswith("_total") == (row.kind == "counter")
        assert row.name.endswith("_seconds") or row.kind != "histogram"
        assert row.help.endswith(".")
        assert not {"job", "attempt", "uid", "id"} & set(row.labels)


def test_the_buckets_are_told() -> None:
    page = " ".join(PAGE.read_text("utf-8").split())
    assert ", ".join(f"{bound:g}" for bound in BOUNDS) in page


if __name__ == "__main__":
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(before + BEGIN + _table() + END + rest.partition(END)[2], "utf-8")
