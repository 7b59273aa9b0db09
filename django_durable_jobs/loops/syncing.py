"""Making the jobs of loop records what the records say; a constant number of statements for many.

A record is decided on twice: as it is read, and where there is something to be written, once more
under a lock on its row. So nothing is locked, and nothing written, while nothing changes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import Error, connections, router
from django.db.models import Model, QuerySet
from django.db.transaction import atomic, on_commit

from ..conf import settings
from ..db import current_clock, is_transient, is_trouble, retrying, transaction
from ..enqueueing import enqueue_many
from ..errors import InvalidJob, WrongState
from ..jobs import cancel_many
from ..models import Job, LoopRecord
from ..models.loop import KEPT_BY_SYNC
from ..namespaces import database
from ..refreshing import refresh_many
from ..states import State
from .occurrences import TARGET, key_hash_of, occurrence_of
from .records import (
    PREFIX,
    as_they_are,
    key_in,
    loop_models,
    model_of,
    record_of,
    root_key,
    root_of,
    type_of,
)
from .rules import DELETED, Known, Verdict, decide, synced_digest
from .strays import entries_of, strays_of

logger = logging.getLogger(__name__)

# How many records, or queued jobs, one round of statements is for: the leader, who does a round at
# a time, has ticks to fire.
PART = 250
# in_failed_sql_transaction: PostgreSQL's answer to whatever follows a statement that failed.
ABORTED = "25P02"


def sync_loops(model: type[LoopRecord] | None = None, *, using: str | None = None) -> int:
    """Reconcile loop records with their jobs: of ``model``, None for all; return how many changed.

    Finds what no signal told of: bulk operations, raw SQL, fixtures, and occurrences whose process
    died before the record went on. In the steady state it writes nothing. One record's error is
    stored in its ``last_error``; the rest go on. (The seed's sync.)

    Raises InvalidJob where ``using`` is not the database that jobs live in: the jobs of loop
    records are in that one only.
    """
    if (alias := database(using)) != database():
        problem = f"{alias!r} is not where the jobs of loop records live: {database()!r} is"
        raise InvalidJob(f"using: {problem}", field="using", path="using")
    return sum(sync_steps(model))


def sync_steps(model: type[LoopRecord] | None = None, *, using: str | None = None) -> Iterator[int]:
    """Reconcile little by little: yield how many of some hundred records were changed, and go on.

    For the leader, which has ticks to fire in between. One that leads in another database than
    that of the records' jobs has nothing to do: each occurrence would have a second job there.
    """
    alias = database(using)
    if alias != database():
        return
    for each in loop_models() if model is None else [root_of(model)]:
        yield from _reconcile(each, alias)


def records_written(model: type[Model], keys: Sequence[Any], records_using: str) -> None:
    """Sync the records of these keys, which were just written or deleted: in the same transaction
    where they live beside the jobs, else when it is committed, with the reconcile behind it.

    Whoever wrote them has done so whatever becomes of this: an error is logged, and the reconcile
    goes on with it. One of the database's is raised: on most, the transaction is lost to it.
    """
    root, alias = root_of(model), database()

    def sync() -> None:
        try:
            _sync_all(root, keys, alias, saved=True)
        except Error:
            raise
        except Exception:
            logger.exception("loop records not synced type=%s", type_of(root))

    if records_using == alias:
        sync()
    else:
        on_commit(sync, using=records_using, robust=True)


def sync_over(record: LoopRecord, digest: str, job: Job, alias: str) -> None:
    """Sync a record that the caller has locked, whose occurrence is as good as over: its job, which
    is still running, will be settled in a moment. Changes the record in memory.
    """
    jobs = {digest: Known(job.pk, State.COMPLETED, job.owner_id, job.target_id)}
    _write(_verdicts([record], jobs, alias), root_of(type(record)), alias)


def multi_user() -> bool:
    """Tell whether each occurrence must have an owner."""
    value = settings.MULTI_USER
    return value if isinstance(value, bool) else bool(value())


def _late() -> float:
    return 2 * settings.LEASE


def jobs_ended(ids: Sequence[UUID], using: str) -> None:
    """Sync the records whose occurrences were cancelled or interrupted, once that is committed.

    Not before: who saves a record locks it before its job, and here it would be the other way.
    """

    def sync() -> None:
        jobs = Job.objects.using(using).filter(pk__in=ids, target_kind=TARGET)
        keys: dict[type[LoopRecord], list[Any]] = {}
        for job_type, target in jobs.values_list("type", "target_id"):
            root = model_of(job_type)
            if root is not None and (key := key_in(root, target)) is not None:
                keys.setdefault(root, []).append(key)
        for root, found in keys.items():
            _sync_all(root, found, using)

    on_commit(sync, using=using, robust=True)


def refuse_stale(job: Job) -> None:
    """Refuse that an occurrence is requeued whose record has moved on, or cannot go on from it."""
    root = model_of(job.type)
    if root is None or job.namespace != settings.NAMESPACE:
        return
    record = record_of(root, job.target_id)
    try:
        occurrence = None if record is None or not record.enabled else occurrence_of(record)
        if record is not None:
            record.get_recurrence()
    except Exception as error:  # foreign code: the record's hooks
        raise WrongState(
            f"Job {job.pk} is an occurrence of a record that is to be mended first: {error}",
            job_id=job.pk,
            state=job.state,
        ) from error
    if occurrence is None or occurrence.key != job.idempotency_key:
        raise WrongState(
            f"Job {job.pk} is an occurrence that its record has moved on from: run the record now"
            " instead.",
            job_id=job.pk,
            state=job.state,
        )


def _reconcile(root: type[LoopRecord], alias: str) -> Iterator[int]:
    records = root._base_manager.using(router.db_for_write(root)).order_by("pk")
    changed = queued = 0
    page = records[:PART]
    while True:
        written, waiting, last = _sync_page(root, page, alias)
        if last is None:
            break
        changed, queued = changed + written, queued + waiting
        yield written
        page = records.filter(pk__gt=last)[:PART]
    if not changed and queued == entries_of(root, alias).count():
        return  # each queued job is that of a record
    for found in strays_of(root, alias, PART):
        yield sum(len(cancel_many(ids, why, using=alias)) for why, ids in found.items())


def _sync_page(
    root: type[LoopRecord], page: QuerySet[LoopRecord], alias: str
) -> tuple[int, int, Any]:
    """Sync some records: return what `_sync_part` does, and the key of the last, None for none."""
    try:
        part = list(page)
        if not part:
            return 0, 0, None
        return *_sync_part(root, as_they_are(root, part, page.db), alias), part[-1].pk
    except Exception as error:
        if isinstance(error, Error) and _concerns_all(error, alias):
            raise
        # One that cannot be read, say, having been edited by hand, or whose hook asks the database
        # for what it refuses: the rest go on without it.
        keys = list(page.values_list("pk", flat=True))
        return sum(_sync_alone(root, key, alias) for key in keys), 0, keys[-1] if keys else None


def _sync_alone(root: type[LoopRecord], key: Any, alias: str) -> int:
    try:
        return _sync_all(root, [key], alias)
    except Exception as error:
        if isinstance(error, Error):
            if _concerns_all(error, alias):
                raise
            return _note_refusal(root, key, alias)
        logger.exception("loop record not synced type=%s record=%s", type_of(root), key)
        return 0


def _concerns_all(error: Error, alias: str) -> bool:
    """Tell whether nothing can go on behind this error: it was no statement of a record's hooks."""
    if connections[alias].in_atomic_block:
        return True
    aborted = getattr(error.__cause__, "sqlstate", "") == ABORTED
    return not aborted and (is_transient(error) or is_trouble(error))


def _note_refusal(root: type[LoopRecord], key: Any, alias: str) -> int:
    """Store what a record's hooks ran into; outside of a transaction, which would be lost to it."""
    using = router.db_for_write(root)
    rows = root._base_manager.using(using).filter(pk=key)
    for record in as_they_are(root, list(rows), using):
        before = record.last_error
        now = current_clock().now(connections[alias])
        decide(record, _jobs_of([record], alias), now, late=_late(), multi_user=multi_user())
        if record.last_error != before:
            return rows.update(last_error=record.last_error)
    return 0


def _sync_part(root: type[LoopRecord], part: Sequence[LoopRecord], alias: str) -> tuple[int, int]:
    """Sync records as they were read: those alone that something is to be written for.

    Return how many were changed, and how many had a queued job before.
    """
    jobs, multi = _jobs_of(part, alias), multi_user()
    now = current_clock().now(connections[alias])
    late = _late()
    keys = [
        root_key(record, root)
        for record in part
        if not record.synced or not decide(record, jobs, now, late=late, multi_user=multi).is_idle
    ]
    queued = sum(job.state == State.QUEUED for job in jobs.values())
    return _sync_all(root, keys, alias) if keys else 0, queued


def _sync_all(
    root: type[LoopRecord], keys: Sequence[Any], alias: str, *, saved: bool = False
) -> int:
    """Sync the records of these keys under locks; return how many were changed."""
    changed = 0
    for start in range(0, len(keys), PART):
        part = keys[start : start + PART]

        def sync(part: Sequence[Any] = part) -> int:
            return _sync_locked(root, part, alias, saved=saved)

        inside = connections[alias].in_atomic_block
        changed += sync() if inside else retrying(sync)
    return changed


def _sync_locked(
    root: type[LoopRecord], keys: Sequence[Any], alias: str, *, saved: bool = False
) -> int:
    records_using = router.db_for_write(root)
    with transaction(alias), atomic(using=records_using, savepoint=False):
        rows = root._base_manager.using(records_using).select_for_update()
        found = list(rows.filter(pk__in=keys).order_by("pk"))
        records = as_they_are(root, found, records_using)
        verdicts = _verdicts(records, _jobs_of(records, alias), alias, saved=saved)
        _write([each for each in verdicts if not each[1].is_idle], root, alias)
        gone = _cancel_of(root, set(keys) - {record.pk for record in found}, alias)
    return sum(not verdict.is_idle for _, verdict in verdicts) + gone


def _verdicts(
    records: Sequence[LoopRecord], jobs: dict[str, Known], alias: str, *, saved: bool = False
) -> list[tuple[LoopRecord, Verdict]]:
    """Decide on records that are locked, and give those an identity of their own that have come to
    an occurrence for which there is a job already: another record's, of which this is a copy.
    """
    now, late, multi = current_clock().now(connections[alias]), _late(), multi_user()
    verdicts = []
    for record in records:
        before = {name: getattr(record, name) for name in KEPT_BY_SYNC}
        verdict = decide(record, jobs, now, late=late, multi_user=multi, saved=saved)
        verdicts.append((record, before, verdict))
    wanted = {verdict.put_in["idempotency_key"] for *_, verdict in verdicts if verdict.put_in}
    taken = {PREFIX + digest for digest in _known({key[len(PREFIX) :] for key in wanted}, alias)}
    for record, before, verdict in verdicts:
        if verdict.put_in is None:
            continue
        if (key := verdict.put_in["idempotency_key"]) in taken:
            record.begin_anew()
            again = decide(record, {}, now, late=late, multi_user=multi)
            verdict.put_in = again.put_in
            verdict.changes = {
                name: getattr(record, name)
                for name, value in before.items()
                if getattr(record, name) != value
            }
        taken.add(key)
    return [(record, verdict) for record, _, verdict in verdicts]


def _cancel_of(root: type[LoopRecord], keys: set[Any], alias: str) -> int:
    """Cancel the queued jobs of records that are no more; return how many."""
    if not keys:
        return 0
    jobs = Job.objects.using(alias).filter(
        target_kind=TARGET, target_id__in=[str(key) for key in keys], type=type_of(root)
    )
    queued = jobs.filter(namespace=settings.NAMESPACE, state=State.QUEUED)
    return len(cancel_many(list(queued.values_list("pk", flat=True)), DELETED, using=alias))


def _jobs_of(records: Sequence[LoopRecord], alias: str) -> dict[str, Known]:
    """Return the jobs of what the records point at, and of what they pointed at, by digest."""
    digests = {synced_digest(record.synced) for record in records}
    for record in records:
        try:
            occurrence = occurrence_of(record)
        except Exception:  # foreign code: the record's hook; deciding meets it again
            logger.debug("get_project_id failed record=%s", record.pk, exc_info=True)
        else:
            digests |= {occurrence.digest} if occurrence else set()
    return _known(digests, alias)


def _known(digests: Iterable[str], alias: str) -> dict[str, Known]:
    """Return the jobs of these occurrences, by digest."""
    by_hash = {key_hash_of(digest): digest for digest in digests if digest}
    hashes, found = list(by_hash), {}
    for start in range(0, len(hashes), PART):
        rows = Job.objects.using(alias).filter(
            namespace=settings.NAMESPACE, key_hash__in=hashes[start : start + PART]
        )
        columns = ("key_hash", "pk", "state", "owner_id", "target_id")
        for key_hash, id, state, owner_id, target in rows.values_list(*columns):
            found[by_hash[str(key_hash)]] = Known(id, state, owner_id, target)
    return found


def _write(
    decided: Sequence[tuple[LoopRecord, Verdict]], root: type[LoopRecord], alias: str
) -> None:
    reasons: dict[str, list[UUID]] = {}
    for _, verdict in decided:
        for id, reason in verdict.cancel:
            reasons.setdefault(reason, []).append(id)
    for reason, ids in reasons.items():
        cancel_many(ids, reason, using=alias)
    refreshed = dict(verdict.refresh for _, verdict in decided if verdict.refresh is not None)
    if refreshed:  # what was claimed a moment ago stays: its handler asks the record itself
        refresh_many(refreshed, using=alias)
    enqueue_many([verdict.put_in for _, verdict in decided if verdict.put_in], using=alias)
    changed = [(record, verdict.changes) for record, verdict in decided if verdict.changes]
    _store(changed, root)


def _store(changed: Sequence[tuple[LoopRecord, dict[str, Any]]], root: type[LoopRecord]) -> None:
    using = router.db_for_write(root)
    rows = root._base_manager.using(using)
    if len(changed) == 1:
        record, values = changed[0]
        rows.filter(pk=root_key(record, root)).update(**values)
    elif changed:
        names = sorted({name for _, values in changed for name in values})
        key = root._meta.pk.attname
        written = [
            # One with a key of its own is written by its parent's.
            record
            if record.pk == getattr(record, key)
            else root(**{name: getattr(record, name) for name in (key, *names)})
            for record, _ in changed
        ]
        rows.bulk_update(written, names, batch_size=PART)


async_loops = sync_to_async(sync_loops)
