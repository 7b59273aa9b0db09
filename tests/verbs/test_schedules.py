"""Pause, resume and fire a schedule by hand, and prune the record of ticks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db.transaction import atomic, set_rollback

from django_durable_jobs import (
    afire_now,
    apause_schedule,
    aprune_tick_claims,
    aresume_schedule,
    enqueue,
    fire_now,
    job,
    pause_schedule,
    prune_tick_claims,
    requeue,
    resume_schedule,
    schedule,
    ticks,
)
from django_durable_jobs.db import transaction
from django_durable_jobs.errors import (
    AlreadyRunning,
    InvalidJob,
    InvalidSchedule,
    UnknownSchedule,
)
from django_durable_jobs.models import Job, Schedule, TickClaim, TickGap
from django_durable_jobs.registry import handlers, schedules
from django_durable_jobs.states import State
from django_durable_jobs.testing import run_due
from django_durable_jobs.ticks import ledger
from tests.clockwork import Clockwork, at, clockwork, end, fired, jobs, missed, row
from tests.hearing import Ear

pytestmark = pytest.mark.django_db(transaction=True)

TOKYO = timezone(timedelta(hours=9))


@pytest.fixture
def work(transactional_db: None) -> Iterator[Clockwork]:
    with clockwork() as each:
        yield each


def hourly(work: Clockwork, name: str = "s", **options: Any) -> None:
    """Declare a schedule that fires every hour, and have the leader take it."""
    schedule(name, run=lambda: None, **{"cron": "0 * * * *", "timezone": "UTC", **options})
    work.start()


# Pause and resume


def test_a_paused_schedule_does_not_fire_and_says_by_whom_and_why(work: Clockwork) -> None:
    hourly(work)
    work.go(at(12, 30))
    pause_schedule("s", by="ann", reason="the mail server is away")
    kept = row("s")
    assert (kept.paused_at, kept.paused_by) == (at(12, 30), "ann")
    assert kept.paused_reason == "the mail server is away"
    work.walk(at(15), step=300)
    assert fired("s") == []


def test_what_fell_into_a_pause_is_in_the_ledger_and_never_fires(work: Clockwork) -> None:
    hourly(work, catch_up="all")
    pause_schedule("s")
    work.walk(at(14, 30), step=300)
    resume_schedule("s")
    work.walk(at(15), step=300)
    assert fired("s") == [at(15)]
    assert missed("s") == [(at(13), at(14), 2, "paused")]
    kept = row("s")
    assert (kept.paused_at, kept.paused_by, kept.paused_reason) == (None, "", "")


def test_a_pause_that_nobody_led_through_counts_as_one(work: Clockwork) -> None:
    hourly(work, catch_up="all", catch_up_window=86_400)
    pause_schedule("s")
    work.clock.move_to(at(15, 30))
    resume_schedule("s")
    work.turn()
    assert fired("s") == []
    assert missed("s") == [(at(13), at(15), 3, "paused")]


def test_paused_twice_it_stays_as_it_was_paused_first(work: Clockwork) -> None:
    hourly(work)
    pause_schedule("s", by="ann")
    work.clock.advance(60)
    pause_schedule("s", by="bob", reason="other")
    kept = row("s")
    assert (kept.paused_at, kept.paused_by, kept.paused_reason) == (at(12), "ann", "")


def test_resuming_what_is_not_paused_changes_nothing(work: Clockwork) -> None:
    hourly(work)
    before = Schedule.objects.values().get()
    assert resume_schedule("s") is False
    assert Schedule.objects.values().get() == before
    assert pause_schedule("s") is True
    assert resume_schedule("s") is True


def test_a_pause_outlives_an_edit_of_the_schedule(work: Clockwork) -> None:
    hourly(work)
    pause_schedule("s", by="ann")
    old = schedules.get("s")
    assert old is not None
    schedules.remove(old)
    schedule("s", cron="*/5 * * * *", job="some.type", timezone="UTC")
    work.start()
    work.walk(at(12, 30), step=60)
    assert (row("s").when, row("s").paused_by) == ("cron */5 * * * * UTC", "ann")
    assert fired("s") == []


def test_resuming_forgets_the_failures_and_the_tick_that_waited(work: Clockwork) -> None:
    hourly(work, overlap="queue")
    work.go(at(13))
    work.go(at(14))
    assert row("s").waiting == at(14)
    Schedule.objects.update(failures_in_row=3)
    pause_schedule("s")
    resume_schedule("s")
    assert (row("s").waiting, row("s").failures_in_row) == (None, 0)
    end(jobs("s")[0])
    work.go(60)
    assert fired("s") == [at(13)]


def test_a_job_that_was_put_in_before_the_pause_still_runs(work: Clockwork) -> None:
    hourly(work)
    work.go(at(13))
    pause_schedule("s")
    assert [attempt.state for attempt in run_due()] == ["completed"]


def test_pause_and_resume_are_rolled_back_with_the_callers_transaction(work: Clockwork) -> None:
    hourly(work)
    with atomic():
        pause_schedule("s")
        assert row("s").paused_at is not None
        set_rollback(True)
    assert row("s").paused_at is None
    pause_schedule("s")
    with atomic():
        resume_schedule("s")
        set_rollback(True)
    assert row("s").paused_at is not None


@pytest.mark.parametrize("wrong", [{"by": 7}, {"reason": None}, {"namespace": ""}, {"using": "x"}])
def test_pause_takes_text(work: Clockwork, wrong: dict[str, Any]) -> None:
    hourly(work)
    with pytest.raises(InvalidJob):
        pause_schedule("s", **wrong)
    assert row("s").paused_at is None


# Names


@pytest.mark.parametrize("verb", [pause_schedule, resume_schedule, fire_now])
def test_an_unknown_name_is_told_with_the_nearest(work: Clockwork, verb: Any) -> None:
    hourly(work, "nightly-report")
    with pytest.raises(UnknownSchedule) as caught:
        verb("nightly-raport")
    assert str(caught.value) == (
        "There is no schedule 'nightly-raport' in the namespace 'default'"
        " (did you mean 'nightly-report'?)."
    )
    with pytest.raises(LookupError):
        verb("nightly-report", namespace="other")
    assert Job.objects.count() == 0


@pytest.mark.parametrize("verb", [pause_schedule, resume_schedule, fire_now])
@pytest.mark.parametrize("name", [7, None, b"s", ["s"]])
def test_a_name_is_text(work: Clockwork, verb: Any, name: Any) -> None:
    with pytest.raises(InvalidJob, match="name: must be text"):
        verb(name)


@pytest.mark.parametrize("name", ["", " s", "s\x00", "x" * 5_000, "S"])
def test_a_name_is_taken_byte_for_byte(work: Clockwork, name: str) -> None:
    hourly(work)
    with pytest.raises(UnknownSchedule):
        fire_now(name)


@pytest.mark.parametrize("verb", [pause_schedule, resume_schedule, fire_now])
def test_a_schedule_that_no_worker_has_taken_yet_is_told_as_such(
    work: Clockwork, verb: Any
) -> None:
    schedule("s", every=60, run=lambda: None)
    with pytest.raises(UnknownSchedule, match="no worker of the namespace 'default' has taken it"):
        verb("s")


def test_a_schedule_whose_code_is_gone_can_be_paused_and_not_fired(work: Clockwork) -> None:
    hourly(work)
    declaration = schedules.get("s")
    assert declaration is not None
    schedules.remove(declaration)
    pause_schedule("s")
    assert row("s").paused_at is not None
    with pytest.raises(UnknownSchedule, match="is not declared in this process"):
        fire_now("s")


def test_each_namespace_has_its_own_schedule_of_a_name(work: Clockwork) -> None:
    hourly(work)
    with transaction("default") as connection:
        ticks.declare(connection, "other", {each.name: each for each in schedules.all()})
    pause_schedule("s", namespace="other")
    job = fire_now("s", namespace="other")
    assert job.namespace == "other"
    paused = Schedule.objects.filter(paused_at__isnull=False)
    assert list(paused.values_list("namespace", "fires")) == [("other", 1)]
    assert TickClaim.objects.get().namespace == "other"
    assert fire_now("s").namespace == "default"
    resume_schedule("s", namespace="other")
    assert not paused.exists()


# Fire now


def test_a_fire_by_hand_is_a_job_with_its_claim_and_shifts_nothing(work: Clockwork) -> None:
    hourly(work, max_run=77)
    work.go(at(12, 20))
    job = fire_now("s")
    assert (job.type, job.state, job.timeout) == ("schedule:s", State.QUEUED, 77)
    assert (job.run_at, job.target) == (at(12, 20), {"kind": "schedule", "id": "s"})
    tick = TickClaim.objects.get()
    assert (tick.scheduled_at, tick.outcome, tick.reason) == (at(12, 20), "manual", "")
    assert (tick.claimed_by, tick.job_id, tick.open) == (None, job.pk, True)
    kept = row("s")
    assert (kept.fires, kept.last_run, kept.last_job_id) == (1, at(12, 20), job.pk)
    assert (kept.running, kept.next_fire) == (True, at(13))
    end(job)
    work.go(at(13))
    assert fired("s") == [at(13)]
    assert row("s").fires == 2


def test_a_fire_by_hand_ignores_the_pause_and_leaves_it(work: Clockwork) -> None:
    hourly(work)
    pause_schedule("s", by="ann")
    assert fire_now("s").state == State.QUEUED
    assert row("s").paused_by == "ann"


def test_a_fire_by_hand_of_a_declared_job_takes_what_the_schedule_gives_it(
    work: Clockwork,
) -> None:
    @job("it")
    def work_on(n: int) -> None: ...

    schedule("s", every=60, job=work_on, payload={"n": 1}, owner_id="acme", queue="slow")
    work.start()
    fired_job = fire_now("s")
    assert (fired_job.type, fired_job.payload, fired_job.owner_id) == ("it", {"n": 1}, "acme")
    assert (fired_job.queue, fired_job.meta["schedule"]) == ("slow", "s")


def test_a_fire_by_hand_waits_for_the_run_before_unless_forced(work: Clockwork) -> None:
    hourly(work)
    work.go(at(13))
    (first,) = jobs("s")
    with pytest.raises(AlreadyRunning, match=f"job {first.pk}"):
        fire_now("s")
    work.clock.advance(60)
    second = fire_now("s", force=True)
    assert second.pk != first.pk
    for each in (first, second):
        end(each)
    work.clock.advance(60)
    assert fire_now("s").state == State.QUEUED


def test_a_run_is_in_flight_also_where_an_operator_requeued_it(work: Clockwork) -> None:
    hourly(work)
    first = fire_now("s")
    end(first, State.FAILED)
    work.go(1)
    assert not row("s").running
    requeue(first.pk)
    with pytest.raises(AlreadyRunning, match=f"job {first.pk}"):
        fire_now("s")


def test_a_run_by_hand_is_in_flight_for_the_next_tick(work: Clockwork) -> None:
    hourly(work)
    work.go(at(12, 59))
    fire_now("s")
    work.go(at(13))
    assert fired("s", "skipped") == [at(13)]


def test_fired_twice_in_one_instant_it_runs_once(work: Clockwork) -> None:
    hourly(work)
    fire_now("s", force=True)
    with pytest.raises(AlreadyRunning, match="at this very moment"):
        fire_now("s", force=True)
    assert Job.objects.count() == TickClaim.objects.count() == row("s").fires == 1


def test_a_fire_by_hand_is_rolled_back_with_the_callers_transaction(work: Clockwork) -> None:
    hourly(work)
    before = Schedule.objects.values().get()
    with atomic():
        fire_now("s")
        assert row("s").fires == 1
        set_rollback(True)
    assert Job.objects.count() == TickClaim.objects.count() == 0
    assert Schedule.objects.values().get() == before


def test_a_refused_fire_leaves_the_callers_transaction_usable(work: Clockwork) -> None:
    hourly(work)
    fire_now("s")
    with atomic():
        with pytest.raises(AlreadyRunning):
            fire_now("s")
        enqueue("it")
    assert Job.objects.filter(type="it").exists()


# Making up for a tick


def test_a_skipped_tick_can_be_made_up_for_once(work: Clockwork) -> None:
    hourly(work)
    work.go(at(13))
    work.go(at(14))
    assert fired("s", "skipped") == [at(14)]
    end(jobs("s")[0])
    work.clock.move_to(at(14, 20))
    job = fire_now("s", tick=at(14).astimezone(TOKYO))
    tick = TickClaim.objects.get(scheduled_at=at(14))
    assert (tick.outcome, tick.job_id, tick.open) == ("manual", job.pk, True)
    assert (tick.claimed_at, tick.claimed_by) == (at(14, 20), None)
    assert job.idempotency_key == "tick:s:2026-05-04T14:00:00+00:00"
    assert job.run_at == at(14)
    kept = row("s")
    # That it was missed is history.
    assert (kept.fires, kept.misses, kept.next_fire) == (2, 1, at(15))
    with pytest.raises(InvalidSchedule, match="was not missed, it was run by hand"):
        fire_now("s", tick=at(14), force=True)


def test_a_tick_inside_a_gap_can_be_made_up_for_once(work: Clockwork) -> None:
    hourly(work)
    work.turn()
    work.go(at(16, 30))
    assert missed("s") == [(at(13), at(16), 4, "downtime")]
    job = fire_now("s", tick=at(14))
    assert fired("s", "manual") == [at(14)]
    assert TickClaim.objects.get().job_id == job.pk
    assert missed("s") == [(at(13), at(16), 4, "downtime")]
    end(job)
    with pytest.raises(InvalidSchedule, match="was not missed, it was run by hand"):
        fire_now("s", tick=at(14))
    for each in (at(13), at(16)):
        end(fire_now("s", tick=each))
    assert row("s").fires == 3


def test_a_tick_of_a_pause_can_be_made_up_for_while_it_is_paused(work: Clockwork) -> None:
    hourly(work)
    pause_schedule("s")
    work.walk(at(14, 30), step=300)
    fire_now("s", tick=at(13))
    assert fired("s", "manual") == [at(13)]


def test_making_up_for_a_tick_waits_for_the_run_before_unless_forced(work: Clockwork) -> None:
    hourly(work)
    work.go(at(13))
    work.go(at(14))
    with pytest.raises(AlreadyRunning):
        fire_now("s", tick=at(14))
    assert fired("s", "skipped") == [at(14)]
    fire_now("s", tick=at(14), force=True)
    assert fired("s", "manual") == [at(14)]


@pytest.mark.parametrize(
    ("tick", "message"),
    [
        (at(14, 1), r"beside it are 2026-05-04 14:00:00\+00:00 and 2026-05-04 15:00:00\+00:00"),
        (at(12), "missed no tick"),
        (at(17), "missed no tick"),
        (datetime(2026, 5, 4, 14), "no aware datetime"),
        ("2026-05-04T14:00:00+00:00", "no aware datetime"),
        (0, "no aware datetime"),
    ],
)
def test_what_was_not_missed_cannot_be_made_up_for(
    work: Clockwork, tick: Any, message: str
) -> None:
    hourly(work)
    work.turn()
    work.go(at(16, 30))
    with pytest.raises(InvalidSchedule, match=message):
        fire_now("s", tick=tick)
    assert Job.objects.count() == 0


def test_a_tick_that_fired_cannot_be_made_up_for(work: Clockwork) -> None:
    hourly(work)
    work.go(at(13))
    end(jobs("s")[0])
    with pytest.raises(InvalidSchedule, match="was not missed, it fired"):
        fire_now("s", tick=at(13))


# What a run is told


@pytest.mark.parametrize("jitter", [0, 600])
def test_a_run_knows_the_time_of_its_tick(work: Clockwork, jitter: int) -> None:
    seen = []

    @schedule("s", cron="0 * * * *", timezone="UTC", jitter=jitter, takes_context=True)
    def note(context: Any) -> None:
        seen.append((context.scheduled_at, context.job.run_at))

    work.start()
    work.go(at(13))
    work.clock.move_to(at(13, 10))
    run_due(raise_errors=True)
    ((scheduled_at, run_at),) = seen
    assert scheduled_at == at(13)
    assert (run_at > at(13)) == bool(jitter)


def test_a_run_that_makes_up_for_a_tick_knows_that_tick(work: Clockwork) -> None:
    seen = []
    schedule(
        "s",
        cron="0 * * * *",
        timezone="UTC",
        run=lambda context: seen.append(context.scheduled_at),
        takes_context=True,
    )
    work.start()
    work.go(at(16, 30))
    fire_now("s", tick=at(14))
    run_due(raise_errors=True)
    work.turn()
    fire_now("s")
    run_due(raise_errors=True)
    assert seen == [at(14), at(16, 30)]


@pytest.mark.parametrize(
    ("key", "meta"),
    [
        ("tick:s:1", {}),
        ("tick:s:1", {"scheduled_at": 7}),
        ("tick:s:1", {"scheduled_at": "soon"}),
        ("tick:s:1", {"scheduled_at": "2026-05-04T13:00:00"}),
        ("mine", {"scheduled_at": "2026-05-04T13:00:00+00:00"}),
    ],
)
def test_of_any_other_job_it_is_when_it_was_to_run(
    work: Clockwork, key: str, meta: dict[str, Any]
) -> None:
    seen = []

    @job("it", takes_context=True)
    def note(context: Any) -> None:
        seen.append(context.scheduled_at)

    enqueue(note, run_at=at(11), idempotency_key=key, meta=meta)
    run_due(raise_errors=True)
    assert seen == [at(11)]


# Prune


def claim(moment: datetime, **values: Any) -> TickClaim:
    columns = {"namespace": "default", "name": "s", "claimed_at": moment, "outcome": "fired"}
    return TickClaim.objects.create(scheduled_at=moment, **columns | values)


def left() -> list[datetime]:
    ticks = TickClaim.objects.order_by("scheduled_at")
    return list(ticks.values_list("scheduled_at", flat=True))


def test_strictly_older_claims_are_pruned(work: Clockwork) -> None:
    for seconds in (3_601, 3_600, 3_599):
        claim(at(12) - timedelta(seconds=seconds))
    assert prune_tick_claims(3_600) == 1
    assert left() == [at(11), at(11, 0, 1)]
    assert prune_tick_claims(timedelta(hours=1)) == 0


def test_0_is_every_tick_that_is_past(work: Clockwork) -> None:
    for moment in (at(11, 59, 59), at(12), at(12, 0, 1)):
        claim(moment)
    assert prune_tick_claims(0) == 1
    assert left() == [at(12), at(12, 0, 1)]


def test_without_an_age_it_is_that_of_the_setting(work: Clockwork, settings: Any) -> None:
    claim(at(11) - timedelta(days=7))
    claim(at(11))
    assert prune_tick_claims() == 1
    settings.DURABLE_JOBS = {"TICK_RETENTION": 1_800}
    assert prune_tick_claims() == 1
    assert left() == []


@pytest.mark.parametrize("retention", [0, -1])
def test_a_setting_that_keeps_all_prunes_nothing_unless_asked_for(
    work: Clockwork, settings: Any, retention: int
) -> None:
    settings.DURABLE_JOBS = {"TICK_RETENTION": retention}
    claim(at(11) - timedelta(days=4_000))
    assert prune_tick_claims() == 0
    assert prune_tick_claims(86_400) == 1


def test_a_tick_whose_run_is_not_over_stays(work: Clockwork) -> None:
    claim(at(10), open=True)
    claim(at(11))
    assert prune_tick_claims(0) == 1
    assert left() == [at(10)]


def test_gaps_that_ended_before_go_too_and_are_not_counted(work: Clockwork) -> None:
    for first, last in ((at(1), at(2)), (at(3), at(11))):
        TickGap.objects.create(
            namespace="default", name="s", first=first, last=last, count=2, reason="downtime"
        )
    assert prune_tick_claims(7_200) == 0
    assert missed("s") == [(at(3), at(11), 2, "downtime")]


def test_more_than_a_batch_goes_in_several(
    work: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "BATCH", 3)
    for second in range(10):
        claim(at(11, 0, second))
        TickGap.objects.create(
            namespace="default", name=f"s{second}", first=at(11), last=at(11), count=1
        )
    assert prune_tick_claims(0) == 10
    assert TickGap.objects.count() == 0
    for number in range(10):  # gaps alone
        TickGap.objects.create(
            namespace="default", name=f"s{number}", first=at(11), last=at(11), count=1
        )
    assert prune_tick_claims(0) == 0
    assert TickGap.objects.count() == 0


def test_only_the_namespace_asked_for_is_pruned(work: Clockwork) -> None:
    claim(at(10))
    claim(at(11), namespace="other")
    assert prune_tick_claims(0, namespace="other") == 1
    assert left() == [at(10)]


def test_pruning_is_told_if_anything_was_deleted(work: Clockwork) -> None:
    claim(at(11))
    with Ear() as ear:
        prune_tick_claims(0)
        prune_tick_claims(0)
    (event,) = ear.events
    assert (event.action, event.outcome) == ("scheduler.tick.pruned", "success")
    assert event.metadata == {"rows_deleted": 1, "older_than": 0.0}


def test_pruning_is_rolled_back_with_the_callers_transaction(work: Clockwork) -> None:
    claim(at(11))
    with Ear() as ear, atomic():
        assert prune_tick_claims(0) == 1
        set_rollback(True)
    assert left() == [at(11)]
    assert ear.events == []


@pytest.mark.parametrize("age", ["1", float("nan"), True, b"1"])
def test_a_senseless_age_is_refused(work: Clockwork, age: Any) -> None:
    claim(at(11))
    with pytest.raises(ValueError, match="older_than"):
        prune_tick_claims(age)
    assert left() == [at(11)]


def test_a_pruned_tick_does_not_fire_again(work: Clockwork) -> None:
    hourly(work, catch_up="all")
    work.go(at(13))
    end(jobs("s")[0])
    work.go(1)
    assert prune_tick_claims(0) == 1
    work.start()
    work.go(at(13, 30))
    assert TickClaim.objects.count() == 0
    assert Job.objects.count() == 1


# Async


def test_the_twins_do_the_same(work: Clockwork) -> None:
    hourly(work)
    async_to_sync(apause_schedule)("s", by="ann")
    assert row("s").paused_by == "ann"
    job = async_to_sync(afire_now)("s")
    assert job.type == "schedule:s"
    async_to_sync(aresume_schedule)("s")
    assert row("s").paused_at is None
    claim(datetime(2026, 1, 1, tzinfo=UTC))
    assert async_to_sync(aprune_tick_claims)(0) == 1


def test_no_declaration_of_these_tests_stays() -> None:
    assert schedules.get("s") is None
    assert handlers.get("schedule:s") is None
