"""The ticker through both changes of the clock, with USE_TZ and without."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.test import override_settings

from django_durable_jobs.models import Job, Schedule, TickClaim
from django_durable_jobs.registry import schedule
from tests.clockwork import Clockwork, clockwork, fired, jobs, missed, row

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = timedelta(hours=1)
HALF = HOUR / 2


@pytest.fixture(params=[True, False], ids=["aware", "local"])
def use_tz(request: pytest.FixtureRequest, transactional_db: None) -> Iterator[bool]:
    """Run with USE_TZ or without; the connection is opened anew, as Django sets it up by that."""
    connection.close()
    with override_settings(USE_TZ=request.param, TIME_ZONE="Europe/Vienna"):
        for name in ("timezone", "timezone_name"):
            connection.__dict__.pop(name, None)
        yield request.param
    for name in ("timezone", "timezone_name"):
        connection.__dict__.pop(name, None)
    connection.close()


def utc(month: int, day: int, hour: int, minute: int = 0) -> datetime:
    return datetime(2026, month, day, hour, minute, tzinfo=UTC)


def as_project_writes(moment: datetime, use_tz: bool) -> datetime:
    """Return the moment as a project has its times: without USE_TZ naive, in TIME_ZONE."""
    return moment if use_tz else moment.astimezone(ZoneInfo("Europe/Vienna")).replace(tzinfo=None)


def grid(first: datetime, until: datetime, step: timedelta) -> list[datetime]:
    return [first + n * step for n in range(int((until - first) / step) + 1)]


@pytest.mark.parametrize(
    ("night", "fixed", "baseline"),
    [
        # 02:00 becomes 03:00 at 01:00 UTC: what was to be at 02:30 is at the end of the gap.
        (utc(3, 29, 0), utc(3, 29, 1), utc(3, 29, 1)),
        # 03:00 becomes 02:00 at 01:00 UTC: 02:30 is there twice, and counts the first time.
        (utc(10, 25, 0), utc(10, 25, 0, 30), utc(10, 25, 0, 30)),
    ],
    ids=["spring", "autumn"],
)
def test_the_ticker_walks_through_a_change_of_the_clock(
    use_tz: bool, night: datetime, fixed: datetime, baseline: datetime
) -> None:
    begun, over = night - 2 * HOUR, night + 6 * HOUR
    with clockwork(begun) as work:
        end = as_project_writes(night + 4 * HOUR, use_tz)
        start = as_project_writes(night + HOUR, use_tz)
        run: dict[str, Any] = {"run": lambda: None, "overlap": "allow"}
        schedule("fixed", cron="30 2 * * *", **run)
        schedule("hourly", cron="0 * * * *", **run)
        schedule("often", cron="*/30 * * * *", **run)
        schedule("interval", every=HOUR, **run)
        schedule("daily", every=24 * HOUR, baseline="02:30", **run)
        schedule("bounded", cron="*/30 * * * *", start=start, end=end, **run)
        work.turn()
        work.walk(over, step=1_800)
        assert fired("fixed") == [fixed]
        assert fired("hourly") == grid(begun + HOUR, over, HOUR)
        assert fired("often") == grid(begun + HALF, over, HALF)
        assert fired("interval") == grid(begun + HOUR, over, HOUR)
        assert fired("daily") == [baseline]
        assert fired("bounded") == grid(night + HOUR, night + 4 * HOUR, HALF)
        for name in Schedule.objects.values_list("name", flat=True):
            assert missed(name) == []
            assert [job.run_at for job in jobs(name)] == fired(name)
        on_time = TickClaim.objects.values_list("scheduled_at", "claimed_at")
        assert all(claimed == scheduled for scheduled, claimed in on_time)
        assert row("bounded").next_fire is None
        # A night without anybody: the newest is late, all others are in the ledger.
        successor = Clockwork(work.clock)
        successor.go(over + 24 * HOUR)
        assert missed("often") == [
            (over + HALF, over + 24 * HOUR - HALF, 47, "downtime"),
        ]
        assert fired("often")[-1] == over + 24 * HOUR


def test_what_one_worker_stores_another_reads_whichever_has_use_tz(use_tz: bool) -> None:
    """In the hour that is there twice, where a local time does not say which it is."""
    first, second = utc(10, 25, 0, 30), utc(10, 25, 1, 30)
    with clockwork(utc(10, 25, 0)) as work:
        schedule("often", cron="*/30 * * * *", run=lambda: None, overlap="allow")
        work.turn()
        work.go(first)
        with override_settings(USE_TZ=not use_tz):
            other = Clockwork(work.clock)
            other.go(utc(10, 25, 1))
            other.go(second)
            assert fired("often") == [first, utc(10, 25, 1), second]
        assert fired("often") == [first, utc(10, 25, 1), second]
        assert row("often").last_run == second
        keys = {f"tick:often:{tick.isoformat()}" for tick in fired("often")}
        assert set(Job.objects.values_list("idempotency_key", flat=True)) == keys
