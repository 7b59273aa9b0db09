"""S1, loops: may an occurrence run (canRun), and running it (dispatch), branch by branch."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest

from django_durable_jobs.loops import can_run_of, dispatching
from django_durable_jobs.models import Execution, Job, QueueEntry
from tests.app.models import Note, Reminder
from tests.factories import assert_queue_is_sound

from .conftest import settled

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = timedelta(hours=1)

Change = Callable[[Any], object]


def due(**values: Any) -> tuple[Reminder, Job]:
    """Make a record that is to run every hour, and now."""
    record = Reminder.objects.create(**{"text": "tea", "every": HOUR, "owner_id": "kim"} | values)
    record.run_now()
    return record, QueueEntry.objects.get().job


# What may become of a record between two looks, past all signals.
CHANGES: dict[str, Change] = {
    "gone": lambda rows: rows._raw_delete("default"),
    "disabled": lambda rows: rows.update(enabled=False),
    "stale": lambda rows: rows.update(schedule_epoch=9),
    "owner": lambda rows: rows.update(owner_id="lee"),
}


def change(record: Reminder, how: str) -> None:
    CHANGES[how](Reminder._base_manager.filter(pk=record.pk))


@pytest.fixture(autouse=True)
def many_users(configure: Callable[..., None]) -> None:
    configure(MULTI_USER=True)


@pytest.fixture
def dispatch(scheduler: Callable[..., Any]) -> Callable[[Job], Execution]:
    """Return what has a worker run a job to its end; see that its queue is sound."""

    def run(job: Job) -> Execution:
        scheduler(schedules=False).start()  # a leader would reconcile what was changed
        settled(job)
        assert_queue_is_sound()
        return Execution.objects.get(job=job)

    return run


def goes_on(record: Reminder, job: Job) -> bool:
    """Tell whether the record points at its next time, with a job for it."""
    record.refresh_from_db()
    waits = list(QueueEntry.objects.values_list("run_at", flat=True))
    return record.next_run_at == job.run_at + HOUR and waits == [record.next_run_at]


# canRun


@pytest.mark.parametrize("how", CHANGES)
def test_can_run_is_true_where_dispatch_refuses_anyway(how: str) -> None:
    record, job = due(refuses="authorize")
    assert can_run_of(Reminder)(job) is False
    change(record, how)
    assert can_run_of(Reminder)(job) is True


def test_can_run_is_false_while_the_owner_is_not_authorised() -> None:
    _, job = due(refuses="authorize")
    assert can_run_of(Reminder)(job) is False


@pytest.mark.parametrize("refuses", ["", "can_run"])
def test_can_run_is_else_the_records_answer(refuses: str) -> None:
    _, job = due(refuses=refuses)
    assert can_run_of(Reminder)(job) is not bool(refuses)


# dispatch


def test_dispatch_of_a_record_that_was_deleted_fails(dispatch: Any) -> None:
    record, job = due()
    change(record, "gone")
    assert dispatch(job).error_code == "record_deleted"


@pytest.mark.parametrize("how", ["disabled", "stale"])
def test_dispatch_of_a_stale_occurrence_fails(dispatch: Any, how: str) -> None:
    record, job = due()
    change(record, how)
    execution = dispatch(job)
    assert (execution.error_code, execution.metadata) == ("occurrence_stale", None)
    assert not Note.objects.exists()


def test_dispatch_of_another_owners_record_fails(dispatch: Any) -> None:
    record, job = due()
    change(record, "owner")
    assert dispatch(job).error_code == "owner_changed"
    assert not Note.objects.exists()
    assert goes_on(record, job)


def test_dispatch_of_an_owner_who_is_not_authorised_any_more_fails(dispatch: Any) -> None:
    record, job = due(refuses="authorize")
    # can_run is asked twice, before the claim and behind it; then the handler looks.
    with mock.patch.object(Reminder, "authorize", side_effect=[True, True, False]):
        assert dispatch(job).error_code == "owner_not_authorized"
    assert goes_on(record, job)


def test_dispatch_of_a_check_that_raises_fails_and_the_record_goes_on(dispatch: Any) -> None:
    """changed: the seed's record waits for the next sync."""
    record, job = due()
    answers = [True, True, ConnectionError("no directory")]
    with mock.patch.object(Reminder, "authorize", side_effect=answers):
        assert dispatch(job).error == "ConnectionError: no directory"
    assert goes_on(record, job)


def test_dispatch_stores_what_it_is_about_before_prepare(dispatch: Any) -> None:
    record, job = due(refuses="prepare")
    assert dispatch(job).metadata == {
        "project_id": "reminders",
        "record_id": str(record.pk),
        "occurrence_at": job.payload["occurrence_at"],
        "record_revision": job.payload["record_revision"],
    }


def test_dispatch_that_cannot_be_reserved_fails(dispatch: Any) -> None:
    _, job = due(refuses="prepare")
    execution = dispatch(job)
    assert (execution.error_code, execution.receipt) == ("not_reserved", None)
    assert "sold out" in execution.error
    assert not Note.objects.exists()


def test_dispatch_that_cannot_be_reserved_lets_the_record_go_on(dispatch: Any) -> None:
    """changed: the seed's record waits for the next sync."""
    record, job = due(refuses="prepare")
    dispatch(job)
    assert goes_on(record, job)


def test_dispatch_whatever_prepare_returns_is_reserved(dispatch: Any) -> None:
    """changed: the seed takes nothing, and `ok: false`, for a refusal; here it is an exception."""
    _, job = due()
    with (
        mock.patch.object(Reminder, "prepare", return_value=None),
        mock.patch.object(Reminder, "trigger") as trigger,
    ):
        assert dispatch(job).state == "completed"
    trigger.assert_called_once_with(None)


def test_dispatch_stores_the_receipt_before_trigger(dispatch: Any) -> None:
    record, job = due()
    seen: list[Any] = []

    def trigger(self: Reminder, prepared: str) -> None:
        seen.append(Execution.objects.get().receipt)

    with mock.patch.object(Reminder, "trigger", trigger):
        dispatch(job)
    (receipt,) = seen
    assert receipt.pop("recorded_at")
    assert receipt == {
        "state": "dispatching",
        "project_id": "reminders",
        "record_id": str(record.pk),
        "occurrence_at": job.payload["occurrence_at"],
    }


def test_dispatch_hands_trigger_what_prepare_returned(dispatch: Any) -> None:
    _, job = due()
    dispatch(job)
    assert Note.objects.get().text == f"tea at {job.run_at.isoformat()}"


def test_dispatch_of_a_trigger_that_raises_advances_and_raises(dispatch: Any) -> None:
    record, job = due(refuses="trigger")
    assert dispatch(job).error == "ValueError: no paper"
    assert goes_on(record, job)


@pytest.mark.parametrize("refuses", ["", "trigger"])
def test_dispatch_that_cannot_advance_fails_with_the_triggers_error_beside(
    dispatch: Any, refuses: str
) -> None:
    _, job = due(refuses=refuses)
    with mock.patch.object(dispatching, "sync_over", side_effect=OSError("disk full")):
        execution = dispatch(job)
    assert execution.error_code == "advance_failed"
    assert "disk full" in execution.error
    assert ("no paper" in execution.traceback) == bool(refuses)


def test_dispatch_returns_what_it_did(dispatch: Any) -> None:
    record, job = due()
    assert dispatch(job).result == {
        "dispatched": True,
        "record_id": str(record.pk),
        "occurrence_at": job.payload["occurrence_at"],
    }
    assert goes_on(record, job)
