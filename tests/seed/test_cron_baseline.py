"""S2 nextBaselineFire, and _computeNextRun of `every`: intervals, alone and from a time of day."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import override_settings

from django_durable_jobs.recurrence import Every, InvalidRecurrence, next_baseline_fire

VIENNA = "Europe/Vienna"
HOUR = timedelta(hours=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_next_baseline_fire_is_the_next_such_time_of_day() -> None:
    assert next_baseline_fire("02:30", "UTC", at("2026-05-09 01:00")) == at("2026-05-09 02:30")
    assert next_baseline_fire("2:30", "UTC", at("2026-05-09 03:00")) == at("2026-05-10 02:30")
    assert next_baseline_fire("02:30", "Asia/Tokyo", at("2026-05-09 01:00")) == at(
        "2026-05-09 17:30"
    )


def test_next_baseline_fire_is_strictly_after() -> None:
    assert next_baseline_fire("02:30", "UTC", at("2026-05-09 02:30")) == at("2026-05-10 02:30")
    just_before = at("2026-05-09 02:29:59.999999")
    assert next_baseline_fire("02:30", "UTC", just_before) == at("2026-05-09 02:30")


@pytest.mark.parametrize("value", ["2.30", "0230", "02:3", "02:30:00", "", "noon", None, 230])
def test_next_baseline_fire_wants_hh_mm(value: Any) -> None:
    with pytest.raises(InvalidRecurrence, match="accepted: a time of day HH:MM") as caught:
        next_baseline_fire(value, "UTC", at("2026-05-09"))
    assert caught.value.code == "invalid-baseline"


@pytest.mark.parametrize("value", ["24:00", "02:60", "99:99"])
def test_next_baseline_fire_wants_a_time_that_is_one(value: str) -> None:
    with pytest.raises(InvalidRecurrence, match="accepted: a time of day") as caught:
        next_baseline_fire(value, "UTC", at("2026-05-09"))
    assert caught.value.code == "invalid-baseline"


def test_next_baseline_fire_without_a_zone_is_in_the_projects() -> None:
    """changed: the seed follows the local clock of the server."""
    with override_settings(TIME_ZONE="Asia/Tokyo"):
        assert next_baseline_fire("02:30", None, at("2026-05-09")) == at("2026-05-09 17:30")


def test_next_baseline_fire_always_comes() -> None:
    """changed: the seed looks 25 hours ahead, so it throws where a gap leaves the time out."""
    assert next_baseline_fire("02:30", VIENNA, at("2026-03-28 02:00")) == at("2026-03-29 01:00")
    hour = at("2026-03-27")
    while (hour := hour + HOUR) < at("2026-03-31"):
        for baseline in ("00:00", "01:59", "02:00", "02:59", "03:00", "23:59"):
            assert hour < next_baseline_fire(baseline, VIENNA, hour) <= hour + 25 * HOUR


def test_next_baseline_fire_of_two_is_the_first() -> None:
    """changed: the seed fires in both passes of the hour."""
    fires = Every(24 * HOUR, "02:30", VIENNA).preview(2, at("2026-10-24 12:00"))
    assert fires == [at("2026-10-25 00:30"), at("2026-10-26 01:30")]


def test_compute_next_run_without_a_baseline_is_an_interval_later() -> None:
    after = at("2026-05-09 00:00:07.5")
    assert Every(300).next_fire(after) == after + timedelta(seconds=300)


def test_compute_next_run_keeps_to_the_grid_of_an_anchor() -> None:
    """changed: the seed counts from now, so that restarts and long runs move the times."""
    every = Every(300, anchor=at("2026-05-09 00:00:07"))
    assert every.next_fire(at("2026-05-09 11:03:59")) == at("2026-05-09 11:05:07")
    assert every.next_fire(at("2020-01-01")) == at("2026-05-09 00:05:07")


def test_compute_next_run_with_a_baseline_keeps_its_interval() -> None:
    """changed: the seed fires once a day at the baseline, whatever the interval."""
    every = Every(8 * HOUR, "02:30", "UTC")
    fires = every.preview(4, at("2026-05-09 02:30"))
    assert [f"{fire:%d %H:%M}" for fire in fires] == [
        *("09 10:30", "09 18:30", "10 02:30", "10 10:30")
    ]
    for moment in fires:
        assert every.next_fire(moment - timedelta(seconds=1)) == moment


def test_compute_next_run_of_a_day_fires_at_the_baseline() -> None:
    for day in (28, 29, 30):
        after = at(f"2026-03-{day} 12:00")
        expected = next_baseline_fire("02:30", VIENNA, after)
        assert Every(24 * HOUR, "02:30", VIENNA).next_fire(after) == expected


def test_compute_next_run_is_forward_from_now() -> None:
    """Nothing is made up for after a long pause: the next one is the next."""
    every = Every(60, anchor=at("2026-05-09 00:00:07"))
    assert every.next_fire(at("2026-05-12 10:00:00")) == at("2026-05-12 10:00:07")
