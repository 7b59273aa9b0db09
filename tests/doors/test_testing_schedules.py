"""The test helpers and schedules: walks on which their ticks fire, inside plain TestCases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest
from asgiref.sync import async_to_sync
from django.test import TestCase, TransactionTestCase, override_settings

from django_durable_jobs import (
    JobContext,
    Retry,
    enqueue,
    fire_now,
    pause_schedule,
    register_handler,
    resume_schedule,
    schedule,
    status,
)
from django_durable_jobs.db import statements_for, transaction
from django_durable_jobs.errors import DurableJobsError, InvalidJob, UnknownSchedule
from django_durable_jobs.ids import uuid7
from django_durable_jobs.models import Job, Leader, Schedule, TickClaim, TickGap
from django_durable_jobs.registry import handlers, schedules
from django_durable_jobs.testing import arun_until, clock, run_due, run_until
from tests.app.models import Note
from tests.factories import assert_queue_is_sound
from tests.hearing import Ear

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


def at(hour: int, minute: int = 0, *, day: int = 4) -> datetime:
    return datetime(2026, 5, day, hour, minute, tzinfo=UTC)


class Walks:
    """What a walk with schedules does, inside of a transaction and without one."""

    enterContext: Any
    ran: list[datetime]

    def setUp(self) -> None:
        self.enterContext(handlers.preserved())
        self.enterContext(schedules.preserved())
        for each in schedules.all():
            schedules.remove(each)
        self.ran = []
        self.time = self.enterContext(clock(NOON))

    def tearDown(self) -> None:
        assert_queue_is_sound()

    def hourly(self, name: str = "s", **options: Any) -> None:
        def note(context: JobContext) -> None:
            self.ran.append(context.scheduled_at)
            Note.objects.create(text=name)

        options = {"cron": "0 * * * *", "timezone": "UTC", **options}
        schedule(name, run=note, takes_context=True, **options)

    def test_ticks_fire_on_the_way_each_at_its_time(self) -> None:
        self.hourly()
        attempts = run_until(at(15), schedules=True)
        assert self.ran == [at(13), at(14), at(15)]
        assert [each.completed_at for each in attempts] == [at(13), at(14), at(15)]
        assert Note.objects.count() == 3
        assert self.time.value == at(15)
        told = Schedule.objects.get()
        assert (told.fires, told.running, told.last_finish) == (3, False, at(15))
        assert told.next_fire == at(16)
        assert TickClaim.objects.filter(outcome="fired", open=False).count() == 3

    def test_without_being_asked_for_no_schedule_fires(self) -> None:
        self.hourly()
        enqueue("nobody")
        for none in (False, [], ()):
            assert run_until(self.time.value + timedelta(hours=2), schedules=none) == []
        assert not Schedule.objects.exists()
        assert not Leader.objects.exists()

    def test_only_the_schedules_named_fire(self) -> None:
        self.hourly("a")
        self.hourly("b")
        attempts = run_until(at(13), schedules=["b"])
        assert [each.job.type for each in attempts] == ["schedule:b"]
        assert [each.name for each in Schedule.objects.all()] == ["b"]

    def test_one_walk_goes_on_where_the_last_ended(self) -> None:
        self.hourly()
        for hour in (13, 14, 15):
            assert len(run_until(at(hour, 30), schedules=["s"])) == 1
        assert self.ran == [at(13), at(14), at(15)]

    def test_ticks_and_other_jobs_come_in_their_order(self) -> None:
        self.hourly()
        order: list[str] = []
        register_handler("it", lambda name: order.append(name))
        enqueue("it", {"name": "half past"}, run_at=at(13, 30))
        schedule("t", cron="0 * * * *", timezone="UTC", job="it", payload={"name": "tick"})
        run_until(at(14), schedules=["t"], raise_errors=True)
        assert order == ["tick", "half past", "tick"]

    def test_what_a_tick_enqueues_runs_too(self) -> None:
        register_handler("it", lambda: None)
        schedule(
            "s",
            cron="0 13 * * *",
            timezone="UTC",
            run=lambda: enqueue("it", run_at=at(13, 10)) and None,
        )
        attempts = run_until(at(13, 10), schedules=True, raise_errors=True)
        assert [each.job.type for each in attempts] == ["schedule:s", "it"]

    def test_jitter_is_waited_for(self) -> None:
        self.hourly(jitter=600)
        [attempt] = run_until(at(13, 10), schedules=True)
        assert self.ran == [at(13)]
        assert at(13) < attempt.job.run_at == attempt.completed_at

    def test_a_run_that_waits_for_its_retry_lets_the_next_tick_be_skipped(self) -> None:
        tries: list[int] = []

        def later(context: JobContext) -> None:
            tries.append(context.attempt)
            if context.attempt == 1:
                raise Retry(after=900)

        register_handler("it", later, takes_context=True, max_attempts=2)
        schedule("t", cron="*/10 * * * *", timezone="UTC", job="it")
        run_until(at(12, 29), schedules=["t"])
        assert tries == [1, 2]
        assert [(each.scheduled_at, each.outcome) for each in TickClaim.objects.order_by("id")] == [
            (at(12, 10), "fired"),
            (at(12, 20), "skipped"),
        ]
        assert Schedule.objects.get().misses == 1

    def test_overlap_queue_runs_the_tick_that_waited_when_its_turn_comes(self) -> None:
        ran: list[datetime] = []

        def later(context: JobContext) -> None:
            ran.append(self.time.value)
            if context.attempt == 1 and len(ran) == 1:
                raise Retry(after=900)

        register_handler("it", later, takes_context=True, max_attempts=2)
        schedule("t", cron="*/10 * * * *", timezone="UTC", job="it", overlap="queue")
        run_until(at(12, 29), schedules=True)
        assert ran == [at(12, 10), at(12, 25), at(12, 25)]

    def test_a_failure_is_noted_and_raised_if_wanted(self) -> None:
        schedule("s", cron="0 * * * *", timezone="UTC", run=lambda: 1 / 0, pause_after_failures=2)
        with pytest.raises(ZeroDivisionError):
            run_until(at(13), schedules=True, raise_errors=True)
        attempts = run_until(at(18), schedules=True)
        assert len(attempts) == 1
        told = Schedule.objects.get()
        assert "paused itself after 2 failures" in told.paused_reason
        assert told.last_error.startswith("ZeroDivisionError")

    def test_what_the_clock_was_moved_past_was_missed(self) -> None:
        self.hourly("s")
        self.hourly("t", catch_up="last", catch_up_window=86_400)
        run_until(NOON, schedules=True)
        self.time.move_to(at(15, 30))
        run_until(at(15, 30), schedules=True)
        assert self.ran == [at(15)]
        gaps = TickGap.objects.order_by("name").values_list("name", "first", "last")
        assert list(gaps) == [("s", at(13), at(15)), ("t", at(13), at(14))]

    def test_a_walk_of_no_length_makes_a_schedule_known(self) -> None:
        self.hourly()
        with pytest.raises(UnknownSchedule):
            pause_schedule("s")
        assert run_until(NOON, schedules=["s"]) == []
        pause_schedule("s")
        assert run_until(at(13, 30), schedules=["s"]) == []
        fire_now("s")
        assert len(run_due()) == 1
        resume_schedule("s")
        assert len(run_until(at(14), schedules=["s"])) == 1
        assert self.ran == [at(13, 30), at(14)]

    def test_an_interval_counts_from_the_first_walk(self) -> None:
        schedule("s", every=timedelta(minutes=50), run=lambda: self.ran.append(self.time.value))
        run_until(at(13, 30), schedules=True)
        run_until(at(14, 30), schedules=True)
        assert self.ran == [at(12, 50), at(13, 40), at(14, 30)]

    def test_nobody_leads_afterwards_also_where_it_raises(self) -> None:
        self.hourly()
        run_until(at(13), schedules=True)
        assert Leader.objects.get().worker is None
        schedule("bad", cron="0 14 * * *", timezone="UTC", run=lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run_until(at(14), schedules=True, raise_errors=True)
        assert status()["leader"] is None

    def test_a_worker_that_leads_is_not_disturbed(self) -> None:
        self.hourly()
        with transaction("default") as connection:
            statements_for(connection).take_lead("default", uuid7(), lease=30)
        with pytest.raises(DurableJobsError, match="A worker leads") as caught:
            run_until(at(13), schedules=True)
        assert caught.value.code == "led-already"
        assert Job.objects.count() == 0

    def test_a_tick_whose_job_is_refused_is_the_tests_to_hear_of(self) -> None:
        register_handler("it", lambda n: None)
        schedule("s", cron="0 * * * *", timezone="UTC", job="it", payload={"m": 1})
        self.hourly("t")
        with pytest.raises(InvalidJob, match="payload"):
            run_until(at(13), schedules=True)

    def test_a_schedule_without_end_is_stopped_by_the_limit(self) -> None:
        schedule("s", every=1, run=lambda: None, overlap="allow")
        with pytest.raises(DurableJobsError, match=r"schedule:s \(20\)") as caught:
            run_until(at(13), schedules=True, limit=20)
        assert caught.value.code == "limit"

    def test_unknown_names_are_told_with_the_nearest(self) -> None:
        self.hourly("nightly")
        with pytest.raises(UnknownSchedule, match="did you mean 'nightly'"):
            run_until(at(13), schedules=["nightli"])
        with pytest.raises(TypeError, match="a list of names"):
            run_until(at(13), schedules="nightly")

    def test_the_audit_trail_hears_of_it(self) -> None:
        self.hourly()
        with Ear() as ear:
            run_until(at(13), schedules=True)
        assert "job.enqueued" in ear.actions
        assert ear.actions[-1] == "scheduler.task.success"

    def test_the_async_twin_does_the_same(self) -> None:
        self.hourly()
        assert len(async_to_sync(arun_until)(at(14), schedules=["s"])) == 2

    @override_settings(USE_TZ=False, TIME_ZONE="Europe/Vienna")
    def test_naive_times_are_local_where_the_project_has_no_time_zones(self) -> None:
        """Through the hour that its clocks show twice."""
        self.time.move_to(datetime(2026, 10, 25, 0, 30))
        self.hourly("s", cron="30 * * * *", timezone=None, start=datetime(2026, 10, 25, 2, 0))
        attempts = run_until(datetime(2026, 10, 25, 3, 30), schedules=True)
        expected = [datetime(2026, 10, 25, hour, 30, tzinfo=UTC) for hour in (0, 1, 2)]
        assert self.ran == [each.completed_at for each in attempts] == expected
        assert list(TickClaim.objects.values_list("scheduled_at", flat=True)) == expected
        assert Schedule.objects.get().next_fire == datetime(2026, 10, 25, 3, 30, tzinfo=UTC)
        with pytest.raises(ValueError, match="is past"):
            run_until(datetime(2026, 10, 25, 3, 29), schedules=True)

    def test_only_its_own_namespace_fires(self) -> None:
        self.hourly()
        run_until(at(13), "other", schedules=True)
        assert Schedule.objects.get().namespace == Job.objects.get().namespace == "other"


class WalksInATestCase(Walks, TestCase):
    pass


class WalksWithoutATransaction(Walks, TransactionTestCase):
    databases: ClassVar[set[str]] = {"default"}
