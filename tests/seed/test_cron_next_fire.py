"""S2 nextCronFire, and S1's nextRunTime and matches: when a cron expression fires next."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from time import process_time

import pytest
from django.test import override_settings

from django_durable_jobs.recurrence import Cron, InvalidRecurrence

NEW_YORK = "America/New_York"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def next_fire(expression: str, after: str, zone: str | None = "UTC") -> datetime:
    return Cron(expression, zone).next_fire(at(after))


def test_next_cron_fire_is_the_first_match() -> None:
    assert next_fire("0 2 * * *", "2026-05-09 00:00") == at("2026-05-09 02:00")


def test_next_cron_fire_is_strictly_after() -> None:
    assert next_fire("0 2 * * *", "2026-05-09 02:00") == at("2026-05-10 02:00")
    assert next_fire("0 2 * * *", "2026-05-09 01:59:59.999") == at("2026-05-09 02:00")
    assert next_fire("* * * * *", "2026-05-09 02:00:30") == at("2026-05-09 02:01")


def test_next_cron_fire_is_in_the_zone() -> None:
    assert next_fire("0 2 * * *", "2026-05-09 00:00", "Asia/Tokyo") == at("2026-05-09 17:00")
    assert next_fire("0 2 * * *", "2026-05-09 00:00", NEW_YORK) == at("2026-05-09 06:00")


def test_next_cron_fire_without_a_zone_is_in_the_projects() -> None:
    """changed: the seed follows the local clock of the server."""
    with override_settings(TIME_ZONE="Asia/Tokyo"):
        assert next_fire("0 2 * * *", "2026-05-09 00:00", None) == at("2026-05-09 17:00")


def test_next_cron_fire_either_day_field_is_enough() -> None:
    cron = Cron("0 0 13 * 5", "UTC")
    fires = cron.preview(4, at("2026-11-08"))
    assert fires == [at(f"2026-11-{day}") for day in (13, 20, 27)] + [at("2026-12-04")]


def test_next_cron_fire_one_day_field_alone_decides() -> None:
    assert next_fire("0 0 13 * *", "2026-11-30") == at("2026-12-13")
    assert next_fire("0 0 * * 7", "2026-11-30") == at("2026-12-06")


def test_matches_day_7_is_sunday() -> None:
    """changed: S1 compares with 0 to 6 only, so that day 7 never comes."""
    assert next_fire("0 0 * * 7", "2026-11-30") == at("2026-12-06")
    assert at("2026-12-06").isoweekday() == 7


def test_matches_day_fields_are_alternatives() -> None:
    """changed: S1 wants both to match."""
    assert next_fire("0 0 13 * 5", "2026-11-14") == at("2026-11-20")


def test_next_cron_fire_once_where_the_time_shows_twice() -> None:
    """changed: the seed's walk fires in both passes, its text says once."""
    fires = Cron("30 1 * * *", NEW_YORK).preview(2, at("2026-11-01 00:00"))
    assert fires == [at("2026-11-01 05:30"), at("2026-11-02 06:30")]


def test_next_cron_fire_after_the_gap_where_the_time_is_left_out() -> None:
    """changed: the seed's walk leaves out the day, its text says the next valid instant."""
    assert next_fire("30 2 * * *", "2026-03-08 00:00", NEW_YORK) == at("2026-03-08 07:00")


def test_next_cron_fire_of_a_star_follows_elapsed_time() -> None:
    fires = Cron("*/30 * * * *", NEW_YORK).preview(6, at("2026-11-01 04:30"))
    assert {later - earlier for earlier, later in pairwise(fires)} == {timedelta(minutes=30)}


def test_next_cron_fire_finds_leap_days() -> None:
    """changed: the seeds look a year ahead, then throw (S2) or return null (S1)."""
    assert next_fire("0 0 29 2 *", "2026-01-01") == at("2028-02-29")
    assert next_fire("0 0 29 2 *", "2096-03-01") == at("2104-02-29")


@pytest.mark.parametrize("expression", ["0 0 30 2 *", "0 0 31 4,6 *"])
def test_next_cron_fire_of_impossible_dates_is_refused_at_once(expression: str) -> None:
    """changed: the seed throws "produced no fire within 1 year" when it looks for the fire."""
    with pytest.raises(InvalidRecurrence) as caught:
        Cron(expression)
    assert caught.value.code == "cron-no-fire"


def test_next_cron_fire_a_year_away_costs_little() -> None:
    """changed: with a zone, the seed's walk takes most of a minute of processor time."""
    started = process_time()
    assert next_fire("0 0 29 2 *", "2026-01-01", NEW_YORK) == at("2028-02-29 05:00")
    with pytest.raises(InvalidRecurrence):
        Cron("0 0 30 2 *", NEW_YORK)
    assert process_time() - started < 0.1
