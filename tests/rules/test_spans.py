"""Buckets of time, and percentiles."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_durable_jobs.figures import SPANS, Span, Spread, percentile

NOW = st.datetimes(datetime(1980, 1, 1), datetime(2100, 1, 1)).map(lambda t: t.replace(tzinfo=UTC))


@given(NOW, st.sampled_from(list(SPANS.values())))
def test_the_last_bucket_holds_the_present_and_buckets_begin_on_whole_steps(
    now: datetime, span: Span
) -> None:
    start = span.start(now)
    assert span.index(start, now) == span.count - 1
    assert start.timestamp() % span.bucket == 0
    assert span.index(start, start) == 0
    assert span.index(start, start - timedelta(microseconds=1)) is None
    assert span.index(start, start + timedelta(seconds=span.seconds)) is None
    assert span.index(start, None) is None


@given(st.lists(st.floats(0, 1e9), min_size=1), st.floats(0, 1))
def test_a_percentile_is_a_value_with_that_share_at_or_below_it(
    values: list[float], share: float
) -> None:
    found = percentile(sorted(values), share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-6
    assert sum(value < found for value in values) <= share * len(values)


def test_a_percentile_of_nothing_is_refused_and_a_spread_of_nothing_is_none() -> None:
    with pytest.raises(ValueError, match="no value"):
        percentile([], 0.5)
    assert Spread.of([]) is None


def test_a_spread_takes_durations_in_any_order() -> None:
    assert Spread.of([float(n) for n in range(100, 0, -1)]) == Spread(50.0, 95.0, 100)
