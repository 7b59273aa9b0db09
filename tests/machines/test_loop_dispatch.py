"""Running occurrences of loop records by a worker: the stages, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_durable_jobs import Scheduler, requeue
from django_durable_jobs.errors import WrongState
from django_durable_jobs.loops import sync_loops
from django_durable_jobs.models import Execution, Job, QueueEntry
from tests.app.models import LoudReminder, Note, Reminder
from tests.factories import assert_queue_is_sound
from tests.processes.harness import until

pytestmark = pytest.mark.django_db(transaction=True)

Make = Callable[..., Scheduler]


def due(model: type[Reminder] = Reminder, **values: Any) -> tuple[Reminder, Job]:
    """Make a record that is to run every hour, and now."""
    record = model.objects.create(**{"text": "tea", "every": timedelta(hours=1)} | values)
    record.run_now()
    return record, QueueEntry.objects.get(job__target_id=str(record.pk)).job


def run(make: Make, job: Job, *before: Callable[[], object]) -> Execution:
    """Have a worker run the job, after what is done to its record meanwhile."""
    for act in before:
        act()
    make(schedules=False).start()  # a leader would reconcile what was done, perhaps first
    until(lambda: Job.objects.get(pk=job.pk).state in ("completed", "failed"), "the run")
    assert_queue_is_sound()
    return Execution.objects.get(job=job)


def stamp(record: Reminder, job: Job) -> dict[str, Any]:
    return {
        "project_id": "reminders",
        "record_id": str(record.pk),
        "occurrence_at": job.payload["occurrence_at"],
    }


def test_an_occurrence_runs_through_its_stages_and_the_record_goes_on(make: Make) -> None:
    record, job = due()
    execution = run(make, job)
    assert execution.state == "completed", execution.error
    told = stamp(record, job)
    assert execution.metadata == {**told, "record_revision": job.payload["record_revision"]}
    recorded_at = execution.receipt.pop("recorded_at")
    assert recorded_at.endswith("+00:00")
    assert execution.receipt == {"state": "dispatching", **told}
    assert execution.result == {
        "dispatched": True,
        "record_id": str(record.pk),
        "occurrence_at": told["occurrence_at"],
    }
    assert [note.text for note in Note.objects.all()] == [f"tea at {job.run_at.isoformat()}"]
    record.refresh_from_db()
    assert record.last_occurrence_at == job.run_at
    assert record.next_run_at == job.run_at + timedelta(hours=1)
    assert record.schedule_epoch == job.payload["schedule_epoch"]
    (entry,) = QueueEntry.objects.all()
    assert entry.run_at == record.next_run_at
    assert sync_loops() == 0


def test_the_record_goes_on_whatever_its_trigger_raised(make: Make) -> None:
    record, job = due(refuses="trigger")
    execution = run(make, job)
    assert (execution.state, execution.error) == ("failed", "ValueError: no paper")
    assert execution.receipt["state"] == "dispatching"
    record.refresh_from_db()
    assert record.next_run_at == job.run_at + timedelta(hours=1)


def test_an_occurrence_that_cannot_be_reserved_fails_and_the_record_goes_on(make: Make) -> None:
    record, job = due(refuses="prepare")
    execution = run(make, job)
    assert (execution.state, execution.error_code) == ("failed", "not_reserved")
    assert "sold out" in execution.error
    assert execution.receipt is None
    assert not Note.objects.exists()
    record.refresh_from_db()
    assert record.next_run_at == job.run_at + timedelta(hours=1)


def test_a_record_that_is_gone_fails_its_occurrence(make: Make) -> None:
    record, job = due()
    execution = run(make, job, lambda: Reminder.objects.filter(pk=record.pk)._raw_delete("default"))
    assert (execution.state, execution.error_code) == ("failed", "record_deleted")


@pytest.mark.parametrize("change", [{"enabled": False}, {"next_run_at": None}])
def test_a_record_that_points_elsewhere_fails_its_stale_occurrence(
    make: Make, change: dict[str, Any]
) -> None:
    record, job = due()
    plain = Reminder._base_manager.filter(pk=record.pk)
    execution = run(make, job, lambda: plain.update(**change))
    assert (execution.state, execution.error_code) == ("failed", "occurrence_stale")
    assert not Note.objects.exists()


def test_an_occurrence_of_another_owner_fails(make: Make, keys: Callable[..., None]) -> None:
    keys(MULTI_USER=True)
    record, job = due(owner_id="kim")
    plain = Reminder._base_manager.filter(pk=record.pk)
    execution = run(make, job, lambda: plain.update(owner_id="lee"))
    assert (execution.state, execution.error_code) == ("failed", "owner_changed")
    record.refresh_from_db()
    assert record.next_run_at == job.run_at + timedelta(hours=1)
    assert QueueEntry.objects.get().owner_id == "lee"


@pytest.mark.parametrize("refusal", ["authorize", "can_run"])
def test_an_occurrence_waits_until_the_record_may_run(
    make: Make, keys: Callable[..., None], refusal: str
) -> None:
    keys(MAX_SLEEP=0.2)
    record, job = due(refuses=refusal)
    make().start()
    until(lambda: Job.objects.get(pk=job.pk).held_reason == "not_eligible", "its waiting")
    assert not Note.objects.exists()
    Reminder._base_manager.filter(pk=record.pk).update(refuses="")
    until(lambda: Job.objects.get(pk=job.pk).state == "completed", "the run")


def test_the_hooks_of_the_most_special_model_are_asked(make: Make) -> None:
    _, job = due(LoudReminder)
    assert run(make, job).state == "completed"
    assert Note.objects.get().text.startswith("TEA AT")


def test_a_single_run_is_over_after_it(make: Make) -> None:
    record = Reminder.objects.create(text="once", next_run_at=timezone.now())
    (entry,) = QueueEntry.objects.all()
    run(make, entry.job)
    record.refresh_from_db()
    assert record.next_run_at is None
    assert not QueueEntry.objects.exists()


def test_an_occurrence_that_its_record_has_moved_on_from_is_not_requeued(make: Make) -> None:
    _, job = due(refuses="trigger")
    run(make, job)
    with pytest.raises(WrongState, match="run the record now"):
        requeue(job.pk)


def test_a_leader_reconciles_what_no_signal_told_of(make: Make, keys: Callable[..., None]) -> None:
    keys(LOOP_SYNC_INTERVAL=0.2, HEARTBEAT=0.1, LEASE=1)
    record, job = due(enabled=True)
    run(make, job)
    make().start()
    Reminder._base_manager.filter(pk=record.pk).update(enabled=False)
    until(lambda: not QueueEntry.objects.exists(), "the reconcile")
    assert Job.objects.filter(cancelled_reason="record_disabled_or_unscheduled").count() == 1
