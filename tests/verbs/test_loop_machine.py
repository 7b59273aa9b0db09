"""Whatever is done to loop records, in whatever order: their jobs match.

At once, where the records' own signals tell of it; after a reconcile, where nothing does. Several
at the same moment: ``tests/races/test_loop_races.py``.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import override_settings
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from django_durable_jobs import cancel, request_stop, requeue
from django_durable_jobs.conf import settings as durable_settings
from django_durable_jobs.db import ManualClock, use_clock
from django_durable_jobs.errors import DurableJobsError, InvalidRecurrence, OccurrenceRefused
from django_durable_jobs.loops import sync_loops, syncing
from django_durable_jobs.loops.occurrences import occurrence_of
from django_durable_jobs.models import Execution, Job, QueueEntry
from tests.app.models import LoudReminder, Note, Reminder
from tests.factories import assert_queue_is_sound, make_execution
from tests.looping import assert_in_step, run

pytestmark = pytest.mark.django_db(transaction=True)

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)

# What can be written of a record, by whatever way.
SCHEDULES: list[dict[str, Any]] = [
    {"cron": "0 * * * *", "every": None},
    {"cron": "*/20 * * * *", "every": None},
    {"cron": "", "every": timedelta(minutes=25)},
    {"cron": "", "every": None},
    {"cron": "61 * * * *", "every": None},
]
values = st.one_of(
    st.sampled_from(SCHEDULES),
    st.builds(lambda minutes: {"next_run_at": minutes}, st.sampled_from([None, -300, 0, 10, 90])),
    st.builds(lambda on: {"enabled": on}, st.booleans()),
    st.builds(lambda who: {"owner_id": who}, st.sampled_from(["", "kim", "lee"])),
    st.builds(lambda text: {"text": text}, st.sampled_from(["tea", "coffee"])),
    st.builds(lambda how: {"refuses": how}, st.sampled_from(["", "trigger", "prepare", "project"])),
)
which = st.integers(0, 7)


class Heard(RuleBasedStateMachine):
    """Records, their jobs, a clock that stands still, and everybody who may touch them.

    Whatever is done is told by a signal: no reconcile is needed.
    """

    heard = True

    def __init__(self) -> None:
        super().__init__()
        for model in (Execution, QueueEntry, Job, Note, LoudReminder, Reminder):
            model._base_manager.all().delete()
        self.clock = ManualClock(NOON)
        self.used = use_clock(self.clock)
        self.used.__enter__()
        self.triggered: list[str] = []

    def teardown(self) -> None:
        try:
            self.reconcile()
        finally:
            self.used.__exit__(None, None, None)

    # The project

    @rule(
        schedule=st.sampled_from(SCHEDULES), owner=st.sampled_from(["", "kim"]), loud=st.booleans()
    )
    def add(self, schedule: dict[str, Any], owner: str, loud: bool) -> None:
        if Reminder.objects.count() < 6:
            model = LoudReminder if loud else Reminder
            model.objects.create(text="tea", owner_id=owner, timezone="UTC", **schedule)

    @rule(number=which, changes=values)
    def save(self, number: int, changes: dict[str, Any]) -> None:
        if (record := self.record(number)) is not None:
            self.put(record, changes)
            record.save()

    @rule(number=which, first=values, second=values)
    def save_stale(self, number: int, first: dict[str, Any], second: dict[str, Any]) -> None:
        records = [self.record(number), self.record(number)]
        for record, changes in zip(records, (first, second), strict=True):
            if record is not None:
                self.put(record, changes)
                record.save(update_fields=list(changes))

    @rule(number=which)
    def run_now(self, number: int) -> None:
        if (record := self.record(number)) is not None:
            with suppress(InvalidRecurrence):
                record.run_now()

    @rule(number=which)
    def copy(self, number: int) -> None:
        record = self.record(number)
        if record is not None and Reminder.objects.count() < 6:
            record.pk = None
            record.save()

    @rule(number=which)
    def delete(self, number: int) -> None:
        if (record := self.record(number)) is not None:
            record.delete()

    @rule(number=which, changes=values)
    def update(self, number: int, changes: dict[str, Any]) -> None:
        Reminder.objects.filter(pk__in=self.some(number)).update(**self.written(changes))

    @rule(number=which)
    def delete_many(self, number: int) -> None:
        Reminder.objects.filter(pk__in=self.some(number)).delete()

    # Operators

    @rule(number=which)
    def cancel(self, number: int) -> None:
        if (job := self.job(number, "queued")) is not None:
            cancel(job.pk, "not today")

    @rule(number=which)
    def requeue(self, number: int) -> None:
        ended = self.job(number, "cancelled", "failed", "interrupted")
        if ended is not None:
            try:
                requeue(ended.pk)
            except DurableJobsError:
                return
            # It is that of the record, as it stands.
            found = Reminder.objects.get(pk=ended.target_id)
            occurrence = occurrence_of(found)
            assert occurrence is not None
            assert occurrence.key == ended.idempotency_key

    @rule(number=which)
    def stop(self, number: int) -> None:
        if (job := self.job(number, "queued", "running")) is not None:
            request_stop(job.pk)

    # Workers

    @rule(number=which)
    def claim(self, number: int) -> None:
        job = self.job(number, "queued")
        if job is not None and job.run_at <= self.clock.value:
            QueueEntry.objects.filter(pk=job.pk).delete()
            Job.objects.filter(pk=job.pk).update(state="running", claim_id=uuid.uuid4())
            job.refresh_from_db()
            make_execution(job)

    @rule(number=which)
    def finish(self, number: int) -> None:
        job = self.job(number, "running")
        if job is None:
            return
        before = Note.objects.count()
        state = "completed"
        try:
            run(job)
        except (OccurrenceRefused, ValueError):
            state = "failed"
        if Note.objects.count() > before:
            self.triggered.append(job.idempotency_key)
        self.end(job, state)

    @rule(number=which, triggered=st.booleans())
    def crash(self, number: int, triggered: bool) -> None:
        if (job := self.job(number, "running")) is not None:
            if triggered:
                self.triggered.append(job.idempotency_key)
            self.end(job, "interrupted")
            self.tell(job)

    def tell(self, job: Job) -> None:
        syncing.jobs_ended([job.pk], "default")

    @rule(minutes=st.sampled_from([0.5, 10, 61, 600]))
    def wait(self, minutes: float) -> None:
        self.clock.advance(minutes * 60)

    @rule()
    def reconcile(self) -> None:
        sync_loops()
        assert sync_loops() == 0
        assert_in_step(self.clock.value, reconciled=True)

    # What must be so

    @invariant()
    def nothing_was_triggered_twice(self) -> None:
        assert len(set(self.triggered)) == len(self.triggered)

    @invariant()
    def jobs_match_their_records(self) -> None:
        if self.heard:
            assert_in_step(self.clock.value, reconciled=False)
        else:
            assert_queue_is_sound()

    # Choosing

    def record(self, number: int) -> Reminder | None:
        keys = self.some(number)
        if not keys:
            return None
        return LoudReminder.objects.filter(pk=keys[0]).first() or Reminder.objects.get(pk=keys[0])

    def some(self, number: int) -> list[Any]:
        """Return the keys of the records, turned around by the number; of each second one."""
        keys = list(Reminder._base_manager.order_by("pk").values_list("pk", flat=True))
        return (keys[number % len(keys) :] + keys[: number % len(keys)])[::2] if keys else []

    def job(self, number: int, *states: str) -> Job | None:
        found = Job.objects.filter(state__in=states).order_by("run_at", "pk")
        # By number, not as text: else what is found differs from one try to the next.
        jobs = sorted(found, key=lambda job: (job.run_at, int(job.target_id)))
        return jobs[number % len(jobs)] if jobs else None

    def written(self, changes: dict[str, Any]) -> dict[str, Any]:
        minutes = changes.get("next_run_at")
        if minutes is None:
            return dict(changes)
        return {"next_run_at": self.clock.value + timedelta(minutes=minutes)}

    def put(self, record: Reminder, changes: dict[str, Any]) -> None:
        for name, value in self.written(changes).items():
            setattr(record, name, value)

    def end(self, job: Job, state: str) -> None:
        Execution.objects.filter(job=job).delete()
        Job.objects.filter(pk=job.pk).update(state=state, finished_at=self.clock.value)


class Unheard(Heard):
    """The same, and what no signal tells of: raw SQL, fixtures, processes that die."""

    heard = False

    @rule(number=which, changes=values)
    def edit(self, number: int, changes: dict[str, Any]) -> None:
        rows = Reminder._base_manager.filter(pk__in=self.some(number))
        rows.update(**self.written(changes))

    @rule(number=which)
    def remove(self, number: int) -> None:
        keys = self.some(number)[:1]
        LoudReminder._base_manager.filter(pk__in=keys)._raw_delete("default")
        Reminder._base_manager.filter(pk__in=keys)._raw_delete("default")

    @rule(number=which)
    def double(self, number: int) -> None:
        record = self.record(number)
        if record is not None and Reminder.objects.count() < 6:
            names = [f.attname for f in Reminder._meta.local_fields if not f.primary_key]
            twin = Reminder(**{name: getattr(record, name) for name in names})
            twin.save_base(raw=True)

    def tell(self, job: Job) -> None:
        """Nobody does."""


@pytest.mark.timeout(600)  # it shrinks what it finds, which takes long
@pytest.mark.parametrize("machine", [Heard, Unheard])
def test_the_jobs_of_loop_records_match_them_whatever_is_done(machine: type[Heard]) -> None:
    with override_settings(DURABLE_JOBS={"MULTI_USER": True}):
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=40,
                stateful_step_count=30,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    durable_settings.reset()
