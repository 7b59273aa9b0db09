"""Putting jobs in: validated, bound to their handler, once for each idempotency key."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from datetime import datetime
from inspect import signature
from itertools import groupby
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import connections

from .audit import audited, job_event, send
from .conf import settings
from .db import COLUMNS, Inserted, NewJob, statements_for, transaction
from .errors import DuplicateJob, IdempotencyConflict, InvalidJob
from .ids import uuid7
from .jobspec import JobSpec
from .models import Job
from .namespaces import CHANNEL, database, retried, wake_here
from .parameters import did_you_mean, refuse_unknown
from .registry import Handler, JobFunction, get, set_enqueue
from .states import SETTLED, State
from .strictjson import dumps, storable_text, type_name

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

# An existing key can vanish between the insert that met it and the look at it (a job with a
# "live" key settled, or retention came by): then the insert is tried again.
_TRIES = 5

_PART = 1_000  # jobs to a round of statements
_KEYS = 500  # keys to a look: SQLite may bind no more than 999 values

_Wanted: TypeAlias = tuple[int, JobSpec, UUID]  # its number in the call, and its id if it is new


def _named(verb: Callable[P, R]) -> Callable[P, R]:
    """Refuse options that the verb does not have, with the nearest name: Python gives none."""
    accepted = tuple(signature(verb).parameters)

    @functools.wraps(verb)
    def named(*args: P.args, **kwargs: P.kwargs) -> R:
        refuse_unknown(kwargs, accepted)
        return verb(*args, **kwargs)

    return named


@_named
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
    fields = {name: value for name, value in locals().items() if name != "using"}
    return _enqueue([spec_of(fields)], using=database(using))[0]


def enqueue_many(jobs: Iterable[Mapping[str, Any]], *, using: str | None = None) -> list[Job]:
    """Put many jobs in at once: dicts of ``enqueue``'s names; jobs come back in the order given.

    All or none, by the rules of ``enqueue``, in a small constant number of statements per
    thousand jobs.
    """
    alias, specs = database(using), []
    for number, fields in enumerate(_list_of(jobs)):
        try:
            specs.append(spec_of(_known(fields)))
        except InvalidJob as error:
            error.args = (f"jobs[{number}]: {error}",)
            raise
    return _enqueue(specs, using=alias) if specs else []


def _list_of(jobs: object) -> Iterable[Mapping[str, Any]]:
    """Return the jobs of enqueue_many; refuse what is no list, and one job alone."""
    if isinstance(jobs, Iterable) and not isinstance(jobs, (Mapping, str, bytes)):
        return jobs
    problem = f"must be a list of dicts of enqueue's names, not {type_name(type(jobs))}"
    raise InvalidJob(f"jobs: {problem}", field="jobs", path="jobs")


def _known(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's dict as arguments of enqueue; refuse names that it does not have."""
    if not isinstance(fields, Mapping):
        raise InvalidJob(
            f"A job must be a dict of enqueue's names, not {fields.__class__.__name__}."
        )
    unknown = [str(name) for name in fields if name not in _ENQUEUE_NAMES]
    if unknown or "type" not in fields:
        name = min(unknown, default="type")
        shown = storable_text(name, 100)
        near = did_you_mean(name, _ENQUEUE_NAMES)
        problem = f"is not a name of enqueue's{near}" if unknown else "is missing"
        accepted = ", ".join(_ENQUEUE_NAMES)
        raise InvalidJob(f"{shown}: {problem}; accepted: {accepted}.", field=shown, path=shown)
    return dict(fields)


_ENQUEUE_NAMES = tuple(name for name in enqueue.__annotations__ if name not in ("using", "return"))


def spec_of(fields: dict[str, Any]) -> JobSpec:
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


@retried
def _enqueue(specs: Sequence[JobSpec], *, using: str) -> list[Job]:
    """Insert specs, or find the jobs that exist for their keys; all or none, in their order."""
    # Made in the order given, since ids break ties: jobs put in together run in that order.
    ids = [spec.id or uuid7() for spec in specs]
    made: dict[int, Job] = {}
    with _around(specs, using):
        # In the order of their keys: two callers that race for the same keys do not deadlock.
        order = sorted(range(len(specs)), key=lambda n: (specs[n].namespace, specs[n].key_hash))
        for namespace, numbers in groupby(order, key=lambda n: specs[n].namespace):
            chosen = list(numbers)
            for start in range(0, len(chosen), _PART):
                part = [(n, specs[n], ids[n]) for n in chosen[start : start + _PART]]
                made |= _put_in(part, namespace, using)
    for namespace in {job.namespace for job in made.values() if job.created}:
        wake_here(namespace, using)
    if audited():
        _tell([made[n] for n in range(len(specs)) if made[n].created], using)
    return [made[n] for n in range(len(specs))]


def _tell(jobs: Iterable[Job], using: str) -> None:
    """Tell the audit trail of new jobs, when the caller's transaction commits."""
    send(
        [
            job_event("job.enqueued", job_id=job.pk, type=job.type, owner_id=job.owner_id)
            for job in jobs
        ],
        using=using,
    )


def _around(specs: Sequence[JobSpec], using: str) -> AbstractContextManager[object]:
    """Return the transaction to put them in; none for one job where one statement does it."""
    if len(specs) == 1 and statements_for(connections[using]).in_one_statement:
        return nullcontext()
    return transaction(using)


def _put_in(wanted: list[_Wanted], namespace: str, using: str) -> dict[int, Job]:
    """Put in jobs of one namespace; return them by number."""
    statements = statements_for(connections[using])
    made: dict[int, Job] = {}
    fruitless = 0
    while wanted:
        # Each id once: which of two rows with the same id the database took it does not tell.
        tried = {id: (n, spec, _new_job(spec, id)) for n, spec, id in reversed(wanted)}
        inserted = statements.insert_jobs(
            [new for _, _, new in reversed(tried.values())],
            notify=CHANNEL if settings.LISTEN else "",
        )
        for id, times in inserted.items():
            n, spec, new = tried[id]
            made[n] = _job(spec, new, times, using)
        left = [each for each in wanted if each[0] not in made]
        made |= _existing(left, namespace, using)
        left = [each for each in left if each[0] not in made]
        fruitless = fruitless + 1 if len(left) == len(wanted) else 0
        if fruitless == _TRIES:
            raise IdempotencyConflict("The idempotency key is being used by others over and over.")
        wanted = left
    return made


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


def _job(spec: JobSpec, new: NewJob, times: Inserted, using: str) -> Job:
    """Return the row just inserted, without reading it again."""
    values = {
        **_DEFAULTS,
        **{name: getattr(new, name) for name in COLUMNS},
        "target": spec.target,
        "payload": spec.payload,
        "meta": spec.meta,
        "run_at": times.run_at,
        "claimable_at": times.run_at,
        "state": State.QUEUED,
        "created_at": times.created_at,
        "updated_at": times.created_at,
    }
    job = Job.from_db(using, list(values), list(values.values()))
    job.created = True
    return job


# All columns, in the order in which the model takes them.
_DEFAULTS = {field.attname: field.get_default() for field in Job._meta.concrete_fields}


def _existing(wanted: Sequence[_Wanted], namespace: str, using: str) -> dict[int, Job]:
    """Return the jobs that hold the keys wanted, after comparing their data."""
    by_key: dict[str | None, Job] = {}
    jobs = Job.objects.using(using)
    if connections[using].vendor == "mysql":
        # A plain read could look at a snapshot from before the other's commit.
        jobs = jobs.select_for_update()
    for start in range(0, len(wanted), _KEYS):
        hashes = [spec.key_hash for _, spec, _ in wanted[start : start + _KEYS]]
        found = jobs.filter(namespace=namespace, key_hash__in=hashes)
        by_key |= {job.key_hash: job for job in found}
    existing = {}
    for n, spec, id in wanted:
        job = by_key.get(spec.key_hash)
        if job is None:
            if jobs.filter(pk=id).exists():
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
        existing[n] = copy(job)  # for each caller's number one of its own
        existing[n].created = False
    return existing


aenqueue = sync_to_async(enqueue)
aenqueue_many = sync_to_async(enqueue_many)

set_enqueue(cast(Any, enqueue))
