"""Running an occurrence: the handler of the jobs that loop records become (the seed's dispatch)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Protocol

from django.db import connections, router
from django.db.transaction import atomic

from ..db import current_clock, retrying, transaction
from ..errors import OccurrenceRefused
from ..fields import to_utc
from ..models import Job, LoopRecord
from ..namespaces import database
from .occurrences import microseconds, occurrence_of, stamp
from .records import as_they_are, key_in, record_of
from .rules import owner_of
from .syncing import multi_user, sync_over


class Context(Protocol):
    """What is asked of a running job's context: see ``worker.JobContext``."""

    @property
    def job(self) -> Job: ...
    def record_metadata(self, value: Any) -> object: ...
    def record_receipt(self, value: Any) -> object: ...


def handler_of(root: type[LoopRecord]) -> Callable[..., dict[str, Any]]:
    """Return the handler of this model's occurrences."""

    def dispatch(
        context: Context,
        *,
        record_id: str,
        occurrence_at: datetime,
        occurrence_key: str,
        schedule_identity: str,
        schedule_epoch: int,
        record_revision: int,
    ) -> dict[str, Any]:
        return _dispatch(root, context, record_id, to_utc(occurrence_at))

    return dispatch


def can_run_of(root: type[LoopRecord]) -> Callable[[Job], bool]:
    """Return the eligibility of this model's occurrences (the seed's canRun)."""

    def can_run(job: Job) -> bool:
        record = record_of(root, job.target_id)
        if record is None or _refusal(record, job) is not None:
            return True  # for the handler to refuse
        return bool(record.authorize(job.owner_id)) and bool(record.can_run())

    return can_run


def _dispatch(root: type[LoopRecord], context: Context, key: str, due: datetime) -> dict[str, Any]:
    record = record_of(root, key)
    if record is None:
        raise OccurrenceRefused("The record was deleted.", code="record_deleted")
    told = {"project_id": context.job.project_id, "record_id": key, "occurrence_at": stamp(due)}
    failure: BaseException | None = None
    try:
        _run(record, context, told, due)
    except BaseException as error:  # one that ran past its time limit goes on as well
        failure = error
    try:
        _go_on(root, context.job)
    except Exception as error:
        raise OccurrenceRefused(
            f"The record's next time could not be stored: {error}", code="advance_failed"
        ) from (failure or error)
    if failure is not None:
        raise failure
    return {"dispatched": True, "record_id": key, "occurrence_at": stamp(due)}


def _run(record: LoopRecord, context: Context, told: dict[str, Any], due: datetime) -> None:
    """Take an occurrence through its stages, as far as its trigger."""
    owner = context.job.owner_id
    refusal = _refusal(record, context.job)
    if refusal is not None:
        raise refusal
    if not record.authorize(owner):
        raise OccurrenceRefused(
            f"The owner {owner!r} is not authorised any more.", code="owner_not_authorized"
        )
    context.record_metadata({**told, "record_revision": microseconds(record.updated_at)})
    try:
        prepared = record.prepare(due)
    except Exception as error:
        raise OccurrenceRefused(
            f"The occurrence could not be reserved: {error}", code="not_reserved"
        ) from error
    now = current_clock().now(connections[database()])
    context.record_receipt({"state": "dispatching", **told, "recorded_at": stamp(now)})
    record.trigger(prepared)


def _refusal(record: LoopRecord, job: Job) -> OccurrenceRefused | None:
    """Return why this occurrence of the record is not to run, None where it is."""
    occurrence = occurrence_of(record)
    if not record.enabled or occurrence is None or occurrence.key != job.idempotency_key:
        return OccurrenceRefused(
            "The occurrence is stale: the record is disabled, or points at another time.",
            code="occurrence_stale",
        )
    if owner_of(record, multi_user=multi_user()) != job.owner_id:
        return OccurrenceRefused("The record has another owner.", code="owner_changed")
    return None


def _go_on(root: type[LoopRecord], job: Job) -> None:
    """Have the record point at its next time, with a job for that, if it still points at this.

    Raises OccurrenceRefused where it has none to point at: its hooks or its recurrence fail.
    """
    alias, using = database(), router.db_for_write(root)

    def advance() -> str:
        with transaction(alias), atomic(using=using, savepoint=False):
            rows = root._base_manager.using(using).select_for_update()
            locked = rows.filter(pk=key_in(root, job.target_id)).first()
            record = None if locked is None else as_they_are(root, [locked], using)[0]
            occurrence = None if record is None else occurrence_of(record)
            if record is None or occurrence is None or occurrence.key != job.idempotency_key:
                return ""
            sync_over(record, occurrence.digest, job, alias)
            return record.last_error

    if problem := advance() if connections[alias].in_atomic_block else retrying(advance):
        raise OccurrenceRefused(problem, code="advance_failed")
