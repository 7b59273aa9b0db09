"""Loop records: each due time of a record becomes a job, whatever is done to the record."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import pytest
from django.core.exceptions import ValidationError
from django.db import connection, transaction

from django_durable_jobs import cancel
from django_durable_jobs.conf import settings as durable_settings
from django_durable_jobs.db import ManualClock, use_clock
from django_durable_jobs.errors import InvalidRecurrence
from django_durable_jobs.ids import uuid7
from django_durable_jobs.loops import sync_loops
from django_durable_jobs.models import Job, Loop, QueueEntry
from django_durable_jobs.states import State
from tests.app.models import LoudReminder, QuietReminder, Reminder
from tests.factories import assert_queue_is_sound

pytestmark = pytest.mark.django_db(transaction=True)

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
TYPE = "loop-occurrence:testapp.reminder"


@pytest.fixture(autouse=True)
def clock() -> Iterator[ManualClock]:
    manual = ManualClock(NOON)
    with use_clock(manual):
        yield manual


@pytest.fixture
def many_users(settings: Any) -> Iterator[None]:
    settings.DURABLE_JOBS = {"MULTI_USER": True}
    yield
    durable_settings.reset()


def make(**values: Any) -> Reminder:
    return Reminder.objects.create(
        **{"text": "tea", "cron": "0 * * * *", "timezone": "UTC"} | values
    )


def queued() -> list[Job]:
    entries = QueueEntry.objects.order_by("run_at", "pk")
    return [entry.job for entry in entries.select_related("job")]


def settle(job: Job, state: str) -> None:
    """Let a job have come to this, by whatever way."""
    QueueEntry.objects.filter(pk=job.pk).delete()
    values: dict[str, Any] = {"state": state, "claim_id": None if state == "cancelled" else uuid7()}
    if state not in ("claimed", "running"):
        values["finished_at"] = NOON
    Job.objects.filter(pk=job.pk).update(**values)


def cancelled() -> list[tuple[str, int]]:
    jobs = Job.objects.filter(state=State.CANCELLED).order_by("created_at", "pk")
    return [(job.cancelled_reason or "", job.payload["schedule_epoch"]) for job in jobs]


# Saving


def test_saving_a_record_puts_its_next_occurrence_in() -> None:
    record = make()
    assert record.next_run_at == datetime(2026, 5, 4, 13, 0, tzinfo=UTC)
    (job,) = queued()
    assert (job.type, job.owner_id, job.project_id) == (TYPE, "local-user", "reminders")
    assert job.target == {"kind": "loop-record", "id": str(record.pk)}
    assert job.run_at == record.next_run_at
    assert job.idempotency_key.startswith("loop-occurrence:")
    assert len(job.idempotency_key) == len("loop-occurrence:") + 64
    assert job.payload == {
        "record_id": str(record.pk),
        "occurrence_at": "2026-05-04T13:00:00.000000+00:00",
        "occurrence_key": job.idempotency_key,
        "schedule_identity": str(record.schedule_identity),
        "schedule_epoch": 0,
        "record_revision": int(record.updated_at.timestamp() * 1_000_000 + 0.5),
    }
    assert_queue_is_sound()


def test_a_save_that_is_rolled_back_leaves_no_job() -> None:
    with transaction.atomic():
        make()
        assert len(queued()) == 1
        transaction.set_rollback(True)
    assert queued() == []


def test_a_record_that_is_deleted_has_its_job_cancelled() -> None:
    make().delete()
    assert queued() == []
    assert cancelled() == [("record_deleted", 0)]


def test_an_edit_of_the_schedule_begins_a_new_epoch() -> None:
    record = make()
    record.cron = "30 * * * *"
    record.save()
    assert (record.schedule_epoch, record.next_run_at) == (1, NOON + timedelta(minutes=30))
    (job,) = queued()
    assert job.run_at == record.next_run_at
    assert cancelled() == [("record_schedule_changed", 0)]
    record.refresh_from_db()
    assert record.schedule_epoch == 1


def test_an_edit_of_anything_else_refreshes_the_job_in_place() -> None:
    record = make()
    (before,) = queued()
    record.text = "coffee"
    record.save()
    (after,) = queued()
    assert (after.pk, record.schedule_epoch) == (before.pk, 0)
    assert after.payload["record_revision"] > before.payload["record_revision"]
    assert cancelled() == []


def test_a_record_in_memory_does_not_undo_what_the_machinery_wrote_meanwhile() -> None:
    record = make()
    (job,) = queued()
    settle(job, State.COMPLETED)
    sync_loops()
    record.text = "coffee"
    record.save()
    assert record.next_run_at == datetime(2026, 5, 4, 14, 0, tzinfo=UTC)
    assert [job.run_at.hour for job in queued()] == [14]
    assert record.schedule_epoch == 0


def test_an_interval_counts_from_the_save_and_keeps_its_grid(clock: ManualClock) -> None:
    record = make(cron="", every=timedelta(minutes=25))
    assert record.next_run_at == NOON + timedelta(minutes=25)
    settle(queued()[0], State.COMPLETED)
    clock.advance(26 * 60)
    sync_loops()
    record.refresh_from_db()
    assert record.next_run_at == NOON + timedelta(minutes=50)


def test_a_one_shot_runs_once_and_late_rather_than_never(clock: ManualClock) -> None:
    record = make(cron="", next_run_at=NOON - timedelta(minutes=5))
    (job,) = queued()
    assert job.run_at == NOON - timedelta(minutes=5)
    settle(job, State.COMPLETED)
    sync_loops()
    record.refresh_from_db()
    assert (record.next_run_at, record.last_occurrence_at) == (None, NOON - timedelta(minutes=5))
    assert queued() == []
    record.next_run_at = NOON + timedelta(hours=1)
    record.save()
    assert [job.run_at for job in queued()] == [NOON + timedelta(hours=1)]


def test_disabling_cancels_and_enabling_brings_the_occurrence_back_in_a_new_epoch() -> None:
    record = make()
    record.enabled = False
    record.save()
    assert queued() == []
    assert cancelled() == [("record_disabled_or_unscheduled", 0)]
    record.enabled = True
    record.save()
    assert (record.schedule_epoch, [job.run_at for job in queued()]) == (1, [record.next_run_at])


def test_a_time_set_by_hand_begins_a_new_epoch() -> None:
    record = make()
    record.next_run_at = NOON + timedelta(minutes=10)
    record.save()
    assert record.schedule_epoch == 1
    assert [job.run_at for job in queued()] == [NOON + timedelta(minutes=10)]
    assert cancelled() == [("record_schedule_changed", 0)]


def test_a_missed_time_moves_to_the_next(clock: ManualClock) -> None:
    record = make(enabled=False)
    clock.advance(3 * 3_600 + 60)
    record.enabled = True
    record.save()
    assert [job.run_at.hour for job in queued()] == [16]


# Jobs that have gone on


@pytest.mark.parametrize("state", ["queued", "claimed", "running"])
def test_a_job_that_lives_owns_its_occurrence(state: str, clock: ManualClock) -> None:
    record = make()
    (job,) = queued()
    if state != "queued":
        settle(job, state)
    clock.advance(2 * 3_600)
    sync_loops()
    record.save()
    record.refresh_from_db()
    assert record.next_run_at == datetime(2026, 5, 4, 13, 0, tzinfo=UTC)
    assert Job.objects.count() == 1


@pytest.mark.parametrize("state", ["completed", "failed", "interrupted"])
def test_a_record_left_behind_by_a_process_that_died_goes_on(state: str) -> None:
    record = make()
    settle(queued()[0], state)
    sync_loops()
    record.refresh_from_db()
    assert record.last_occurrence_at == datetime(2026, 5, 4, 13, 0, tzinfo=UTC)
    assert record.next_run_at == datetime(2026, 5, 4, 14, 0, tzinfo=UTC)
    assert [job.run_at for job in queued()] == [record.next_run_at]
    assert record.schedule_epoch == 0


def test_an_occurrence_that_an_operator_cancelled_stays_so_until_its_time_is_over(
    clock: ManualClock,
) -> None:
    record = make()
    cancel(queued()[0].pk, "not today")
    sync_loops()
    record.save()
    assert queued() == []
    clock.advance(3_601)
    sync_loops()
    assert [job.run_at.hour for job in queued()] == [14]


# Owners


def test_each_occurrence_belongs_to_the_records_owner(many_users: None) -> None:
    record = make(owner_id="kim")
    assert [job.owner_id for job in queued()] == ["kim"]
    before = queued()[0].pk
    record.owner_id = "lee"
    record.save()
    assert [(job.pk, job.owner_id) for job in queued()] == [(before, "lee")]
    assert record.schedule_epoch == 0


def test_a_record_without_an_owner_waits_for_one(many_users: None) -> None:
    record = make(owner_id="kim")
    record.owner_id = ""
    record.save()
    assert record.needs_owner
    assert queued() == []
    assert cancelled() == [("record_requires_owner", 0)]
    record.owner_id = "lee"
    record.save()
    assert not record.needs_owner
    assert [(job.owner_id, job.payload["schedule_epoch"]) for job in queued()] == [("lee", 1)]


# Errors


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"cron": "61 * * * *"}, "cron"),
        ({"cron": "0 0 30 2 *"}, "cron"),
        ({"timezone": "Europe/Wien"}, "timezone"),
        ({"cron": "", "every": timedelta(milliseconds=1)}, "every"),
        ({"every": timedelta(hours=1)}, "every"),
    ],
)
def test_a_recurrence_that_is_none_is_refused_at_its_field(
    values: dict[str, Any], field: str
) -> None:
    record = Reminder(**{"cron": "0 * * * *", "timezone": "UTC", "text": "tea"} | values)
    with pytest.raises(ValidationError) as caught:
        record.full_clean()
    assert list(caught.value.message_dict) == [field]


def test_a_recurrence_saved_past_validation_gets_no_job_and_says_why() -> None:
    broken, sound = make(cron="61 * * * *"), make()
    assert "minute" in broken.last_error
    assert [job.target["id"] for job in queued()] == [str(sound.pk)]
    broken.cron = "0 * * * *"
    broken.save()
    assert broken.last_error == ""
    assert len(queued()) == 2


@pytest.mark.parametrize("past", ["the model", "all signals"])
def test_run_now_refuses_a_recurrence_that_is_none_and_writes_nothing(past: str) -> None:
    """It could not go on afterwards; and whoever asks is to hear of it."""
    record = make()
    if past == "the model":
        record.cron = "61 * * * *"
        record.save()
    else:
        Reminder._base_manager.update(cron="61 * * * *")
        record.refresh_from_db()
    before = Reminder.objects.values().get()
    with pytest.raises(InvalidRecurrence, match="Cron field minute"):
        record.run_now()
    assert Reminder.objects.values().get() == before
    assert sync_loops() == (past == "all signals")
    assert queued() == []
    assert "Cron field minute" in Reminder.objects.get().last_error


def test_a_hook_that_raises_harms_no_other_record() -> None:
    records = [make(), make()]
    Reminder.objects.filter(pk=records[0].pk)._update(  # as raw SQL would
        [(Reminder._meta.get_field("refuses"), None, "project")]
    )
    settle(queued()[1], State.COMPLETED)
    sync_loops()
    for record in records:
        record.refresh_from_db()
    assert records[0].last_error == "ValueError: no project"
    assert records[1].next_run_at == datetime(2026, 5, 4, 14, 0, tzinfo=UTC)


# In bulk


def test_bulk_operations_of_the_queryset_sync_what_they_write() -> None:
    made = Reminder.objects.bulk_create(
        [Reminder(text=str(n), cron="0 * * * *", timezone="UTC", updated_at=NOON) for n in range(3)]
    )
    assert len(queued()) == 3
    Reminder.objects.filter(text__in=["0", "1"]).update(text="x", cron="30 * * * *")
    assert sorted(job.run_at.minute for job in queued()) == [0, 30, 30]
    made[2].refresh_from_db()
    made[2].enabled = False
    Reminder.objects.bulk_update([made[2]], ["enabled"])
    assert sorted(job.run_at.minute for job in queued()) == [30, 30]
    Reminder.objects.all().delete()
    assert queued() == []


def test_what_no_signal_told_of_is_found_by_the_reconcile() -> None:
    records = [make() for _ in range(4)]
    table = Reminder._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET cron = %s WHERE id = %s", ["30 * * * *", records[0].pk])
        cursor.execute(f"UPDATE {table} SET enabled = %s WHERE id = %s", [False, records[1].pk])
        cursor.execute(f"DELETE FROM {table} WHERE id = %s", [records[2].pk])
    assert sync_loops() == 3
    assert sorted((job.run_at.minute, job.target["id"]) for job in queued()) == [
        (0, str(records[3].pk)),
        (30, str(records[0].pk)),
    ]
    assert sorted(reason for reason, _ in cancelled()) == [
        "record_deleted",
        "record_disabled_or_unscheduled",
        "record_schedule_changed",
    ]
    assert sync_loops() == 0


def test_a_reconcile_of_what_is_in_step_reads_little_and_writes_nothing(
    django_assert_num_queries: Any,
) -> None:
    Reminder.objects.bulk_create(
        [
            Reminder(text=str(n), cron="0 * * * *", timezone="UTC", updated_at=NOON)
            for n in range(700)
        ]
    )
    before = list(Job.objects.order_by("pk").values()), list(Reminder.objects.values())
    with django_assert_num_queries(14):
        assert sync_loops(Reminder) == 0
    assert before == (list(Job.objects.order_by("pk").values()), list(Reminder.objects.values()))


def test_a_record_that_cannot_be_read_is_told_of_and_harms_no_other(caplog: Any) -> None:
    """A row edited by hand, a field of the model's own that raises: the rest is reconciled."""
    records = [make(text=str(number)) for number in range(3)]
    special = LoudReminder.objects.create(text="loud", cron="0 * * * *", timezone="UTC")
    Reminder._base_manager.update(every=timedelta(hours=2), cron="")
    spoiled = {records[0].pk, special.pk}
    from_db = Reminder.from_db.__func__

    def refuse(cls: Any, *row: Any, **how: Any) -> Any:
        record = from_db(cls, *row, **how)
        if record.pk in spoiled:
            raise ValueError("spoiled")
        return record

    with mock.patch.object(Reminder, "from_db", classmethod(refuse)):
        assert sync_loops() == 2
        assert sync_loops() == 0
    assert caplog.text.count("loop record not synced") == 4
    kept = Reminder.objects.filter(schedule_epoch=1)
    assert {record.pk for record in kept} == {record.pk for record in records[1:]}
    assert (sync_loops(), len(queued())) == (2, 4)


# Models


def test_a_model_with_a_table_of_its_own_beside_shares_the_occurrences_of_its_parent() -> None:
    loud = LoudReminder.objects.create(text="tea", cron="0 * * * *", timezone="UTC")
    (job,) = queued()
    assert (job.type, job.target["id"]) == (TYPE, str(loud.pk))
    loud.delete()
    assert queued() == []


def test_a_proxy_is_the_same_record() -> None:
    quiet = QuietReminder.objects.create(text="tea", cron="0 * * * *", timezone="UTC")
    assert [job.type for job in queued()] == [TYPE]
    Reminder.objects.get(pk=quiet.pk).delete()
    assert queued() == []


def test_a_loop_enqueues_a_registered_job() -> None:
    loop = Loop(name="nightly", job_type="ledger.work", payload={"seconds": 0}, cron="0 2 * * *")
    loop.full_clean()
    loop.save()
    assert [job.type for job in queued()] == ["loop-occurrence:django_durable_jobs.loop"]
    loop.trigger(loop.prepare(NOON))
    loop.trigger(loop.prepare(NOON))
    assert Job.objects.filter(type="ledger.work").count() == 1


@pytest.mark.skipif(connection.vendor == "postgresql", reason="its jsonb holds nothing but JSON")
def test_a_payload_that_is_no_json_any_more_harms_no_other_loop() -> None:
    for name in ("spoiled", "other"):
        Loop.objects.create(name=name, job_type="ledger.work", every=timedelta(hours=1))
    switch = {
        "sqlite": "PRAGMA ignore_check_constraints = {}",
        "mysql": "SET check_constraint_checks = NOT {}",
    }[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(switch.format(1))
        try:  # MariaDB checks the whole row when it is written again
            cursor.execute(
                "UPDATE django_durable_jobs_loop SET payload = '{' WHERE name = 'spoiled'"
            )
            Loop._base_manager.update(enabled=False)
            assert sync_loops() == 2
            assert queued() == []
            Loop._base_manager.update(enabled=True)
            assert (sync_loops(), len(queued())) == (2, 2)
        finally:
            cursor.execute(switch.format(0))


@pytest.mark.parametrize(
    ("values", "field"),
    [({"job_type": "no.such"}, "job_type"), ({"payload": {"minutes": 3}}, "payload")],
)
def test_a_loop_of_a_job_that_cannot_run_is_refused(values: dict[str, Any], field: str) -> None:
    loop = Loop(**{"name": "n", "job_type": "ledger.work", "payload": {"seconds": 0}} | values)
    with pytest.raises(ValidationError) as caught:
        loop.full_clean()
    assert list(caught.value.message_dict) == [field]
