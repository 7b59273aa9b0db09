"""What is going on, and whether all is well: reads only."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from asgiref.sync import sync_to_async
from django.db import DEFAULT_DB_ALIAS, Error, connections
from django.db.models import Count, Min, Q, QuerySet

from .claims import NEVER
from .conf import settings
from .db import Oldest, Serves, current_clock, statements_for
from .jobspec import namespace_name
from .lookup import seconds_of
from .models import Execution, Leader, Namespace, QueueEntry, Schedule, Worker
from .namespaces import database
from .states import ACTIVE, ENDED_AT, ExecutionState, State

logger = logging.getLogger(__name__)

# As far as ``status`` counts: more rows would only cost more to count.
COUNTED = 10_000
# Over how many seconds, and how many attempts at most, the throughput is told.
WINDOW = 300.0
LOOKED = 10_000
# What is told of a schedule.
_SCHEDULE = (
    *("name", "kind", "when", "timezone", "next_fire", "last_run", "last_finish", "last_error"),
    *("running", "fires", "misses", "non_leader_skips", "tick_claim_lost", "failures_in_row"),
    *("paused_at", "paused_by", "paused_reason", "waiting", "declared_at", "retired_at"),
    "last_job_id",
)


def status(namespace: str | None = None, *, using: str | None = None) -> dict[str, Any]:
    """Say how a namespace stands: its workers and leader, its jobs, its schedules.

    ``workers`` are those that have not signed off, ``live`` where their last sign of life is
    younger than a LEASE; ``started`` tells whether one of them lives and does not drain.
    ``leader`` is None where nobody leads, and not ``live`` where its lease has run out.
    ``counts`` are of queued, claimed and running jobs and end at 10,000. ``oldest_due`` is the job
    that has been due for longest among those that a live worker could claim, None where there is
    none; ``next_due`` is when the next waiting one becomes due. ``throughput`` counts the attempts
    that ended in the last ``seconds`` (300, or less where these saw more than 10,000 begin), by
    outcome. ``schedules`` are by name, those that are gone from the code last; ``aggregate`` leaves
    these out. Times are by the database's clock. Raises InvalidJob.
    """
    name, alias = _name(namespace), database(using)
    now = current_clock().now(connections[alias])
    rows = list(_workers(name, alias))
    claiming = [row for row in rows if _claims(row, now)]
    oldest = _oldest_due(name, alias, claiming)
    schedules = _schedules(name, alias)
    paused_at = Namespace.objects.using(alias).filter(pk=name).values_list("paused_at", flat=True)
    return {
        "namespace": name,
        "at": now,
        "paused_at": paused_at.first(),
        "started": bool(claiming),
        "leader": _leader(name, alias, now),
        "workers": [_told(row, now) for row in rows],
        "counts": _counts(name, alias),
        "oldest_due": None
        if oldest is None
        else {
            "id": oldest.job_id,
            "type": oldest.type,
            "queue": oldest.queue,
            "due_since": oldest.due_since,
            "age": (now - oldest.due_since).total_seconds(),
        },
        "next_due": _next_due(name, alias),
        "throughput": _throughput(name, alias, now),
        "schedules": schedules,
        "aggregate": _aggregate(schedules),
    }


@dataclass(frozen=True, slots=True)
class Problem:
    """Say what is wrong: a code that does not change, and a sentence that names nobody."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Tell whether all is well. ``workers`` are those asked about, as ``status`` tells of them."""

    problems: tuple[Problem, ...] = ()
    workers: tuple[dict[str, Any], ...] = ()
    oldest_due: float | None = None  # for how many seconds; None also where nobody asked

    @property
    def healthy(self) -> bool:
        return not self.problems

    @property
    def live(self) -> int:
        return sum(worker["live"] for worker in self.workers)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the workers run that a question is about; what is empty does not matter."""

    host: str
    pid_namespace: str = ""
    pid: int | None = None


def health(
    namespace: str | None = None,
    *,
    place: Place | None = None,
    max_age: float | timedelta | None = None,
    using: str | None = None,
) -> Health:
    """Judge a namespace, or its workers at one ``place``, in five queries at most.

    All is well where the database answers and has the tables, a worker lives by its lease, none of
    the live ones is in trouble, and, with ``max_age`` (seconds or a timedelta), no job that one of
    them could claim has been due for longer. Of a ``place`` no worker may be silent: elsewhere
    that is others' to take over from. Never raises for what the database does; raises InvalidJob
    for its arguments.
    """
    name, alias = _name(namespace), database(using)
    limit = None if max_age is None else seconds_of(max_age, "max_age")
    try:
        return _judge(name, alias, place, limit)
    except Error as error:
        return Health(problems=(_database_problem(alias, error),))


def _judge(namespace: str, using: str, place: Place | None, limit: float | None) -> Health:
    now = current_clock().now(connections[using])
    rows = list(_workers(namespace, using))
    asked = [row for row in rows if place is None or _is_at(row, place)]
    told = tuple(_told(row, now) for row in asked)
    problems = list(worker_problems(told, place))
    oldest = None
    if limit is not None:
        entry = _oldest_due(namespace, using, [row for row in rows if _claims(row, now)])
        oldest = None if entry is None else (now - entry.due_since).total_seconds()
        if oldest is not None and oldest > limit and not _is_paused(namespace, using):
            text = f"A job has been due for {oldest:.0f} s, and {limit:g} s is the limit."
            problems.append(Problem("job-late", text))
    return Health(problems=tuple(problems), workers=told, oldest_due=oldest)


def worker_problems(told: Sequence[dict[str, Any]], place: Place | None) -> Iterable[Problem]:
    """Say what is wrong with these workers, as ``status`` tells of them, by the same rules as
    ``health``.
    """
    here = "" if place is None else " here"
    live = [worker for worker in told if worker["live"]]
    silent = len(told) - len(live) if place is not None else 0
    troubled = sum(not worker["healthy"] for worker in live)
    if silent:
        text = (
            f"{silent} of {len(told)} workers{here} gave no sign of life for {settings.LEASE:g} s."
        )
        yield Problem("worker-silent", text)
    elif not live:
        yield Problem("no-worker", f"No live worker serves the namespace{here}.")
    if troubled:
        verb = "is" if troubled == 1 else "are"
        text = f"{troubled} of {len(live)} live workers{here} {verb} in trouble with the database."
        yield Problem("worker-unhealthy", text)


def _database_problem(using: str, error: Error) -> Problem:
    if lacks_tables(using):
        return Problem("no-tables", no_tables(using))
    # The driver's words may name hosts and users: they are for the log.
    logger.error("health check failed database=%s error=%s", using, error)
    return Problem("database", f"The database does not answer ({type(error).__name__}).")


def lacks_tables(using: str) -> bool:
    """Tell whether a database that answers has no tables of ours; False where it does not."""
    try:
        return Worker._meta.db_table not in connections[using].introspection.table_names()
    except Error:
        return False


def no_tables(using: str) -> str:
    """Say that there are no tables of ours, and what to do."""
    which = "" if using == DEFAULT_DB_ALIAS else f" --database {using}"
    return f"The database {using!r} has no tables for jobs: run `manage.py migrate{which}` first."


def leading(namespace: str, using: str) -> str | None:
    """Return the host and process id of the worker that leads, None where nobody does."""
    now = current_clock().now(connections[using])
    leader = _leader(namespace, using, now)
    if leader is None or not leader["live"]:
        return None
    worker = _workers(namespace, using).filter(pk=leader["worker"]).first()
    return str(worker) if worker is not None and _is_live(worker, now) else None


# What is read


def _name(namespace: str | None) -> str:
    return settings.NAMESPACE if namespace is None else namespace_name(namespace)


def _workers(namespace: str, using: str) -> QuerySet[Worker]:
    """Return the workers that have not signed off, first to last."""
    states = [Worker.Status.RUNNING, Worker.Status.DRAINING]
    workers = Worker.objects.using(using).filter(namespace=namespace, state__in=states)
    return workers.order_by("started_at", "pk")


def _is_live(worker: Worker, now: datetime) -> bool:
    return bool((now - worker.heartbeat_at).total_seconds() <= settings.LEASE)


def is_overdue(schedule: dict[str, Any], now: datetime) -> bool:
    """Tell whether a tick has waited for longer than another leader takes to be there."""
    if schedule["next_fire"] is None or schedule["paused_at"] is not None:
        return False
    return bool((now - schedule["next_fire"]).total_seconds() > settings.LEASE + 1)


def _claims(worker: Worker, now: datetime) -> bool:
    return worker.state == Worker.Status.RUNNING and _is_live(worker, now)


def _is_at(worker: Worker, place: Place) -> bool:
    return (
        worker.host == place.host
        and place.pid_namespace in ("", worker.pid_namespace)
        and place.pid in (None, worker.pid)
    )


def _told(worker: Worker, now: datetime) -> dict[str, Any]:
    names = (
        *("id", "host", "pid", "started_at", "state", "healthy", "error", "active", "stuck"),
        *("heartbeat_at", "concurrency", "queues", "excluded_queues"),
    )
    return {name: getattr(worker, name) for name in names} | {"live": _is_live(worker, now)}


def _leader(namespace: str, using: str, now: datetime) -> dict[str, Any] | None:
    row = Leader.objects.using(using).filter(pk=namespace, worker__isnull=False).first()
    if row is None:
        return None
    return {
        "worker": row.worker,
        "epoch": row.epoch,
        "since": row.acquired_at,
        "lease_ends_at": row.expires_at,
        "live": row.expires_at is not None and row.expires_at > now,
    }


def _schedules(namespace: str, using: str) -> list[dict[str, Any]]:
    """Return each schedule as its row has it, those that are gone from the code last."""
    rows = Schedule.objects.using(using).filter(namespace=namespace).values(*_SCHEDULE)
    return sorted(rows, key=lambda row: (row["retired_at"] is not None, row["name"]))


def _aggregate(schedules: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Sum up the schedules that are not gone from the code (the seed's getStatus)."""
    rows = [row for row in schedules if row["retired_at"] is None]
    return {
        "total": len(rows),
        "running": sum(row["running"] for row in rows),
        "with_errors": sum(bool(row["last_error"]) for row in rows),
        "total_fires": sum(row["fires"] for row in rows),
        "total_misses": sum(row["misses"] for row in rows),
        "non_leader_skips": sum(row["non_leader_skips"] for row in rows),
        "tick_claim_lost": sum(row["tick_claim_lost"] for row in rows),
    }


def _counts(namespace: str, using: str) -> dict[str, int]:
    """Count by the indexes of what is alive: nothing finds jobs by their state."""
    queued = QueueEntry.objects.using(using).filter(namespace=namespace)
    held = Execution.objects.using(using).filter(namespace=namespace)
    return {State.QUEUED.value: queued[:COUNTED].count()} | {
        state.value: held.filter(state=state.value)[:COUNTED].count() for state in ACTIVE
    }


def _throughput(namespace: str, using: str, now: datetime) -> dict[str, float]:
    """Count what ended lately, along the primary key from its newest end: no index has the ends.

    What was claimed before the oldest of the rows looked at is left out: it ran for longer than
    the time told of, or than the whole window.
    """
    start = now - timedelta(seconds=WINDOW)
    ours = Q(namespace=namespace)
    latest = Execution.objects.using(using).order_by("-pk")[:LOOKED]
    found = latest.aggregate(
        looked=Count("pk"),
        oldest=Min("claimed_at"),
        **{
            state.value: Count("pk", filter=ours & Q(**{f"{ENDED_AT[state]}__gte": start}))
            for state in (
                ExecutionState.COMPLETED,
                ExecutionState.FAILED,
                ExecutionState.INTERRUPTED,
            )
        },
    )
    looked, oldest = found.pop("looked"), found.pop("oldest")
    seconds = WINDOW
    if looked == LOOKED and oldest > start:
        seconds = max((now - oldest).total_seconds(), 1.0)
    return {"seconds": seconds, **found}


def _next_due(namespace: str, using: str) -> datetime | None:
    moment = statements_for(connections[using]).next_claimable_at(namespace, None)
    return None if moment is None or moment >= NEVER else moment


def _oldest_due(namespace: str, using: str, workers: Iterable[Worker]) -> Oldest | None:
    """Return the entry that has been due for longest among what one of the workers could claim."""
    served = {
        Serves(
            tuple(worker.types),
            None if worker.queues is None else tuple(worker.queues),
            tuple(worker.excluded_queues),
        )
        for worker in workers
    }
    return statements_for(connections[using]).oldest_due(namespace, served)


def _is_paused(namespace: str, using: str) -> bool:
    paused = Namespace.objects.using(using).filter(pk=namespace, paused_at__isnull=False)
    return paused.exists()


astatus = sync_to_async(status)
