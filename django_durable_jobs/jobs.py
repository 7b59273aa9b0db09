"""Steering a job from outside: cancel, stop, replace, requeue, resolve.

Called by the host project, on its own connection and inside its own transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import IntegrityError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet
from django.db.models.functions import Coalesce, Greatest
from django.db.transaction import atomic

from . import signals
from .audit import audited, job_event, send
from .db import current_clock, is_duplicate, now_expression, statements_for, transaction
from .errors import IdempotencyConflict, InvalidJob, NotQueued, WrongState
from .jobspec import JobSpec, hash_key
from .lookup import JobRef, missing, one, pk_of
from .models import Execution, Job, JobQuerySet, QueueEntry
from .namespaces import announce, announce_stop, database, retried, words
from .registry import Handler, JobFunction, get
from .states import ACTIVE, SETTLED, HeldReason, State
from .strictjson import storable_text

CANCEL_REASON_MAX_CHARS = 1_024
NOTE_MAX_CHARS = 4_096
# Read when it is asked for: a row edited by hand may hold something unreadable.
_JSON = ("target", "payload", "meta")

T = TypeVar("T")


@retried
def cancel(id: JobRef, reason: str | None = None, *, using: str | None = None) -> Job | None:
    """Withdraw a queued job; return it, or None where there is no such job (the seed's cancel).

    A job that waits for its retry is queued. A reason that is not text is stored as None, one
    over 1,024 characters is cut. Raises NotQueued.
    """
    job_id, alias = pk_of(id), database(using)
    if job_id is None:
        return None
    with transaction(alias) as connection:
        cancelled, job = _cancel(connection, job_id, _told(reason))
        if job is not None and not cancelled:
            raise NotQueued(job_id=job_id, state=job.state)
    return job


def cancel_many(ids: Sequence[UUID], reason: str, *, using: str) -> list[UUID]:
    """Withdraw those of the jobs that are queued, in a few statements; return them.

    For the machinery: what is not queued stays as it is, without a word.
    """
    if not ids:
        return []
    with transaction(using) as connection:
        entries = QueueEntry.objects.using(using).filter(pk__in=ids).order_by("pk")
        queued = list(entries.select_for_update().values_list("pk", flat=True))
        QueueEntry.objects.using(using).filter(pk__in=queued).delete()
        now = now_expression(connection)
        Job.objects.using(using).filter(pk__in=queued).move(
            "cancel",
            cancelled_reason=reason,
            finished_at=now,
            updated_at=now,
            held_since=None,
            held_reason="",
        )
        if audited():
            for job in Job.objects.using(using).filter(pk__in=queued).defer(*_JSON):
                _tell("job.cancelled", job, using, reason=reason)
    return queued


@retried
def request_stop(id: JobRef, reason: str | None = None, *, using: str | None = None) -> Job | None:
    """Ask a claimed or running job to stop; cancel a queued one. Return it, None where there is
    no such job.

    Its worker hears of it within a heartbeat, mostly at once. A job that returns all the same
    within a few seconds is completed; else it becomes interrupted ("stop_requested") and is not
    run again by itself, whatever its handler declares. ``reason`` is kept as ``cancel`` keeps it.
    Raises WrongState for a job that has ended.
    """
    job_id, alias, text = pk_of(id), database(using), _told(reason)
    if job_id is None:
        return None
    with transaction(alias) as connection:
        state = ""
        for _ in range(3):  # it may go back to the queue, or be claimed, between two looks
            cancelled, job = _cancel(connection, job_id, text)
            if job is None or cancelled:
                return job
            state = job.state
            if state in ACTIVE and _ask_to_stop(connection, job, text):
                return _steered(job_id, alias).get()
            if state in SETTLED:
                break
        raise WrongState(
            f"Only queued, claimed or running jobs can be stopped: job {job_id} is {state}.",
            job_id=job_id,
            state=state,
        )


@retried
def replace_queued(id: JobRef, /, *, using: str | None = None, **changes: Any) -> Job | None:
    """Change a queued job; return it, None where there is no such one (the seed's replaceQueued).

    Any of type, idempotency_key, owner_id, project_id, target, payload, run_at, priority, queue,
    meta; what is left out stays, an explicit None is a value; id and created_at stay. Equal data
    writes nothing. A job that waits for its retry waits on, unless ``run_at`` changes.

    Raises NotQueued, InvalidJob (an unknown name too) and IdempotencyConflict (another job has
    the key).
    """
    job_id, alias = pk_of(id), database(using)
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
            one(job_id, alias).filter(state=State.QUEUED),
            {**values, "updated_at": now_expression(connection)},
            job,
            new.idempotency_key,
        )
        job = one(job_id, alias).get()
        # Updated where it stands: whoever waits for the row would not see one put in its place.
        for name in ("queue", "owner_id", "run_at", "claimable_at", "type"):
            setattr(entry, name, getattr(job, name))
        entry.rank = -job.priority
        if "claimable_at" in values:
            entry.due = job.claimable_at <= current_clock().now(connection)
        entry.save(using=alias, force_update=True)
        _tell("job.replaced", job, alias)
        announce(job.namespace, alias)
    return job


@retried
def requeue(id: JobRef, *, using: str | None = None) -> Job:
    """Put a failed, interrupted or cancelled job back into the queue, with one more attempt.

    An operator's decision, never the machinery's. Raises JobDoesNotExist, WrongState, and
    IdempotencyConflict where another job has taken its key meanwhile.
    """
    job_id, alias = pk_of(id), database(using)
    with transaction(alias) as connection:
        job = _steered(job_id, alias).select_for_update().first() if job_id else None
        if job is None:
            raise missing(id, job_id)
        for guard in signals.requeue_guards:
            guard(job)
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
            one(job.pk, alias), values, job, job.idempotency_key, edge="requeue"
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
        _tell("job.requeued", job, alias)
        announce(job.namespace, alias)
    return job


@retried
def resolve(id: JobRef, note: str, *, by: str = "", using: str | None = None) -> Job:
    """Mark an interrupted job completed: its outcome was unknown, and it was done after all.

    The execution keeps its end as it was, with ``note`` and ``by`` (who says so) beside it.
    Raises JobDoesNotExist, WrongState, and InvalidJob where one of these is no text.
    """
    job_id, alias = pk_of(id), database(using)
    resolved_by, resolved_note = words(by, "by", 150), words(note, "note", NOTE_MAX_CHARS)
    with transaction(alias) as connection:
        job = _steered(job_id, alias).first() if job_id else None
        if job is None:
            raise missing(id, job_id)
        now = now_expression(connection)
        # A job without a claim was never interrupted: nothing matches, and the move below refuses.
        executions = Execution.objects.using(alias).filter(job_id=job.pk)
        executions.filter(claim_id=job.claim_id or job.pk).update(
            resolved_at=now,
            resolved_by=resolved_by,
            resolved_note=resolved_note,
            updated_at=now,
        )
        if not one(job.pk, alias).move("resolve", finished_at=now, updated_at=now):
            job = _steered(job.pk, alias).first()  # retention may have taken it meanwhile
            if job is None:
                raise missing(id, job_id)
            raise WrongState(
                f"Only interrupted jobs can be resolved: job {job.pk} is {job.state}.",
                job_id=job.pk,
                state=job.state,
            )
        job = _steered(job.pk, alias).get()
        told = {"claim_id": job.claim_id, "attempt": job.attempts, "by": resolved_by or None}
        _tell("job.resolved", job, alias, reason=resolved_note, **told)
    return job


def _tell(action: str, job: Job, using: str, *, reason: str = "", **more: Any) -> None:
    """Tell the audit trail of a job that was steered, when the transaction commits."""
    if audited():
        named = {"job_id": job.pk, "type": job.type, "owner_id": job.owner_id}
        send([job_event(action, **named, reason=reason, **more)], using=using)


def _steered(id: UUID, using: str) -> JobQuerySet:
    """Return the job without its JSON, read when it is asked for: a row edited by hand into
    something unreadable must still be one that can be cancelled, requeued and resolved.
    """
    return one(id, using).defer(*_JSON)


def _readable(id: UUID, using: str) -> Job:
    try:
        return one(id, using).get()
    except ValueError as error:
        raise InvalidJob(
            f"job {id} cannot be read, its row was edited by hand: {error}; cancel it instead."
        ) from error


def _told(reason: object) -> str | None:
    """Return a reason as it is stored: None where it is no text."""
    return storable_text(reason, CANCEL_REASON_MAX_CHARS) if isinstance(reason, str) else None


def _cancel(
    connection: BaseDatabaseWrapper, job_id: UUID, reason: str | None
) -> tuple[bool, Job | None]:
    """Cancel the job if it is queued; tell whether it was, and return it (None: no such job)."""
    alias = connection.alias
    deleted, job = _with_entry(job_id, alias, lambda entries: entries.delete()[0])
    if job is None or not deleted:
        return False, job
    now = now_expression(connection)
    values = {"cancelled_reason": reason, "finished_at": now, "updated_at": now}
    values |= {"held_since": None, "held_reason": ""}
    if job.key_scope == "live":
        values["key_hash"] = None
    moved = one(job_id, alias).move("cancel", **values)
    if moved:
        _tell("job.cancelled", job, alias, reason=reason or "")
        signals.jobs_ended([job_id], alias)
    return bool(moved), _steered(job_id, alias).get()


def _ask_to_stop(connection: BaseDatabaseWrapper, job: Job, reason: str | None) -> bool:
    """Write the request to stop on a claimed or running job; tell whether it still was that."""
    alias, claim_id = connection.alias, job.claim_id
    assert claim_id is not None
    # Whoever interrupts it from here on, should its worker die, say, does not run it again.
    executions = Execution.objects.using(alias).filter(job_id=job.pk, claim_id=claim_id)
    executions.filter(state__in=ACTIVE).update(requeue_on_interrupt=False)
    now = now_expression(connection)
    values: dict[str, Any] = {
        "stop_requested_at": Coalesce("stop_requested_at", now),
        "updated_at": now,
    }
    if reason is not None:
        values["cancelled_reason"] = reason
    held = one(job.pk, alias).filter(claim_id=claim_id, state__in=ACTIVE)
    asked = bool(held.update(**values))
    if asked:
        announce_stop(job.namespace, claim_id, alias)
    return asked


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


acancel = sync_to_async(cancel)
arequest_stop = sync_to_async(request_stop)
areplace_queued = sync_to_async(replace_queued)
arequeue = sync_to_async(requeue)
aresolve = sync_to_async(resolve)
