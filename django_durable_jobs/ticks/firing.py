"""Firing ticks: the claim of a tick and its job are one fact, in one transaction."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet

from ..audit import DENIED, audit, audited
from ..conf import settings
from ..db import BIGINT, ID, TIME, NewTick, statements_for
from ..enqueueing import enqueue_many
from ..errors import InvalidJob
from ..ids import uuid7
from ..models import Job, Schedule, TickClaim
from ..registry import Declaration
from ..states import TickOutcome
from .courses import starts_at
from .deciding import Decision
from .ledger import note_gaps

_NUMBER = re.compile(r"^jobs\[\d+\]: ")


def fire(
    connection: BaseDatabaseWrapper, namespace: str, worker: UUID, decisions: Sequence[Decision]
) -> int:
    """Write what was decided, in the leader's transaction; return how many ticks fired.

    A tick that somebody has claimed already is lost: it is counted and not fired. A schedule that
    was steered since its row was read (fired by hand, paused) is left for the next turn.
    """
    decisions = _unsteered(connection, decisions)
    wanted = {uuid7(): (each, tick) for each in decisions for tick in each.fire}
    ticks = [
        NewTick(each.row.name, tick, job, TickOutcome.FIRED) for job, (each, tick) in wanted.items()
    ]
    ticks += [
        NewTick(each.row.name, tick, None, TickOutcome.SKIPPED, each.reason)
        for each in decisions
        for tick in each.skip
    ]
    won = statements_for(connection).claim_ticks(namespace, worker, ticks)
    for job, (each, _) in wanted.items():
        each.lost += job not in won
    jobs = put_in(connection, namespace, {job: wanted[job] for job in wanted if job in won})
    for job, (each, _) in wanted.items():
        if job in won:
            each.job = jobs[job]
    missed = [(each.row, each.course, gap) for each in decisions for gap in each.gaps]
    if missed:
        note_gaps(connection, namespace, missed)
    write(connection, decisions)
    if audited():
        _tell(connection, worker, decisions, {job: wanted[job] for job in wanted if job not in won})
    return len(won)


def _unsteered(connection: BaseDatabaseWrapper, decisions: Sequence[Decision]) -> list[Decision]:
    """Return those whose schedules are as they were when it was decided, and keep them so.

    Whoever steers one locks its row: a run begun by hand is seen, or waits and sees ours.
    """
    steered_by = ("pk", "paused_at", "resumed_at", "waiting", "last_job_id")
    rows = locked(connection, (each.row.pk for each in decisions)).values_list(*steered_by)
    now = {values[0]: values for values in rows}
    return [
        each
        for each in decisions
        if now.get(each.row.pk) == tuple(getattr(each.row, name) for name in steered_by)
    ]


def locked(connection: BaseDatabaseWrapper, pks: Iterable[int]) -> QuerySet[Schedule]:
    """Return schedules to be locked, for all in the same order: else two of us would deadlock."""
    rows = Schedule.objects.using(connection.alias).filter(pk__in=list(pks))
    return rows.order_by("pk").select_for_update()


def put_in(
    connection: BaseDatabaseWrapper,
    namespace: str,
    wanted: dict[UUID, tuple[Decision, datetime]],
) -> dict[UUID, UUID]:
    """Put the jobs of claimed ticks in, by the ids given; return under which ids they exist."""
    wants = [
        job_of(each.declaration, namespace, tick) | {"id": id}
        for id, (each, tick) in wanted.items()
    ]
    try:
        jobs = enqueue_many(wants, using=connection.alias)
    except InvalidJob as error:
        # Which one it is in a list that nobody has seen.
        error.args = (_NUMBER.sub("", str(error)),)
        raise
    ids = dict(zip(wanted, (job.pk for job in jobs), strict=True))
    for asked, found in ids.items():
        if asked != found:  # its claim was deleted, by hand perhaps, and its job was not
            TickClaim.objects.using(connection.alias).filter(job_id=asked).update(job_id=found)
    limit_runs(connection, ((ids[id], each.declaration) for id, (each, _) in wanted.items()))
    return ids


def job_of(declaration: Declaration, namespace: str, tick: datetime) -> dict[str, Any]:
    """Return the job of a tick, in enqueue's names."""
    name, at = declaration.name, tick.isoformat()
    return {
        "type": declaration.type,
        "payload": declaration.payload,
        "run_at": starts_at(declaration, tick),
        "owner_id": declaration.owner_id,
        "project_id": declaration.project_id,
        "target": declaration.target or {"kind": "schedule", "id": name},
        "idempotency_key": f"tick:{name}:{at}",
        "priority": declaration.priority,
        "queue": declaration.queue,
        "meta": {**(declaration.meta or {}), "schedule": name, "scheduled_at": at},
        "namespace": namespace,
    }


def nominal_time(job: Job) -> datetime | None:
    """Return the nominal time of the tick that put the job in, without its jitter.

    None where no tick did, or its labels were replaced since.
    """
    if not job.idempotency_key.startswith("tick:") or not isinstance(job.meta, dict):
        return None
    try:
        tick = datetime.fromisoformat(job.meta["scheduled_at"])
    except (KeyError, TypeError, ValueError):
        return None
    return None if tick.tzinfo is None else tick.astimezone(UTC)


def limit_runs(connection: BaseDatabaseWrapper, jobs: Iterable[tuple[UUID, Declaration]]) -> None:
    """Have the watchdog end these jobs' runs in time: a hung one must not block the next."""
    limits: dict[float, list[UUID]] = {}
    for job, declaration in jobs:
        limit = declaration.max_run
        limits.setdefault(settings.SCHEDULE_MAX_RUN if limit is None else limit, []).append(job)
    for seconds, ids in limits.items():
        Job.objects.using(connection.alias).filter(pk__in=ids).update(timeout=seconds)


def write(connection: BaseDatabaseWrapper, decisions: Sequence[Decision]) -> None:
    """Write what the decisions come to on the schedules' rows: one statement."""
    statements = statements_for(connection)
    rows = [
        (
            each.row.pk,
            each.next_fire,
            each.waiting,
            len(each.fire) - each.lost,
            each.misses,
            each.lost,
            each.job,
        )
        for each in decisions
    ]
    if not rows:
        return
    statements.update_rows(
        Schedule._meta.db_table,
        {
            "id": BIGINT,
            "next_fire": TIME,
            "waiting": TIME,
            "fires": BIGINT,
            "misses": BIGINT,
            "lost": BIGINT,
            "job": ID,
        },
        rows,
        {
            "next_fire": "n.next_fire",
            "waiting": "n.waiting",
            "last_run": f"CASE WHEN n.fires > 0 THEN {statements.now} ELSE s.last_run END",
            "running": "CASE WHEN n.fires > 0 THEN TRUE ELSE s.running END",
            "fires": "s.fires + n.fires",
            "misses": "s.misses + n.misses",
            "tick_claim_lost": "s.tick_claim_lost + n.lost",
            "last_job_id": "COALESCE(n.job, s.last_job_id)",
        },
    )


def tick_key(name: str, tick: datetime) -> str:
    """Return what the audit trail calls a tick (the seed's tickKey)."""
    return f"{name}:{tick.isoformat()}"


def _tell(
    connection: BaseDatabaseWrapper,
    worker: UUID,
    decisions: Sequence[Decision],
    lost: dict[UUID, tuple[Decision, datetime]],
) -> None:
    for each, tick in lost.values():
        name = each.row.name
        audit(
            "scheduler.tick.lost",
            outcome=DENIED,
            metadata={"name": name, "tick_key": tick_key(name, tick), "claimed_by": worker},
            using=connection.alias,
        )
    for each in decisions:
        for _ in range(each.misses):
            audit(
                "scheduler.task.skipped",
                outcome=DENIED,
                reason="previous-run-in-flight",
                metadata={"name": each.row.name},
                using=connection.alias,
            )
