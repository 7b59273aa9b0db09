"""Putting jobs in: validated, bound to their handler, once for each idempotency key."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, cast
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import connections

from .conf import settings
from .db import Inserted, NewJob, statements_for, transaction
from .errors import DuplicateJob, IdempotencyConflict, InvalidJob
from .ids import uuid7
from .jobspec import JobSpec
from .models import Job
from .namespaces import CHANNEL, database, wake_here
from .registry import Handler, JobFunction, get, set_enqueue
from .states import SETTLED, State
from .strictjson import dumps

logger = logging.getLogger(__name__)

# An existing key can vanish between the insert that met it and the look at it (a job with a
# "live" key settled, or retention came by): then the insert is tried again.
_TRIES = 5


def enqueue(
    type: str | Handler | JobFunction[..., Any],
    payload: Any = None,
    *,
    run_at: datetime | None = None,
    owner_id: str = "",
    project_id: str = "default",
    target: Mapping[str, Any] | None = None,
    idempotency_key: str | None = None,
    key_scope: str = "ever",
    priority: int | None = None,
    queue: str | None = None,
    meta: Mapping[str, Any] | None = None,
    id: UUID | str | None = None,
    namespace: str | None = None,
    using: str | None = None,
) -> Job:
    """Put a job in, as part of the caller's transaction.

    ``type`` is a string or a handler; where the handler is known here the payload is bound to its
    signature at once. ``run_at`` None means now, by the database's clock. With an
    ``idempotency_key`` that was used for the same data, the job that exists is returned
    (``job.created`` is False). The seed's enqueue.

    Raises InvalidJob (naming the field), IdempotencyConflict (the key was used for other data)
    and DuplicateJob (the id exists).
    """
    fields = {name: value for name, value in locals().items() if name not in ("using",)}
    return _enqueue([_spec(fields)], database(using))[0]


def enqueue_many(jobs: Iterable[Mapping[str, Any]], *, using: str | None = None) -> list[Job]:
    """Put many jobs in at once: dicts of ``enqueue``'s names; jobs come back in the order given.

    All or none, by the rules of ``enqueue``, in a small constant number of statements per
    thousand jobs.
    """
    specs = []
    for number, fields in enumerate(jobs):
        unknown = fields.keys() - _ENQUEUE_NAMES
        if unknown or "type" not in fields:
            wrong = f"unknown name {min(unknown)!r}" if unknown else "no type"
            raise InvalidJob(f"jobs[{number}]: {wrong}; accepted: {', '.join(_ENQUEUE_NAMES)}.")
        specs.append(_spec(dict(fields)))
    alias = database(using)
    namespaces = sorted({spec.namespace for spec in specs})
    with transaction(alias):
        made: dict[int, Job] = {}
        for name in namespaces:
            chosen = [n for n, spec in enumerate(specs) if spec.namespace == name]
            # In the order of their keys: two callers that race for the same keys do not deadlock.
            chosen.sort(key=lambda n: specs[n].key_hash)
            for start in range(0, len(chosen), 1_000):
                part = chosen[start : start + 1_000]
                made.update(zip(part, _enqueue([specs[n] for n in part], alias), strict=True))
    return [made[n] for n in range(len(specs))]


_ENQUEUE_NAMES = tuple(name for name in enqueue.__annotations__ if name not in ("using", "return"))


def _spec(fields: dict[str, Any]) -> JobSpec:
    """Validate enqueue's arguments; where the handler is known, encode and bind the payload."""
    type = fields.pop("type")
    handler = type.handler if isinstance(type, JobFunction) else type
    if isinstance(handler, str):
        handler = get(handler)
    if isinstance(handler, Handler):
        type = handler.type if not isinstance(type, str) else type
        fields["payload"] = handler.parameters.encode(fields.get("payload"))
        handler.parameters.check(fields["payload"])
        for name in ("queue", "priority"):
            if fields.get(name) is None:
                fields[name] = getattr(handler, name)
    if fields.get("priority") is None:
        fields["priority"] = 0
    if fields.get("namespace") is None:
        fields["namespace"] = settings.NAMESPACE
    return JobSpec(type=type, **fields)


def _enqueue(specs: Sequence[JobSpec], using: str) -> list[Job]:
    """Insert specs of one namespace, or find the jobs that exist for their keys."""
    made: dict[int, Job] = {}
    ids = [spec.id or uuid7() for spec in specs]
    with transaction(using) as connection:
        statements = statements_for(connection)
        for _ in range(_TRIES):
            left = [n for n in range(len(specs)) if n not in made]
            if not left:
                break
            inserted = statements.insert_jobs(
                [_new_job(specs[n], ids[n]) for n in left],
                notify=CHANNEL if settings.LISTEN else "",
            )
            for n in left:
                # The same id twice in one call: the first has it.
                if times := inserted.pop(ids[n], None):
                    made[n] = _job(specs[n], ids[n], times, using)
            left = [n for n in left if n not in made]
            made.update(_existing([(n, specs[n], ids[n]) for n in left], using))
        if len(made) < len(specs):
            raise IdempotencyConflict("The idempotency key is being used by others over and over.")
    if any(job.created for job in made.values()):
        wake_here(specs[0].namespace, using)
    return [made[n] for n in range(len(specs))]


def _new_job(spec: JobSpec, id: UUID) -> NewJob:
    return NewJob(
        id=id,
        namespace=spec.namespace,
        queue=spec.queue,
        type=spec.type,
        idempotency_key=spec.idempotency_key,
        key_hash=spec.key_hash,
        key_scope=spec.key_scope,
        owner_id=spec.owner_id,
        project_id=spec.project_id,
        target=dumps(spec.target),
        target_kind=str(spec.target["kind"]),
        target_id=str(spec.target["id"]),
        payload=dumps(spec.payload),
        meta=dumps(spec.meta),
        fingerprint=spec.fingerprint,
        priority=spec.priority,
        run_at=spec.run_at,
    )


def _job(spec: JobSpec, id: UUID, times: Inserted, using: str) -> Job:
    """Return the row just inserted, without reading it again."""
    job = Job(
        id=id,
        namespace=spec.namespace,
        queue=spec.queue,
        type=spec.type,
        idempotency_key=spec.idempotency_key,
        key_hash=spec.key_hash,
        key_scope=spec.key_scope,
        owner_id=spec.owner_id,
        project_id=spec.project_id,
        target=spec.target,
        target_kind=str(spec.target["kind"]),
        target_id=str(spec.target["id"]),
        payload=spec.payload,
        meta=spec.meta,
        fingerprint=spec.fingerprint,
        priority=spec.priority,
        run_at=times.run_at,
        claimable_at=times.run_at,
        state=State.QUEUED,
        created_at=times.created_at,
        updated_at=times.created_at,
    )
    job._state.adding = False
    job._state.db = using
    job.created = True
    return job


def _existing(wanted: Sequence[tuple[int, JobSpec, UUID]], using: str) -> dict[int, Job]:
    """Return the jobs that hold the keys wanted, after comparing their data."""
    if not wanted:
        return {}
    jobs = Job.objects.using(using)
    if connections[using].vendor == "mysql":
        # A plain read could look at a snapshot from before the other's commit.
        jobs = jobs.select_for_update()
    namespace = wanted[0][1].namespace
    by_key = {
        job.key_hash: job
        for job in jobs.filter(
            namespace=namespace, key_hash__in=[spec.key_hash for _, spec, _ in wanted]
        )
    }
    found = {}
    for n, spec, id in wanted:
        job = by_key.get(spec.key_hash)
        if job is None:
            if Job.objects.using(using).filter(pk=id).exists():
                raise DuplicateJob(job_id=id)
            continue
        if not spec.matches(job.fingerprint, job.run_at):
            raise IdempotencyConflict(
                f"The idempotency key {spec.idempotency_key!r} was already used with different"
                f" job data (job {job.pk}).",
                job_id=job.pk,
            )
        if job.state in SETTLED:
            logger.info("enqueue found job=%s state=%s for its idempotency key", job.pk, job.state)
        job.created = False
        found[n] = job
    return found


aenqueue = sync_to_async(enqueue)
aenqueue_many = sync_to_async(enqueue_many)

set_enqueue(cast(Any, enqueue))
