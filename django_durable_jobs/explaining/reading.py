"""What is read of a job and its surroundings before anything is said about it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from django.db import connections

from ..conf import settings
from ..db import Holder, Statements, current_clock, statements_for
from ..models import Execution, Job, Namespace, QueueEntry, Schedule, Worker
from ..states import ACTIVE, State

# As far as the jobs before it are counted: more would only cost more to count.
COUNTED = 1_000
# So many of the jobs are named that use up an owner's cap.
NAMED = 10

_TICK = re.compile(r"tick:(.+):\d{4}-\d\d-\d\dT[\d:.+]+")
_JSON = ("target", "payload", "meta")
_TEXTS = ("metadata", "receipt", "result", "progress", "error", "traceback")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Where a due job stands: who holds how much, and what comes before it.

    ``before`` counts, by type, the due jobs of its owner in its queue that come before it, up to
    one more than COUNTED; ``owners`` are those with due jobs in its queue whose turn comes first,
    ``all_owners`` tells whether these are all.
    """

    holders: tuple[Holder, ...]
    owners_jobs: tuple[tuple[UUID, str], ...]
    before: Mapping[str, int]
    owners: tuple[str, ...]
    all_owners: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A job, and what is around it. ``workers`` are those that have not signed off."""

    now: datetime
    job: Job
    entry: QueueEntry | None = None
    namespace: Namespace | None = None
    workers: tuple[Worker, ...] = ()
    line: Line | None = None
    execution: Execution | None = None
    holder: Worker | None = None
    schedule: Schedule | None = None
    live: tuple[Worker, ...] = field(init=False)

    def __post_init__(self) -> None:
        live = tuple(worker for worker in self.workers if self.lives(worker))
        object.__setattr__(self, "live", live)

    def lives(self, worker: Worker) -> bool:
        return bool((self.now - worker.heartbeat_at).total_seconds() <= settings.LEASE)

    def since(self, moment: datetime) -> float:
        """Return the seconds from then to now."""
        return round(max((self.now - moment).total_seconds(), 0.0), 3)

    def until(self, moment: datetime) -> float:
        """Return the seconds from now to then."""
        return round(max((moment - self.now).total_seconds(), 0.0), 3)


def read(job_id: UUID, using: str) -> Standing | None:
    """Read what there is to know about a job; None where there is no such one."""
    # With its entry in one statement: between two a claim could come.
    jobs = Job.objects.using(using).select_related("queue_entry").defer(*_JSON)
    job = jobs.filter(pk=job_id).first()
    if job is None:
        return None
    connection = connections[using]
    now = current_clock().now(connection)
    if job.state == State.QUEUED:
        return _read_queued(job, now, using)
    workers = _workers(job.namespace, using) if job.state in ACTIVE else ()
    execution = holder = None
    if job.claim_id is not None:
        # By its job, which an index finds.
        executions = Execution.objects.using(using).filter(job_id=job.pk, claim_id=job.claim_id)
        execution = executions.defer(*_TEXTS).first()
    if execution is not None:
        holder = Worker.objects.using(using).filter(pk=execution.worker_id).first()
    return Standing(now=now, job=job, workers=workers, execution=execution, holder=holder)


def _read_queued(job: Job, now: datetime, using: str) -> Standing:
    statements = statements_for(connections[using])
    entry = getattr(job, "queue_entry", None)
    due = entry is not None and (entry.due or entry.claimable_at <= now)
    return Standing(
        now=now,
        job=job,
        entry=entry,
        namespace=Namespace.objects.using(using).filter(pk=job.namespace).first(),
        workers=_workers(job.namespace, using),
        line=_read_line(statements, entry) if entry is not None and due else None,
        schedule=_schedule_of(job, using),
    )


def _read_line(statements: Statements, entry: QueueEntry) -> Line:
    namespace, queue, owner = entry.namespace, entry.queue, entry.owner_id
    with statements.reading(), statements.settings_kept():
        # Asked for the plans that it fixes, too: these statements walk as the claim's do.
        row = statements.lock_namespace(namespace, lock=False)
        turn_after = row[0] if row else ""
        owners, all_owners = statements.owners_before(
            namespace, queue, owner, turn_after=turn_after, limit=COUNTED
        )
        return Line(
            holders=tuple(statements.holders(namespace)),
            owners_jobs=tuple(statements.held_of(namespace, owner, limit=NAMED)),
            before=statements.before(entry.pk, namespace, queue, owner, limit=COUNTED + 1),
            owners=tuple(owners),
            all_owners=all_owners,
        )


def _workers(namespace: str, using: str) -> tuple[Worker, ...]:
    states = [Worker.Status.RUNNING, Worker.Status.DRAINING]
    workers = Worker.objects.using(using).filter(namespace=namespace, state__in=states)
    return tuple(workers.order_by("started_at", "pk"))


def _schedule_of(job: Job, using: str) -> Schedule | None:
    """Return the schedule whose tick put the job in, None where none did."""
    tick = _TICK.fullmatch(job.idempotency_key)
    if tick is None:
        return None
    schedules = Schedule.objects.using(using).filter(namespace=job.namespace, name=tick[1])
    return schedules.first()
