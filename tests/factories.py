"""Rows that are valid in any state, written straight into the tables.

They skip the verbs on purpose: a test of one verb should not need the others to work.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connections

from django_durable_jobs.ids import uuid7
from django_durable_jobs.jobspec import JobSpec
from django_durable_jobs.models import Execution, Job, QueueEntry, Worker
from django_durable_jobs.states import (
    ACTIVE,
    ENDED_AT,
    SETTLED,
    UNCLAIMED,
    ExecutionState,
    InterruptionReason,
    State,
)

LEASE = timedelta(seconds=30)


def now() -> datetime:
    return datetime.now(UTC)


def make_job(
    state: str = State.QUEUED,
    *,
    execution: bool = True,
    worker: Worker | uuid.UUID | None = None,
    using: str = "default",
    **values: Any,
) -> Job:
    """Make a job in ``state``, due since a minute, with what belongs to it.

    A queued one gets its queue entry (from its columns, due if ``claimable_at`` has come); one
    that was claimed gets the execution of its claim unless ``execution`` is False. ``values`` are
    columns of Job; ``fingerprint`` and ``key_hash`` follow from the others unless given.
    """
    state = State(state)
    then = values.pop("created_at", None) or now() - timedelta(minutes=1)
    columns: dict[str, Any] = {
        "id": uuid7(),
        "namespace": "default",
        "queue": "default",
        "type": "test.job",
        "idempotency_key": uuid.uuid4().hex,
        "key_scope": "ever",
        "owner_id": "",
        "project_id": "default",
        "payload": None,
        "meta": {},
        "priority": 0,
        "run_at": then,
        "state": state,
        "created_at": then,
        "updated_at": then,
        "attempts": 0 if state in UNCLAIMED else 1,
        "claim_id": None if state in UNCLAIMED else uuid.uuid4(),
        "finished_at": now() if state in SETTLED else None,
    } | values
    columns.setdefault("claimable_at", columns["run_at"])
    columns.setdefault("target", {"kind": "job", "id": columns["type"]})
    columns.setdefault("target_kind", columns["target"]["kind"])
    columns.setdefault("target_id", columns["target"]["id"])
    spec = _spec(columns)
    columns.setdefault("fingerprint", spec.fingerprint)
    freed = columns["key_scope"] == "live" and state in SETTLED
    columns.setdefault("key_hash", None if freed else spec.key_hash)
    job = Job.objects.using(using).create(**columns)
    if state == State.QUEUED:
        make_entry(job)
    elif state not in UNCLAIMED and execution:
        make_execution(job, worker=worker)
    return job


def _spec(columns: dict[str, Any]) -> JobSpec:
    names = (
        *("namespace", "type", "payload", "run_at", "owner_id", "project_id", "target"),
        *("idempotency_key", "key_scope", "priority", "queue", "meta", "id"),
    )
    return JobSpec(**{name: columns[name] for name in names})


def make_entry(job: Job, **values: Any) -> QueueEntry:
    """Make the queue entry of a queued job, from the job's own columns."""
    columns: dict[str, Any] = {
        name: getattr(job, name)
        for name in (
            *("namespace", "queue", "owner_id", "run_at", "created_at", "claimable_at", "type"),
            *("attempts", "max_attempts"),
        )
    }
    columns |= {"due": job.claimable_at <= now(), "rank": -job.priority} | values
    return QueueEntry.objects.using(job._state.db).create(job=job, **columns)


def make_execution(
    job: Job,
    state: str | None = None,
    *,
    worker: Worker | uuid.UUID | None = None,
    **values: Any,
) -> Execution:
    """Make an attempt at ``job``, in the state that fits the job's unless ``state`` is given.

    By default it is the one that holds (or held) the job's claim. ``worker`` may be an id of a
    worker that has no row (the table allows that); None takes a fresh one.
    """
    if state is None:
        # A job that waits or was cancelled has at most attempts that failed before.
        fits = {s.value for s in ExecutionState}
        state = job.state if job.state in fits else ExecutionState.FAILED
    state = ExecutionState(state)
    then = values.get("claimed_at") or job.created_at
    columns: dict[str, Any] = {
        "namespace": job.namespace,
        "owner_id": job.owner_id,
        "attempt": max(job.attempts, 1),
        "claim_id": job.claim_id or uuid.uuid4(),
        "worker_id": worker.pk if isinstance(worker, Worker) else worker or uuid.uuid4(),
        "state": state,
        "lease_expires_at": now() + LEASE,
        "claimed_at": then,
        "updated_at": then,
    }
    if state not in (ExecutionState.CLAIMED, ExecutionState.RELEASED):
        columns["started_at"] = then
    if state in ENDED_AT:
        columns[ENDED_AT[state]] = job.finished_at or now()
    if state == ExecutionState.INTERRUPTED:
        columns["interruption_reason"] = InterruptionReason.WORKER_LOST
    if state == ExecutionState.FAILED:
        columns |= {"error": "ValueError: no", "error_code": "", "traceback": "Traceback …"}
    return Execution.objects.using(job._state.db).create(job=job, **(columns | values))


def make_worker(*, using: str = "default", **values: Any) -> Worker:
    """Make a live worker that serves every queue and knows "test.job"."""
    columns: dict[str, Any] = {
        "id": uuid7(),
        "namespace": "default",
        "host": "host.example",
        "pid": 4_242,
        "started_at": now(),
        "heartbeat_at": now(),
        "types": ["test.job"],
        "concurrency": 4,
    }
    return Worker.objects.using(using).create(**(columns | values))


def assert_queue_is_sound(using: str = "default") -> None:
    """Assert that exactly the queued jobs have queue entries, and that these say the same."""
    entries = {entry.pk: entry for entry in QueueEntry.objects.using(using)}
    jobs = {job.pk: job for job in Job.objects.using(using)}
    assert set(entries) == {pk for pk, job in jobs.items() if job.state == State.QUEUED}
    same = (
        *("namespace", "queue", "owner_id", "run_at", "created_at", "type"),
        *("attempts", "max_attempts"),
    )
    for pk, entry in entries.items():
        job = jobs[pk]
        # Since when a due job has been claimable is not the same to the microsecond.
        assert entry.claimable_at == job.claimable_at or (
            entry.due and abs(entry.claimable_at - job.claimable_at) < timedelta(seconds=5)
        )
        assert [getattr(entry, name) for name in same] == [getattr(job, name) for name in same]
        assert entry.rank == -job.priority
    active = {job.claim_id for job in jobs.values() if job.state in ACTIVE}
    running = Execution.objects.using(using).filter(state__in=ACTIVE)
    assert set(running.values_list("claim_id", flat=True)) == active


def spoil(job_id: uuid.UUID) -> None:
    """Make the row one that cannot be loaded, by a number that Python refuses for its length."""
    connection = connections["default"]
    key = job_id if connection.features.has_native_uuid_field else job_id.hex
    cast = "::jsonb" if connection.vendor == "postgresql" else ""
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE django_durable_jobs_job SET payload = %s{cast} WHERE id = %s",
            [f'{{"n": {"9" * 5_000}}}', key],
        )


__all__ = [
    "assert_queue_is_sound",
    "make_entry",
    "make_execution",
    "make_job",
    "make_worker",
    "now",
    "spoil",
]
