"""Before the claim: cancel, replace, requeue, resolve, and looking a job up.

Called by the host project, on its own connection and inside its own transactions.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import IntegrityError, connections
from django.db.models import QuerySet
from django.db.models.functions import Greatest
from django.db.transaction import atomic

from .conf import settings
from .db import current_clock, is_duplicate, now_expression, statements_for, transaction
from .errors import (
    DurableJobsError,
    IdempotencyConflict,
    InvalidJob,
    JobDoesNotExist,
    NotQueued,
    WrongState,
)
from .jobspec import JobSpec, hash_key
from .models import Execution, Job, JobQuerySet, QueueEntry
from .namespaces import announce, database, retried, words
from .parameters import shown
from .registry import Handler, JobFunction, get
from .states import SETTLED, HeldReason, State
from .strictjson import storable_text

CANCEL_REASON_MAX_CHARS = 1_024
NOTE_MAX_CHARS = 4_096

JobRef: TypeAlias = UUID | str | Job

T = TypeVar("T")


@retried
def cancel(id: JobRef, reason: str | None = None, *, using: str | None = None) -> Job | None:
    """Withdraw a queued job; return it, or None where there is no such job (the seed's cancel).

    A job that waits for its retry is queued. A reason that is not text is stored as None, one
    over 1,024 characters is cut. Raises NotQueued.
    """
    job_id, alias = _pk(id), database(using)
    if job_id is None:
        return None
    text = storable_text(reason, CANCEL_REASON_MAX_CHARS) if isinstance(reason, str) else None
    with transaction(alias) as connection:
        deleted, job = _with_entry(job_id, alias, lambda entries: entries.delete()[0])
        if job is None:
            return None
        if not deleted:
            raise NotQueued(job_id=job_id, state=job.state)
        now = now_expression(connection)
        values = {"cancelled_reason": text, "finished_at": now, "updated_at": now}
        values |= {"held_since": None, "held_reason": ""}
        if job.key_scope == "live":
            values["key_hash"] = None
        moved = _one(job_id, alias).move("cancel", **values)
        job = _steered(job_id, alias).get()
        if not moved:
            raise NotQueued(job_id=job_id, state=job.state)
    return job


@retried
def replace_queued(id: JobRef, /, *, using: str | None = None, **changes: Any) -> Job | None:
    """Change a queued job; return it, None where there is no such one (the seed's replaceQueued).

    Any of type, idempotency_key, owner_id, project_id, target, payload, run_at, priority, queue,
    meta; what is left out stays, an explicit None is a value; id and created_at stay. Equal data
    writes nothing. A job that waits for its retry waits on, unless ``run_at`` changes.

    Raises NotQueued, InvalidJob (an unknown name too) and IdempotencyConflict (another job has
    the key).
    """
    job_id, alias = _pk(id), database(using)
    if job_id is None:
        return None
    with transaction(alias) as connection:
        # Locked before it is looked at: a claim either was before or passes it over.
        entry, job = _with_entry(job_id, alias, lambda entries: entries.select_for_update().first())
        if job is None:
            return None
        if entry is None or job.state != State.QUEUED:
            raise NotQueued(job_id=job_id, state=job.state)
        old = _spec_of(job := _readable(job_id, alias))
        new = _replaced(old, changes)
        if _same(old, new):
            return job
        values: dict[str, Any] = {
            name: getattr(new, name)
            for name in ("type", "idempotency_key", "owner_id", "project_id", "target", "priority")
        }
        values |= {"queue": new.queue, "meta": new.meta, "fingerprint": new.fingerprint}
        values |= {"target_kind": new.target["kind"], "target_id": new.target["id"]}
        values |= {"key_hash": new.key_hash, "payload": new.payload}
        if new.run_at != old.run_at or job.held_reason not in ("", HeldReason.RETRY):
            # What it was put off for (no handler, can_run's no) may be what was changed.
            moment = new.run_at or current_clock().now(connection)
            values |= {"run_at": moment, "claimable_at": moment}
            values |= {"held_since": None, "held_reason": ""}
        _update_with_key(
            _one(job_id, alias).filter(state=State.QUEUED),
            {**values, "updated_at": now_expression(connection)},
            job,
            new.idempotency_key,
        )
        job = _one(job_id, alias).get()
        # Updated where it stands: whoever waits for the row would not see one put in its place.
        for name in ("queue", "owner_id", "run_at", "claimable_at", "type"):
            setattr(entry, name, getattr(job, name))
        entry.rank = -job.priority
        if "claimable_at" in values:
            entry.due = job.claimable_at <= current_clock().now(connection)
        entry.save(using=alias, force_update=True)
        announce(job.namespace, alias)
    return job


@retried
def requeue(id: JobRef, *, using: str | None = None) -> Job:
    """Put a failed, interrupted or cancelled job back into the queue, with one more attempt.

    An operator's decision, never the machinery's. Raises JobDoesNotExist, WrongState, and
    IdempotencyConflict where another job has taken its key meanwhile.
    """
    job_id, alias = _pk(id), database(using)
    with transaction(alias) as connection:
        job = _steered(job_id, alias).select_for_update().first() if job_id else None
        if job is None:
            raise _missing(id, job_id)
        now = now_expression(connection)
        values: dict[str, Any] = {
            "claim_id": None,
            "finished_at": None,
            "cancelled_reason": None,
            "stop_requested_at": None,
            "held_since": None,
            "held_reason": "",
            "key_hash": hash_key(job.idempotency_key),
            "claimable_at": Greatest("run_at", now),
            "updated_at": now,
        }
        if job.state != State.CANCELLED:  # cancelled while it waited: an attempt was still due
            values["max_attempts"] = job.attempts + 1
        moved = _update_with_key(
            _one(job.pk, alias), values, job, job.idempotency_key, edge="requeue"
        )
        if not moved:
            raise WrongState(
                f"Only failed, interrupted or cancelled jobs can be requeued: job {job.pk} is"
                f" {job.state}.",
                job_id=job.pk,
                state=job.state,
            )
        statements_for(connection).add_entries([job.pk])
        job = _steered(job.pk, alias).get()
        announce(job.namespace, alias)
    return job


@retried
def resolve(id: JobRef, note: str, *, by: str = "", using: str | None = None) -> Job:
    """Mark an interrupted job completed: its outcome was unknown, and it was done after all.

    The execution keeps its end as it was, with ``note`` and ``by`` (who says so) beside it.
    Raises JobDoesNotExist, WrongState, and InvalidJob where one of these is no text.
    """
    job_id, alias = _pk(id), database(using)
    resolved_by, resolved_note = words(by, "by", 150), words(note, "note", NOTE_MAX_CHARS)
    with transaction(alias) as connection:
        job = _steered(job_id, alias).first() if job_id else None
        if job is None:
            raise _missing(id, job_id)
        now = now_expression(connection)
        # A job without a claim was never interrupted: nothing matches, and the move below refuses.
        executions = Execution.objects.using(alias).filter(job_id=job.pk)
        executions.filter(claim_id=job.claim_id or job.pk).update(
            resolved_at=now,
            resolved_by=resolved_by,
            resolved_note=resolved_note,
            updated_at=now,
        )
        if not _one(job.pk, alias).move("resolve", finished_at=now, updated_at=now):
            raise WrongState(
                f"Only interrupted jobs can be resolved: job {job.pk} is {job.state}.",
                job_id=job.pk,
                state=job.state,
            )
        return _steered(job.pk, alias).get()


def get_job(id: JobRef, *, using: str | None = None) -> Job | None:
    """Return the job, None where there is none (also for an id that is no UUID)."""
    job_id = _pk(id)
    return None if job_id is None else _one(job_id, database(using)).first()


def list_jobs(
    *, namespace: str | None = None, using: str | None = None, **filters: Any
) -> JobQuerySet:
    """Return the namespace's jobs as a queryset, filtered as ``filter`` takes it."""
    jobs: JobQuerySet = Job.objects.using(database(using))
    return jobs.filter(namespace=namespace or settings.NAMESPACE, **filters)


def get_receipt(id: JobRef, *, using: str | None = None) -> Any:
    """Return the receipt of the latest execution; None without job, execution or receipt."""
    job_id = _pk(id)
    if job_id is None:
        return None
    executions = Execution.objects.using(database(using)).filter(job_id=job_id)
    return executions.order_by("-id").values_list("receipt", flat=True).first()


def wait(job: JobRef, timeout: float | timedelta, *, using: str | None = None) -> Job:
    """Block until the job is settled and return it as it is then.

    ``timeout`` is in seconds, or a timedelta; TimeoutError past it, infinity waits for ever.
    Raises at once inside an open transaction (the job could not become visible to a worker),
    InvalidJob for a senseless timeout and JobDoesNotExist where there is no such job.
    """
    seconds, job_id, alias = _seconds(timeout), _pk(job), database(using)
    if connections[alias].in_atomic_block:
        raise DurableJobsError(
            "wait() was called inside a transaction: no worker can see the job before it commits.",
            code="in-transaction",
        )
    deadline, pause = time.monotonic() + seconds, 0.005
    while True:
        found = _one(job_id, alias).first() if job_id else None
        if found is None:
            raise _missing(job, job_id)
        if found.state in SETTLED:
            return found
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"Job {found.pk} is still {found.state} after {seconds:g} s.")
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, 0.25)


def _seconds(timeout: object) -> float:
    value = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0:  # no NaN
        return float(min(value, sys.float_info.max)) if value < math.inf else math.inf
    problem = f"must be a number of seconds or a timedelta, 0 or more, not {shown(timeout)}"
    raise InvalidJob(f"timeout: {problem}", field="timeout", path="timeout")


def _pk(id: JobRef) -> UUID | None:
    return id.pk if isinstance(id, Job) else Job.parse_id(id)


def _missing(id: JobRef, job_id: UUID | None) -> JobDoesNotExist:
    """Return the error for an id without a job; what is no id at all is shown, and cut."""
    return JobDoesNotExist(job_id=job_id or shown(id))


def _one(id: UUID, using: str) -> JobQuerySet:
    jobs: JobQuerySet = Job.objects.using(using)
    return jobs.filter(pk=id)


def _steered(id: UUID, using: str) -> JobQuerySet:
    """Return the job without its JSON, read when it is asked for: a row edited by hand into
    something unreadable must still be one that can be cancelled, requeued and resolved.
    """
    return _one(id, using).defer("target", "payload", "meta")


def _readable(id: UUID, using: str) -> Job:
    try:
        return _one(id, using).get()
    except ValueError as error:
        raise InvalidJob(
            f"job {id} cannot be read, its row was edited by hand: {error}; cancel it instead."
        ) from error


def _with_entry(
    job_id: UUID, using: str, act: Callable[[QuerySet[QueueEntry]], T]
) -> tuple[T, Job | None]:
    """Act on the job's queue entry, then look at the job; again if it was queued in between.

    Whatever queues a job (a retry, a requeue) writes the entry last: one that was not there yet
    for the first statement may be for the next.
    """
    entries = QueueEntry.objects.using(using).filter(pk=job_id)
    for _ in range(3):
        result, job = act(entries), _steered(job_id, using).first()
        if result or job is None or job.state != State.QUEUED:
            break
    return result, job


def _spec_of(job: Job) -> JobSpec:
    """Return what a stored job asks for, validated again."""
    return JobSpec(
        namespace=job.namespace,
        type=job.type,
        payload=job.payload,
        run_at=job.run_at,
        owner_id=job.owner_id,
        project_id=job.project_id,
        target=job.target,
        idempotency_key=job.idempotency_key,
        key_scope="live" if job.key_scope == "live" else "ever",
        priority=job.priority,
        queue=job.queue,
        meta=job.meta,
        id=job.pk,
    )


def _replaced(old: JobSpec, changes: dict[str, Any]) -> JobSpec:
    """Return the spec with changes, its payload bound to the handler where that is known here."""
    changes = dict(changes)
    kind = changes.get("type", old.type)
    if isinstance(kind, JobFunction):
        kind = kind.handler
    if isinstance(kind, Handler):
        kind = changes["type"] = kind.type
    handler = get(kind) if isinstance(kind, str) else None
    if handler is not None:
        payload = handler.parameters.encode(changes.get("payload", old.payload))
        handler.parameters.check(payload)
        changes["payload"] = payload
    return old.replace(**changes)


def _same(old: JobSpec, new: JobSpec) -> bool:
    kept = old.idempotency_key == new.idempotency_key and old.run_at == new.run_at
    return kept and old.meta == new.meta and old.fingerprint == new.fingerprint


def _update_with_key(
    jobs: JobQuerySet, values: dict[str, Any], job: Job, key: str, *, edge: str | None = None
) -> int:
    """Update one job with a key that another job may have: IdempotencyConflict then."""
    try:
        with atomic(using=jobs.db):
            return jobs.move(edge, **values) if edge else jobs.update(**values)
    except IntegrityError as error:
        if not is_duplicate(error):
            raise
        others = Job.objects.using(jobs.db).exclude(pk=job.pk)
        taken = others.filter(namespace=job.namespace, key_hash=values["key_hash"])
        other = taken.only("pk").first()
        if other is None:
            raise
        raise IdempotencyConflict(
            f"The idempotency key {key!r} belongs to another job (job {other.pk}).", job_id=other.pk
        ) from error


def _wait_apart(job: JobRef, timeout: float | timedelta, *, using: str | None = None) -> Job:
    """Wait in a thread that is nobody's, and leave no connection behind in it."""
    alias = database(using)
    try:
        return wait(job, timeout, using=alias)
    finally:
        connections[alias].close()


acancel = sync_to_async(cancel)
areplace_queued = sync_to_async(replace_queued)
arequeue = sync_to_async(requeue)
aresolve = sync_to_async(resolve)
aget_job = sync_to_async(get_job)
aget_receipt = sync_to_async(get_receipt)
# Not thread-sensitive: waiting would hold up every other synchronous call of the caller's.
await_job = sync_to_async(_wait_apart, thread_sensitive=False)
