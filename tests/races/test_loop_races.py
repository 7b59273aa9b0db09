"""Loop records that are written by several at once: one live job each, and nobody is stuck.

DDJ_LOOP_EXAMPLES is how many walks of a crowd are tried.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import hypothesis
import pytest
from django.db import OperationalError
from django.utils import timezone
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from django_durable_jobs import cancel
from django_durable_jobs.claims import ClaimRequest, claim
from django_durable_jobs.conf import settings as durable_settings
from django_durable_jobs.db import ManualClock, transaction, use_clock
from django_durable_jobs.errors import NotQueued, OccurrenceRefused
from django_durable_jobs.loops import sync_loops, type_of
from django_durable_jobs.models import Execution, Job, QueueEntry
from tests.app.models import Note, Reminder
from tests.claiming import outcome, settle
from tests.factories import assert_queue_is_sound
from tests.looping import assert_in_step, run
from tests.racing import race

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.races]

ROUNDS = 8
HOUR = timedelta(hours=1)


def make(**values: Any) -> Reminder:
    return Reminder.objects.create(**{"text": "tea", "every": HOUR} | values)


def fresh(record: Reminder) -> Reminder:
    return Reminder._base_manager.get(pk=record.pk)


def edit(record: Reminder, **values: Any) -> Callable[[], None]:
    """Return what saves a record that was read beforehand."""
    mine = fresh(record)
    for name, value in values.items():
        setattr(mine, name, value)
    return mine.save


def claim_one() -> list[uuid.UUID]:
    request = ClaimRequest(
        namespace="default",
        worker=uuid.uuid4(),
        slots=1,
        types=frozenset({type_of(Reminder)}),
        lease=30.0,
    )
    with transaction("default") as own:
        return [taking.job_id for taking in claim(own, request).takings]


def assert_one_job(record: Reminder, *answers: Any) -> None:
    """Assert that nobody failed, and that the record has one queued job, which matches."""
    assert not [each for each in answers if isinstance(each, BaseException)], answers
    assert sync_loops() == 0
    found = fresh(record)
    entries = QueueEntry.objects.filter(job__target_id=str(record.pk))
    assert list(entries.values_list("run_at", flat=True)) == [found.next_run_at]
    assert_queue_is_sound()


def test_two_who_save_the_same_record_at_once() -> None:
    record = make()
    for number in range(ROUNDS):
        crons = [f"{number} * * * *", f"{number + 30} * * * *"]
        answers = race(*[edit(record, every=None, cron=cron) for cron in crons])
        assert_one_job(record, *answers)
    assert fresh(record).schedule_epoch >= ROUNDS


def test_eight_who_sync_the_same_records_at_once() -> None:
    records = [make() for _ in range(20)]
    Reminder._base_manager.update(every=2 * HOUR)
    answers = race(*[sync_loops] * 8)
    for record in records:
        assert_one_job(record, *answers)
    assert Job.objects.count() == 2 * len(records)


def test_bulk_writes_and_saves_and_reconciles_at_once() -> None:
    records = [make(text=str(n)) for n in range(20)]

    def update() -> int:
        return Reminder.objects.filter(enabled=True).update(every=2 * HOUR)

    def back() -> int:
        return Reminder.objects.order_by("-pk").update(every=3 * HOUR)

    answers = race(update, back, sync_loops, *[edit(each, text="x") for each in records[:3]])
    for record in records:
        assert_one_job(record, *answers)


def test_a_save_while_the_job_is_claimed() -> None:
    for _ in range(ROUNDS):
        record = make()
        record.run_now()
        (id,) = QueueEntry.objects.values_list("pk", flat=True)
        claimed, saved = race(claim_one, edit(record, text="coffee"))
        # A claim passes over a job that is just being changed.
        assert (claimed in ([id], []), saved) == (True, None)
        assert (sync_loops(), QueueEntry.objects.count()) == (0, 1 - len(claimed))
        assert Job.objects.get(pk=id).state in (("claimed", "running") if claimed else ("queued",))
        clear()


def test_an_edit_of_the_schedule_while_the_job_is_claimed() -> None:
    for _ in range(ROUNDS):
        record = make()
        record.run_now()
        (id,) = QueueEntry.objects.values_list("pk", flat=True)
        claimed, saved = race(claim_one, edit(record, every=2 * HOUR))
        assert_one_job(record, claimed, saved)
        assert (Job.objects.get(pk=id).state == "cancelled") == (claimed == [])
        clear()


def test_a_delete_while_it_runs() -> None:
    for _ in range(ROUNDS):
        record = make()
        record.run_now()
        job = QueueEntry.objects.get().job
        claim_one()
        ran, deleted = race(partial(run, job), fresh(record).delete)
        assert not isinstance(deleted, BaseException), deleted
        assert not isinstance(ran, BaseException) or isinstance(ran, OccurrenceRefused), ran
        assert not QueueEntry.objects.exists()
        assert Note.objects.count() <= 1
        assert sync_loops() == 0
        clear()


@pytest.mark.parametrize(
    "values", [{"text": "coffee"}, {"every": 2 * HOUR}, {"enabled": False}], ids=str
)
def test_an_advance_while_the_record_is_edited(values: dict[str, Any]) -> None:
    for _ in range(ROUNDS):
        record = make()
        record.run_now()
        job = QueueEntry.objects.get().job
        claim_one()
        ran, saved = race(partial(run, job), edit(record, **values))
        assert saved is None, saved
        assert not isinstance(ran, BaseException) or isinstance(ran, OccurrenceRefused), ran
        Job.objects.filter(pk=job.pk).update(state="completed", finished_at=timezone.now())
        sync_loops()
        found = fresh(record)
        assert found.next_run_at is not None
        assert found.next_run_at > job.run_at or not found.enabled
        due = QueueEntry.objects.values_list("run_at", flat=True)
        assert list(due) == ([found.next_run_at] if found.enabled else [])
        assert sync_loops() == 0
        clear()


def test_an_operator_who_cancels_while_the_record_is_saved() -> None:
    for _ in range(ROUNDS):
        record = make()
        record.run_now()
        (id,) = QueueEntry.objects.values_list("pk", flat=True)
        answers = race(lambda id=id: cancel(id), edit(record, every=2 * HOUR))
        failed = [each for each in answers if isinstance(each, BaseException)]
        assert all(isinstance(each, NotQueued) for each in failed), failed
        assert_one_job(record)
        clear()


def test_saves_of_many_records_in_opposite_order() -> None:
    """A deadlock of the project's own making is the project's; the jobs are right all the same."""
    records = [make() for _ in range(6)]
    edits = [[edit(each, text=text) for each in records] for text in ("a", "b")]
    answers = race(
        lambda: [save() for save in edits[0]],
        lambda: [save() for save in reversed(edits[1])],
    )
    for record in records:
        assert_one_job(record, *answers)


def clear() -> None:
    for model in (Execution, QueueEntry, Job, Note, Reminder):
        model._base_manager.all().delete()


# Whatever is done, several things at a time

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
CHANGES: list[dict[str, Any]] = [
    {"every": HOUR, "cron": ""},
    {"every": None, "cron": "*/20 * * * *"},
    {"every": None, "cron": ""},
    {"enabled": False},
    {"enabled": True},
    {"owner_id": ""},
    {"owner_id": "kim"},
    {"owner_id": "lee"},
    {"next_run_at": NOON},
    {"next_run_at": None},
    {"text": "coffee"},
]
changes = st.sampled_from(CHANGES)
which = st.integers(0, 3)
ACTS = st.one_of(
    st.tuples(st.just("save"), which, changes),
    st.tuples(st.just("save"), which, changes),
    st.tuples(st.just("update"), which, changes),
    st.tuples(st.sampled_from(["delete", "delete_many", "run_now", "cancel"]), which, st.none()),
    st.tuples(st.sampled_from(["work", "work", "work_and_die", "reconcile"]), which, st.none()),
    st.tuples(st.just("edit"), which, changes),
)


def may_fail(error: BaseException) -> bool:
    """Whether it tells somebody that they were too late, or to give way: of two who lock in
    opposite order the database picks one.
    """
    late = "did not affect any rows" in str(error)  # a save of what was deleted
    return late or isinstance(error, (NotQueued, OperationalError))


class Crowd(RuleBasedStateMachine):
    """Two workers, and a project whose processes write the same few records at the same moments."""

    def __init__(self) -> None:
        super().__init__()
        clear()
        self.clock = ManualClock(NOON)
        self.used = use_clock(self.clock)
        self.used.__enter__()

    def teardown(self) -> None:
        self.used.__exit__(None, None, None)

    @rule(several=st.lists(changes, min_size=1, max_size=3))
    def add(self, several: list[dict[str, Any]]) -> None:
        for values in several[: 4 - Reminder.objects.count()]:
            make(**{"owner_id": "kim", "timezone": "UTC"} | values)

    @rule(minutes=st.sampled_from([1, 21, 61]))
    def wait(self, minutes: int) -> None:
        self.clock.advance(60 * minutes)

    @rule(acts=st.lists(ACTS, min_size=2, max_size=4))
    def at_once(self, acts: list[tuple[str, int, Any]]) -> None:
        answers = race(*[getattr(self, name)(number, values) for name, number, values in acts])
        failed = [each for each in answers if isinstance(each, BaseException)]
        assert all(map(may_fail, failed)), failed
        told = {name for name, _, _ in acts}.isdisjoint({"edit", "work_and_die"})
        if told and not failed:
            # Nobody died, and every change was told of: it needs no reconcile.
            assert_in_step(self.clock.value, reconciled=False)
        sync_loops()
        assert sync_loops() == 0
        assert_in_step(self.clock.value, reconciled=True)

    # What is done, read beforehand, to be done at the same moment

    def record(self, number: int) -> Reminder:
        records = list(Reminder.objects.order_by("pk"))
        return records[number % len(records)] if records else Reminder(pk=0)

    def save(self, number: int, values: dict[str, Any]) -> Callable[[], object]:
        record = self.record(number)
        if not record.pk:
            return list
        for name, value in values.items():
            setattr(record, name, value)
        return lambda: record.save(update_fields=list(values))

    def update(self, number: int, values: dict[str, Any]) -> Callable[[], object]:
        order = ("pk", "-pk")[number % 2]
        return lambda: Reminder.objects.order_by(order).update(**values)

    def edit(self, number: int, values: dict[str, Any]) -> Callable[[], object]:
        """Past all signals."""
        key = self.record(number).pk
        return lambda: Reminder._base_manager.filter(pk=key).update(**values)

    def delete(self, number: int, _: None) -> Callable[[], object]:
        record = self.record(number)
        return record.delete if record.pk else list

    def delete_many(self, number: int, _: None) -> Callable[[], object]:
        key = self.record(number).pk
        return lambda: Reminder.objects.filter(pk__gte=key).delete()

    def run_now(self, number: int, _: None) -> Callable[[], object]:
        record = self.record(number)
        return record.run_now if record.pk else list

    def cancel(self, number: int, _: None) -> Callable[[], object]:
        entries = list(QueueEntry.objects.order_by("run_at", "pk"))
        if not entries:
            return list
        job = entries[number % len(entries)].pk
        return lambda: cancel(job, "not today")

    def reconcile(self, number: int, _: None) -> Callable[[], object]:
        return sync_loops

    def work(self, number: int, _: None) -> Callable[[], object]:
        """Claim what is due, run it and settle it, as a worker does."""

        def claim_run_and_settle() -> None:
            for id in claim_one():
                edge = "complete"
                try:
                    run(Job.objects.get(pk=id))
                except (OccurrenceRefused, OperationalError):
                    edge = "fail"
                settle([outcome(Job.objects.get(pk=id), edge)])

        return claim_run_and_settle

    def work_and_die(self, number: int, _: None) -> Callable[[], object]:
        """Claim what is due, and be interrupted without anybody's having been told."""

        def claim_and_die() -> None:
            for id in claim_one():
                settle([outcome(Job.objects.get(pk=id), "interrupt", reason="worker_lost")])

        return claim_and_die


EXAMPLES = int(os.environ.get("DDJ_LOOP_EXAMPLES", "6"))


@pytest.mark.slow
@pytest.mark.timeout(300 + 60 * EXAMPLES)
def test_whatever_several_do_at_once_each_record_has_one_live_job_that_matches(
    settings: Any,
) -> None:
    settings.DURABLE_JOBS = {"MULTI_USER": True}
    run_state_machine_as_test(
        Crowd,
        settings=hypothesis.settings(
            max_examples=EXAMPLES,
            stateful_step_count=12,
            deadline=None,
            # Threads do not meet in the same way twice: there is nothing to shrink, or to keep.
            phases=[hypothesis.Phase.generate],
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        ),
    )
    durable_settings.reset()
