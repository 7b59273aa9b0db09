"""Reminders and their jobs: whether each matches the other, for tests that do all sorts to both."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django_durable_jobs.loops import handler_of
from django_durable_jobs.loops.occurrences import job_of, occurrence_of
from django_durable_jobs.loops.rules import synced_digest
from django_durable_jobs.models import Job
from django_durable_jobs.states import ACTIVE, State
from tests.app.models import LoudReminder, Reminder
from tests.factories import assert_queue_is_sound


class Context:
    """What a handler is given, as far as occurrences ask for it."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def record_metadata(self, value: Any) -> None:
        """Take it."""

    record_receipt = record_metadata


def run(job: Job) -> Any:
    """Call the handler of a reminder's occurrence."""
    due = datetime.fromisoformat(job.payload["occurrence_at"])
    return handler_of(Reminder)(Context(job), **job.payload | {"occurrence_at": due})


def special(record: Reminder) -> Reminder:
    """Return the record as the most special model that it is a row of."""
    return LoudReminder.objects.filter(pk=record.pk).first() or record


def assert_in_step(now: datetime, *, reconciled: bool) -> None:
    """Assert that each enabled, scheduled, owned record has exactly one live job, which matches it,
    and that no other job lives, but for those that had begun.

    An occurrence that an operator cancelled stays so; once ``reconciled``, only until its time.
    """
    assert_queue_is_sound()
    live: dict[str, list[Job]] = {}
    for job in Job.objects.filter(state__in=[State.QUEUED, *ACTIVE]):
        live.setdefault(job.target_id, []).append(job)
    for record in map(special, Reminder.objects.all()):
        mine = live.pop(str(record.pk), [])
        queued = [job for job in mine if job.state == State.QUEUED]
        if record.last_error:
            # It says why there is nothing new; what the record had when its hook failed may stay.
            kept = "loop-occurrence:" + synced_digest(record.synced)
            assert [job.idempotency_key for job in queued] in ([], [kept])
            continue
        owner = record.get_owner_id()
        assert record.needs_owner == (not owner)
        occurrence = occurrence_of(record)
        if not record.enabled or not owner or occurrence is None:
            assert queued == []
            assert occurrence is not None or not record.enabled or record.get_recurrence() is None
            continue
        assert [job for job in queued if job.idempotency_key != occurrence.key] == []
        current = [job for job in mine if job.idempotency_key == occurrence.key]
        if not current:
            cancelled = Job.objects.get(idempotency_key=occurrence.key)
            assert cancelled.state == State.CANCELLED
            assert not (cancelled.cancelled_reason or "").startswith("record_"), (
                "not by an operator"
            )
            assert occurrence.due > now or not reconciled
            continue
        (job,) = current
        assert job.target_id == str(record.pk)
        assert job.run_at == record.next_run_at
        if job.state == State.QUEUED:
            assert_matches(job, job_of(record, occurrence, owner))
    # Of records that are no more.
    assert [job for jobs in live.values() for job in jobs if job.state == State.QUEUED] == []


def assert_matches(job: Job, wanted: dict[str, Any]) -> None:
    """Assert that a queued job is what its record's would be if it were put in now."""
    names = ("type", "owner_id", "project_id", "target", "run_at", "idempotency_key")
    assert {name: getattr(job, name) for name in names} == {name: wanted[name] for name in names}
    # What was requeued, or found by a reconcile, may be of an earlier revision.
    payload = dict(wanted["payload"])
    assert job.payload["record_revision"] <= payload.pop("record_revision")
    assert payload.items() <= job.payload.items()
