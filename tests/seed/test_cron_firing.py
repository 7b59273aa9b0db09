"""S2 _arm, _fireOnce, _runFire: when a schedule fires, what a fire is, and what it came to.

By a leader without a thread, whose clock stands still until a test moves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from django_durable_jobs import fire_now, register_handler, schedule
from django_durable_jobs.errors import DurableJobsError, InvalidJob, UnknownSchedule
from django_durable_jobs.models import Job, Schedule, TickClaim, TickGap
from django_durable_jobs.registry import schedules
from django_durable_jobs.states import State
from django_durable_jobs.testing import run_due
from django_durable_jobs.ticks import LeadershipLost, firing
from django_durable_jobs.worker.skips import Skips
from tests.clockwork import Clockwork, at, clockwork, end, fired, jobs, row
from tests.hearing import Ear

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def work(transactional_db: None) -> Iterator[Clockwork]:
    with clockwork() as each:
        yield each


def minutely(work: Clockwork, **options: Any) -> None:
    options = {"cron": "* * * * *", "timezone": "UTC", "run": lambda: None, **options}
    schedule("seed.a", **options)
    work.turn()


def told(ear: Ear, action: str) -> list[Any]:
    return [each for each in ear.events if each.action == f"scheduler.{action}"]


# _arm


def test_arm_fires_at_the_time_and_not_before(work: Clockwork) -> None:
    minutely(work)
    assert work.go(at(12, 0, 59)) == 1
    assert fired("seed.a") == []
    work.go(at(12, 1))
    assert fired("seed.a") == [at(12, 1)]


def test_arm_what_is_overdue_fires_at_once(work: Clockwork) -> None:
    minutely(work)
    work.go(at(12, 1, 40))
    assert fired("seed.a") == [at(12, 1)]


def test_arm_a_far_time_is_waited_for(work: Clockwork) -> None:
    """changed: the seed's timer overflows after 24.8 days and fires without end."""
    minutely(work, cron="0 0 1 1 *")
    seconds = work.turn()
    assert seconds == (at(0, day=1).replace(year=2027, month=1) - at(12)).total_seconds()
    work.go(30 * 86_400)
    assert fired("seed.a") == []
    assert row("seed.a").misses == 0


# _fireOnce: the run before


def test_fire_once_while_the_run_before_is_in_flight_is_a_miss(work: Clockwork) -> None:
    minutely(work)
    work.go(at(12, 1))
    with Ear() as ear:
        work.go(at(12, 2))
    assert fired("seed.a") == [at(12, 1)]
    assert (row("seed.a").fires, row("seed.a").misses) == (1, 1)
    (event,) = told(ear, "task.skipped")
    assert (event.outcome, event.reason) == ("denied", "previous-run-in-flight")
    assert event.metadata == {"name": "seed.a"}


def test_fire_once_a_miss_advances_the_next_fire(work: Clockwork) -> None:
    """changed: the seed arms for the time that has passed, and counts the same miss for ever."""
    minutely(work)
    work.go(at(12, 1))
    work.walk(at(12, 3, 30), step=1)
    assert row("seed.a").misses == 2
    assert row("seed.a").next_fire == at(12, 4)


# _fireOnce: leaders and claims


def test_fire_once_not_leader_counts_what_it_left_to_the_leader(work: Clockwork) -> None:
    """changed: written once a minute, and no next time is kept: the row has it."""
    minutely(work)
    now = [0.0]
    skips = Skips("default", schedules.all(), monotonic=lambda: now[0])
    for _ in range(2):
        skips.flush(connection)
        work.clock.advance(300)
        now[0] += 300
    skips.flush(connection)
    kept = row("seed.a")
    assert (kept.non_leader_skips, kept.fires, kept.next_fire) == (10, 0, at(12, 1))


def test_fire_once_one_that_leads_no_longer_fires_nothing(work: Clockwork) -> None:
    minutely(work)
    Clockwork(work.clock)
    with pytest.raises(LeadershipLost):
        work.go(at(12, 1))
    assert not TickClaim.objects.exists()
    assert not Job.objects.exists()


def test_fire_once_next_run_is_forward_from_now(work: Clockwork) -> None:
    minutely(work)
    work.go(at(15, 0, 20))
    assert fired("seed.a") == [at(15)]
    assert row("seed.a").next_fire == at(15, 1)


def test_fire_once_ticks_that_were_missed_are_on_record(work: Clockwork) -> None:
    """changed: the seed forgets them."""
    minutely(work)
    work.go(at(15, 0, 20))
    gap = TickGap.objects.get()
    assert (gap.first, gap.last, gap.count) == (at(12, 1), at(14, 59), 179)


def test_fire_once_claims_the_tick(work: Clockwork) -> None:
    minutely(work)
    work.go(at(12, 1, 5))
    claim = TickClaim.objects.get()
    assert (claim.name, claim.scheduled_at, claim.claimed_at) == ("seed.a", at(12, 1), at(12, 1, 5))
    assert claim.claimed_by == work.worker


def test_fire_once_claim_and_job_are_one_fact(
    work: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """changed: the seed claims first, so that a death in between loses the fire."""

    def dies(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    minutely(work)
    monkeypatch.setattr(firing, "enqueue_many", dies)
    with pytest.raises(KeyboardInterrupt):
        work.go(at(12, 1))
    assert not TickClaim.objects.exists()
    monkeypatch.undo()
    work.go(1)
    assert fired("seed.a") == [at(12, 1)]
    assert Job.objects.count() == 1


def test_fire_once_a_lost_race_is_counted_and_skipped(work: Clockwork) -> None:
    minutely(work)
    TickClaim.objects.create(
        namespace="default",
        name="seed.a",
        scheduled_at=at(12, 1),
        claimed_at=at(12),
        outcome="fired",
    )
    with Ear() as ear:
        work.go(at(12, 1))
    assert not Job.objects.exists()
    assert (row("seed.a").tick_claim_lost, row("seed.a").fires) == (1, 0)
    (event,) = told(ear, "tick.lost")
    assert event.outcome == "denied"
    assert event.metadata == {
        "name": "seed.a",
        "tick_key": "seed.a:2026-05-04T12:01:00+00:00",
        "claimed_by": str(work.worker),
    }


def test_fire_once_a_failed_claim_is_told_and_tried_again(
    work: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """changed: the seed gives that tick up."""

    def refuse(*args: object, **options: object) -> None:
        raise InvalidJob("payload: not today", field="payload", path="payload")

    minutely(work)
    monkeypatch.setattr(firing, "enqueue_many", refuse)
    with Ear() as ear:
        work.go(at(12, 1))
    (event,) = told(ear, "tick.error")
    assert (event.outcome, event.reason) == ("failure", "invalid-job")
    assert event.metadata == {"name": "seed.a", "tick_key": "seed.a:2026-05-04T12:01:00+00:00"}
    monkeypatch.undo()
    assert work.ticker is not None
    work.ticker._failing["seed.a"].again_at = 0.0
    work.go(5)
    assert fired("seed.a") == [at(12, 1)]


def test_fire_once_by_name_is_fire_now(work: Clockwork) -> None:
    """changed: a call of everybody's, which leaves a record; the next tick stays where it is."""
    minutely(work)
    job = fire_now("seed.a")
    assert (job.type, TickClaim.objects.get().outcome) == ("schedule:seed.a", "manual")
    assert row("seed.a").next_fire == at(12, 1)
    with pytest.raises(UnknownSchedule, match=r"There is no schedule 'seed\.b'"):
        fire_now("seed.b")


# _runFire


def test_run_fire_counts_and_marks_it_running(work: Clockwork) -> None:
    minutely(work)
    work.go(at(12, 1, 3))
    kept = row("seed.a")
    assert (kept.fires, kept.running, kept.last_run) == (1, True, at(12, 1, 3))


def test_run_fire_job_is_enqueued_with_its_payload_and_options(work: Clockwork) -> None:
    minutely(work, run=None, job="seed.job", payload={"n": 1}, owner_id="acme", priority=5)
    work.go(at(12, 1))
    (job,) = jobs("seed.a")
    assert (job.type, job.payload, job.owner_id) == ("seed.job", {"n": 1}, "acme")
    assert job.priority == 5


def test_run_fire_function_runs_as_a_job(work: Clockwork) -> None:
    """changed: on whichever worker is free, not in the leader's process."""
    ran = []
    minutely(work, run=lambda: ran.append(1))
    work.go(at(12, 1))
    assert ran == []
    (attempt,) = run_due(raise_errors=True)
    assert (attempt.job.type, ran) == ("schedule:seed.a", [1])


def test_run_fire_success(work: Clockwork) -> None:
    minutely(work)
    Schedule.objects.update(last_error="ValueError: of the run before")
    work.go(at(12, 1))
    work.clock.advance(2)
    end(jobs("seed.a")[0])
    with Ear() as ear:
        work.go(1)
    kept = row("seed.a")
    assert (kept.running, kept.last_finish, kept.last_error) == (False, at(12, 1, 2), "")
    (event,) = told(ear, "task.success")
    assert event.outcome == "success"
    assert event.metadata == {
        "name": "seed.a",
        "kind": "cron",
        "duration": 2.0,
        "via_job": False,
    }


def test_run_fire_failure(work: Clockwork) -> None:
    """changed: the event's reason is the error's class, since its words may hold a payload."""
    minutely(work)
    work.go(at(12, 1))
    work.clock.advance(2)
    end(jobs("seed.a")[0], State.FAILED, error="ValueError: no")
    with Ear() as ear:
        work.go(1)
    kept = row("seed.a")
    assert (kept.running, kept.last_finish) == (False, at(12, 1, 2))
    assert kept.last_error == "ValueError: no"
    (event,) = told(ear, "task.failure")
    assert (event.outcome, event.reason) == ("failure", "ValueError")
    assert event.metadata["via_job"] is False


def test_run_fire_of_a_job_is_over_when_the_job_is(work: Clockwork) -> None:
    """changed: the seed's is over when the job is enqueued, so that overlap means nothing."""
    register_handler("seed.job", lambda: 1 / 0)
    minutely(work, run=None, job="seed.job")
    work.go(at(12, 1))
    assert row("seed.a").running
    with Ear() as ear:
        run_due()
        work.go(1)
    assert not row("seed.a").running
    (event,) = told(ear, "task.failure")
    assert event.metadata["via_job"] is True
    assert event.reason.startswith("ZeroDivisionError")


def test_run_fire_of_an_interval_says_so(work: Clockwork) -> None:
    minutely(work, cron=None, every=60)
    work.go(at(12, 1))
    end(jobs("seed.a")[0])
    with Ear() as ear:
        work.go(timedelta(seconds=1).total_seconds())
    (event,) = told(ear, "task.success")
    assert event.metadata["kind"] == "every"


def test_scheduler_error_has_a_code(work: Clockwork) -> None:
    """changed: other codes, the same on every release; also standard errors of Python."""
    with pytest.raises(DurableJobsError) as caught:
        schedule("seed.a", cron="nonsense", run=lambda: None)
    assert (caught.value.code, isinstance(caught.value, ValueError)) == ("invalid-cron", True)
    with pytest.raises(LookupError) as unknown:
        fire_now("seed.a")
    assert unknown.value.code == "unknown-schedule"  # type: ignore[attr-defined]
