"""S1, loops: which job a record has (syncRecord and sync), branch by branch."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest

from django_durable_jobs import cancel, register_handler
from django_durable_jobs.db import ManualClock
from django_durable_jobs.errors import DuplicateHandler
from django_durable_jobs.loops import loop_models, sync_loops, type_of
from django_durable_jobs.models import Job, QueueEntry
from django_durable_jobs.registry import handlers
from tests.app.models import Reminder
from tests.factories import assert_queue_is_sound, make_execution

from .conftest import START, settled

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("clock")]

HOUR = timedelta(hours=1)
LIVE = ["queued", "claimed", "running"]
TERMINAL = ["completed", "failed", "interrupted"]

Configure = Callable[..., None]


def make(**values: Any) -> Reminder:
    return Reminder.objects.create(
        **{"text": "tea", "cron": "0 * * * *", "timezone": "UTC"} | values
    )


def become(state: str) -> Job:
    """Let the one job have come to this state, without a word to its record."""
    job = Job.objects.get()
    if state != "queued":
        QueueEntry.objects.all().delete()
        values: dict[str, Any] = {"state": state, "claim_id": uuid.uuid4()}
        if state == "cancelled":
            values["claim_id"] = None
        if state not in LIVE:
            values["finished_at"] = START
        Job.objects.update(**values)
    job.refresh_from_db()
    if state in ("claimed", "running"):
        make_execution(job)
    return job


def edit(record: Reminder, **values: Any) -> None:
    """Write as raw SQL would: nothing hears of it."""
    Reminder._base_manager.filter(pk=record.pk).update(**values)


def sync(record: Reminder) -> list[Any]:
    """Reconcile, read the record again, and return for when jobs are queued."""
    sync_loops()
    record.refresh_from_db()
    assert_queue_is_sound()
    return list(QueueEntry.objects.order_by("run_at").values_list("run_at", flat=True))


def reasons() -> list[str]:
    return list(Job.objects.filter(state="cancelled").values_list("cancelled_reason", flat=True))


# syncRecord


@pytest.mark.parametrize("state", LIVE)
def test_sync_record_a_live_job_owns_the_occurrence(state: str, clock: ManualClock) -> None:
    record = make()
    become(state)
    clock.advance(3 * 3_600)
    sync(record)
    assert record.next_run_at == START + HOUR
    assert Job.objects.count() == 1


@pytest.mark.parametrize("state", TERMINAL)
def test_sync_record_a_terminal_job_of_the_occurrence_is_reconciled(state: str) -> None:
    record = make()
    become(state)
    assert sync(record) == [START + 2 * HOUR]
    assert (record.last_occurrence_at, record.schedule_epoch) == (START + HOUR, 0)


@pytest.mark.parametrize("state", TERMINAL)
def test_sync_record_a_terminal_job_of_a_disabled_record_is_reconciled_too(state: str) -> None:
    """changed: enabled again, it must not begin once more what has begun."""
    record = make()
    become(state)
    edit(record, enabled=False)
    assert sync(record) == []
    assert record.next_run_at == START + 2 * HOUR


def test_sync_record_a_terminal_job_of_an_unscheduled_record_changes_nothing() -> None:
    record = make(cron="", next_run_at=START + HOUR)
    become("completed")
    edit(record, next_run_at=None)
    assert sync(record) == []
    assert record.last_occurrence_at is None


def test_sync_record_that_cannot_be_reconciled_says_so_and_harms_no_other() -> None:
    """changed: the seed throws, and the records behind it are not looked at."""
    record = make()
    become("failed")
    edit(record, cron="61 * * * *")
    other = make()
    assert sync(record) == [other.next_run_at]
    assert "minute" in record.last_error


def test_sync_record_a_missed_time_is_normalised(clock: ManualClock) -> None:
    record = make(enabled=False)
    clock.advance(3 * 3_600)
    edit(record, enabled=True, next_run_at=START + HOUR)
    assert sync(record) == [START + 4 * HOUR]


def test_sync_record_a_missed_single_run_runs_late(clock: ManualClock) -> None:
    record = make(cron="", next_run_at=START + HOUR, enabled=False)
    clock.advance(3 * 3_600)
    edit(record, enabled=True)
    assert sync(record) == [START + HOUR]


def test_sync_record_that_cannot_be_normalised_says_so_and_harms_no_other() -> None:
    """changed: the seed throws, and the records behind it are not looked at."""
    broken = make(cron="61 * * * *")
    other = make()
    assert sync(broken) == [other.next_run_at]
    assert broken.last_error


def test_sync_record_requires_an_owner_where_there_are_many(configure: Configure) -> None:
    configure(MULTI_USER=True)
    record = make(owner_id="kim")
    edit(record, owner_id="")
    assert sync(record) == []
    assert (record.needs_owner, reasons()) == (True, ["record_requires_owner"])


def test_sync_record_without_an_owner_and_without_a_job_is_marked(configure: Configure) -> None:
    configure(MULTI_USER=True)
    record = make()
    assert (sync(record), record.needs_owner, reasons()) == ([], True, [])


def test_sync_record_with_an_owner_again_is_taken_up_again(configure: Configure) -> None:
    """changed: the seed leaves the mark to its registry, and finds its cancelled job in the way."""
    configure(MULTI_USER=True)
    record = make(owner_id="kim")
    for owner in ("", "lee"):
        edit(record, owner_id=owner)
        found = sync(record)
    assert (found, record.needs_owner, record.schedule_epoch) == ([START + HOUR], False, 1)


@pytest.mark.parametrize("values", [{"enabled": False}, {"cron": "", "next_run_at": None}])
def test_sync_record_disabled_or_unscheduled_is_cancelled(values: dict[str, Any]) -> None:
    record = make()
    edit(record, **values)
    assert sync(record) == []
    assert reasons() == ["record_disabled_or_unscheduled"]


def test_sync_record_disabled_without_a_job_is_left_alone() -> None:
    record = make(enabled=False)
    assert (sync(record), Job.objects.count()) == ([], 0)


def test_sync_record_enabled_again_is_taken_up_again() -> None:
    """changed: the seed finds the job that it cancelled itself in the way."""
    record = make()
    for enabled in (False, True):
        edit(record, enabled=enabled)
        found = sync(record)
    assert (found, record.schedule_epoch) == ([START + HOUR], 1)


def test_sync_record_a_matching_queued_job_is_replaced() -> None:
    record = make()
    before = Job.objects.get()
    record.text = "coffee"
    record.save()
    after = Job.objects.get()
    assert after.pk == before.pk
    assert after.payload["record_revision"] > before.payload["record_revision"]


def test_sync_record_a_matching_queued_job_goes_to_the_new_owner(configure: Configure) -> None:
    configure(MULTI_USER=True)
    record = make(owner_id="kim")
    edit(record, owner_id="lee")
    sync(record)
    assert list(Job.objects.values_list("owner_id", flat=True)) == ["lee"]


def test_sync_record_in_step_writes_nothing() -> None:
    """changed: the seed replaces the queued job of every record at every sync."""
    record = make()
    before = list(Job.objects.values())
    sync(record)
    assert list(Job.objects.values()) == before


@pytest.mark.parametrize(
    "values", [{"cron": "30 * * * *"}, {"next_run_at": START + 5 * HOUR}, {"schedule_epoch": 7}]
)
def test_sync_record_another_queued_job_is_cancelled_and_one_put_in(values: Any) -> None:
    record = make()
    edit(record, **values)
    assert sync(record) == [record.next_run_at]
    assert reasons() == ["record_schedule_changed"]


@pytest.mark.parametrize("state", ["claimed", "running"])
def test_sync_record_what_is_held_gets_no_second_job(state: str) -> None:
    record = make()
    become(state)
    record.save()
    assert (sync(record), Job.objects.count()) == ([], 1)


def test_sync_record_cancelled_stays_cancelled() -> None:
    record = make()
    cancel(Job.objects.get().pk)
    record.save()
    assert sync(record) == []


def test_sync_record_cancelled_goes_on_when_its_time_is_over(clock: ManualClock) -> None:
    """changed: in the seed such a record never runs again."""
    record = make()
    cancel(Job.objects.get().pk)
    clock.advance(3_601)
    assert sync(record) == [START + 2 * HOUR]


def test_sync_record_enqueues() -> None:
    record = make()
    QueueEntry.objects.all().delete()
    Job.objects.all().delete()
    assert sync(record) == [START + HOUR]


# What it is made of


def test_identity_is_one_for_each_time_of_each_epoch() -> None:
    first, second = make(), make()
    first.run_now()
    keys = set(Job.objects.values_list("idempotency_key", flat=True))
    assert len(keys) == 3
    assert {(key[:16], len(key)) for key in keys} == {("loop-occurrence:", 80)}
    assert second.schedule_identity != first.schedule_identity


def test_spec_is_the_job_of_an_occurrence() -> None:
    record = make()
    job = Job.objects.get()
    assert (job.type, job.project_id) == ("loop-occurrence:testapp.reminder", "reminders")
    assert job.target == {"kind": "loop-record", "id": str(record.pk)}
    assert job.run_at == record.next_run_at
    assert sorted(job.payload) == [
        *("occurrence_at", "occurrence_key", "record_id", "record_revision"),
        *("schedule_epoch", "schedule_identity"),
    ]


def test_project_id_is_the_records() -> None:
    """changed: the seed has one for all."""
    make()
    assert Job.objects.get().project_id == "reminders"


@pytest.mark.parametrize("many", [True, lambda: True])
def test_owner_for_is_the_records_where_there_are_many_users(many: Any, configure: Any) -> None:
    configure(MULTI_USER=many)
    make(owner_id="kim")
    assert Job.objects.get().owner_id == "kim"


@pytest.mark.parametrize("many", [False, lambda: False])
def test_owner_for_is_local_user_where_there_is_one(many: Any, configure: Any) -> None:
    configure(MULTI_USER=many)
    make(owner_id="kim")
    assert Job.objects.get().owner_id == "local-user"


def test_jobs_for_leaves_out_those_of_others() -> None:
    first, second = make(), make()
    first.delete()
    assert list(QueueEntry.objects.values_list("job__target_id", flat=True)) == [str(second.pk)]


# sync


def test_sync_cancels_what_has_no_record_any_more() -> None:
    record = make()
    Reminder._base_manager.filter(pk=record.pk)._raw_delete("default")
    sync_loops()
    assert reasons() == ["record_deleted"]


def test_sync_goes_on_behind_a_record_that_fails() -> None:
    """changed: the seed stops at the first error."""
    records = [make(refuses="project"), make()]
    assert sync(records[1]) == [START + HOUR]
    records[0].refresh_from_db()
    assert records[0].last_error == "ValueError: no project"


def test_sync_is_not_entered_again_by_its_own_saves() -> None:
    records = [make() for _ in range(3)]
    edit(records[0], cron="30 * * * *")
    with mock.patch("django_durable_jobs.loops.records_written") as written:
        assert sync_loops() == 1
    assert written.mock_calls == []


def test_sync_happens_when_a_worker_starts(scheduler: Any) -> None:
    record = make()
    edit(record, cron="30 * * * *")
    scheduler().start()
    settled(*Job.objects.filter(state="queued").exclude(run_at=START + timedelta(minutes=30)))
    assert sync_loops() == 0


# attachLoopDurableSchedule


def test_attach_registers_the_handler_of_each_model() -> None:
    """changed: one type a model instead of one a project."""
    for model in loop_models():
        handler = handlers.get(type_of(model))
        assert handler is not None
        assert handler.can_run is not None
        with pytest.raises(DuplicateHandler):
            register_handler(type_of(model), lambda: None)
