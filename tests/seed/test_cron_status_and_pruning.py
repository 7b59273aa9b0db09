"""S2 list, getStatus, pruneTickClaims: what is told of schedules, and how long ticks are kept."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from django_durable_jobs import prune_tick_claims, schedule, status
from django_durable_jobs.models import Schedule, TickClaim
from django_durable_jobs.states import State
from django_durable_jobs.ticks import TickPruner, ledger
from django_durable_jobs.worker import Scheduler
from tests.clockwork import Clockwork, at, clockwork, end, jobs
from tests.hearing import Ear

from .conftest import Configure

pytestmark = pytest.mark.django_db(transaction=True)

LIST = (
    *("name", "when", "kind", "timezone", "last_run", "last_finish", "last_error", "next_fire"),
    *("running", "fires", "misses", "non_leader_skips", "tick_claim_lost"),
)


@pytest.fixture
def work(transactional_db: None) -> Iterator[Clockwork]:
    with clockwork() as each:
        yield each


def hourly(name: str, **options: Any) -> None:
    schedule(name, run=lambda: None, **{"cron": "0 * * * *", "timezone": "UTC", **options})


# list


def test_list_tells_every_schedule(work: Clockwork) -> None:
    hourly("seed.a")
    schedule("seed.b", every=300, baseline="02:30", timezone="UTC", run=lambda: None)
    work.turn()
    work.go(at(13))
    end(jobs("seed.a")[0], State.FAILED, error="ValueError: no")
    work.go(1)
    a, b = [{key: each[key] for key in LIST} for each in status()["schedules"]]
    assert a == {
        "name": "seed.a",
        "when": "cron 0 * * * * UTC",
        "kind": "cron",
        "timezone": "UTC",
        "last_run": at(13),
        "last_finish": at(13),
        "last_error": "ValueError: no",
        "next_fire": at(14),
        "running": False,
        "fires": 1,
        "misses": 0,
        "non_leader_skips": 0,
        "tick_claim_lost": 0,
    }
    assert (b["kind"], b["when"]) == ("every", "every 300 s from 02:30 UTC")


def test_list_of_one_that_never_fired_has_no_times(work: Clockwork) -> None:
    hourly("seed.a")
    work.turn()
    (told,) = status()["schedules"]
    assert (told["last_run"], told["last_finish"], told["fires"]) == (None, None, 0)


def test_list_names_the_time_zone_that_counts(work: Clockwork, settings: Any) -> None:
    """changed: that of the project where none was given; the seed tells null."""
    settings.TIME_ZONE = "Asia/Tokyo"
    schedule("seed.a", cron="0 2 * * *", run=lambda: None)
    work.turn()
    (told,) = status()["schedules"]
    assert (told["timezone"], told["last_error"]) == ("Asia/Tokyo", "")


# getStatus


def test_get_status_adds_the_schedules_up(work: Clockwork) -> None:
    for name in ("seed.a", "seed.b"):
        hourly(name)
    work.turn()
    counts = {"fires": 4, "misses": 3, "non_leader_skips": 2, "tick_claim_lost": 1}
    Schedule.objects.update(**counts)
    Schedule.objects.filter(name="seed.a").update(running=True, last_error="no")
    assert status()["aggregate"] == {
        "total": 2,
        "running": 1,
        "with_errors": 1,
        "total_fires": 8,
        "total_misses": 6,
        "non_leader_skips": 4,
        "tick_claim_lost": 2,
    }


def test_get_status_of_a_worker_tells_whether_it_leads() -> None:
    """changed: the worker tells started and is_leader; status() tells the rest, of them all."""
    told = Scheduler().status()
    assert (told["started"], told["is_leader"]) == (False, False)
    assert status()["leader"] is None


def test_get_status_counts_across_restarts(work: Clockwork) -> None:
    """changed: the seed counts in memory."""
    hourly("seed.a", overlap="allow")
    work.turn()
    work.go(at(13))
    successor = Clockwork(work.clock)
    successor.turn()
    successor.go(at(14))
    assert status()["schedules"][0]["fires"] == 2


# pruneTickClaims


def claim(moment: datetime, **values: Any) -> None:
    columns = {"namespace": "default", "name": "seed.a", "claimed_at": moment, "outcome": "fired"}
    TickClaim.objects.create(scheduled_at=moment, **columns | values)


def test_prune_tick_claims_deletes_what_is_strictly_older(work: Clockwork) -> None:
    for seconds in (59, 60, 61):
        claim(at(12) - timedelta(seconds=seconds))
    assert prune_tick_claims(60) == 1
    assert prune_tick_claims(60) == 0
    assert TickClaim.objects.count() == 2


def test_prune_tick_claims_without_an_age_goes_by_the_retention(
    work: Clockwork, configure: Configure
) -> None:
    claim(at(12) - timedelta(days=7, seconds=1))
    claim(at(11))
    assert prune_tick_claims() == 1
    configure(TICK_RETENTION=60)
    assert prune_tick_claims() == 1


def test_prune_tick_claims_0_is_an_age(work: Clockwork) -> None:
    claim(at(11, 59, 59))
    claim(at(12))
    assert prune_tick_claims(0) == 1


def test_prune_tick_claims_leaves_runs_that_are_not_over(work: Clockwork) -> None:
    """changed: the seed deletes them too; here they say whose run is in flight."""
    claim(at(1), open=True)
    assert prune_tick_claims(0) == 0


def test_prune_tick_claims_is_told_if_any(work: Clockwork) -> None:
    """changed: with the age in seconds, not the moment."""
    with Ear() as ear:
        prune_tick_claims(60)
        claim(at(11))
        prune_tick_claims(60)
    (event,) = ear.events
    assert (event.action, event.outcome) == ("scheduler.tick.pruned", "success")
    assert event.metadata == {"rows_deleted": 1, "older_than": 60.0}


# _maybePruneTickClaims


def test_maybe_prune_is_throttled(work: Clockwork) -> None:
    now = [0.0]
    pruner = TickPruner("default", now=lambda: now[0])
    claim(at(12) - timedelta(days=8))
    assert not pruner.step(connection)
    assert not TickClaim.objects.exists()
    claim(at(12) - timedelta(days=8))
    for now[0] in (1.0, 59.9):
        pruner.step(connection)
        assert TickClaim.objects.exists()
    now[0] = 60.0
    pruner.step(connection)
    assert not TickClaim.objects.exists()


@pytest.mark.parametrize("retention", [0, -1])
def test_maybe_prune_never_with_a_retention_of_0_or_less(
    work: Clockwork, configure: Configure, retention: int
) -> None:
    configure(TICK_RETENTION=retention)
    claim(at(12) - timedelta(days=4_000))
    TickPruner("default").step(connection)
    assert TickClaim.objects.exists()


def test_maybe_prune_takes_a_batch_at_a_time(
    work: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """changed: the seed deletes everything in one statement, beside a fire."""
    monkeypatch.setattr(ledger, "BATCH", 2)
    for second in range(5):
        claim(at(1, 0, second) - timedelta(days=8))
    pruner = TickPruner("default")
    assert [pruner.step(connection) for _ in range(3)] == [True, True, False]
    assert not TickClaim.objects.exists()
