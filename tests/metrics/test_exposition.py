"""Histograms and their exposition, read back by Prometheus' own parser."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from xce_nodeagent.export.exposition import Metric, expose
from xce_nodeagent.model.histogram import BOUNDS, Histogram

SECONDS = st.lists(st.floats(0, 100, allow_subnormal=False) | st.sampled_from(BOUNDS))


def _filled(durations) -> Histogram:
    found = Histogram()
    for seconds in durations:
        found.add(seconds)
    return found


@given(SECONDS)
def test_each_bucket_has_what_is_at_most_so_long(durations) -> None:
    cumulative = _filled(durations).cumulative()
    for bound, count in zip(BOUNDS, cumulative, strict=False):
        assert count == sum(seconds <= bound for seconds in durations)
    assert cumulative[-1] == _filled(durations).count == len(durations)


@given(SECONDS, st.text(), st.floats(allow_nan=False) | st.integers())
def test_the_parser_reads_back_what_was_written(durations, label, number) -> None:
    histogram = _filled(durations)
    text = expose(
        [
            Metric("xce_a_seconds", "A.", [({"step": label}, histogram)], "histogram"),
            Metric("xce_b_total", "B.", [({}, histogram.count)], "counter"),
            Metric("xce_c", "C.", [({"own": label}, number)]),
            Metric("xce_d", "Without samples it is not there.", []),
        ]
    )
    a, b, c = text_string_to_metric_families(text)
    assert [(one.name, one.type) for one in (a, b, c)] == [
        ("xce_a_seconds", "histogram"),
        ("xce_b", "counter"),
        ("xce_c", "gauge"),
    ]
    buckets = [one for one in a.samples if one.name == "xce_a_seconds_bucket"]
    assert [float(one.labels["le"]) for one in buckets] == [*BOUNDS, float("inf")]
    assert [one.value for one in buckets] == histogram.cumulative()
    assert all(one.labels["step"] == label for one in a.samples)
    assert {one.name: one.value for one in a.samples[-2:]} == {
        "xce_a_seconds_sum": histogram.sum,
        "xce_a_seconds_count": histogram.count,
    }
    assert b.samples[0].value == len(durations)
    assert (c.samples[0].labels, c.samples[0].value) == ({"own": label}, number)
