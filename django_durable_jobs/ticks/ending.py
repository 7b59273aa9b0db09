"""What the runs of schedules came to: seen by the leader, wherever and however they ended."""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Q

from ..audit import FAILURE, SUCCESS, audit, audited
from ..conf import settings
from ..db import BIGINT, TEXT, TIME, now_expression, statements_for
from ..models import Execution, Schedule, TickClaim
from ..registry import schedules
from ..states import SETTLED, InterruptionReason, State

logger = logging.getLogger(__name__)

# How many runs one transaction looks at.
AT_ONCE = 500
_ERROR_MAX_CHARS = 4_096


@dataclass(frozen=True, slots=True)
class End:
    """How one run of a schedule ended; ``seconds`` it took, None where it never began."""

    tick: int
    name: str
    type: str
    state: str
    at: datetime | None
    error: str = ""
    reason: str = ""
    seconds: float | None = None

    @property
    def failed(self) -> bool:
        return self.state in (State.FAILED, State.INTERRUPTED)


def note_ends(connection: BaseDatabaseWrapper, namespace: str) -> tuple[int, bool]:
    """Write down the ends of runs, in the leader's transaction.

    Returns how many there were, and whether there may be more.
    """
    ends = _ends(connection, namespace)
    if not ends:
        return 0, False
    ticks = TickClaim.objects.using(connection.alias)
    ticks.filter(pk__in=[end.tick for end in ends]).update(open=False)
    by_name: dict[str, list[End]] = defaultdict(list)
    for end in ends:
        by_name[end.name].append(end)
    _write(connection, namespace, by_name)
    if audited():
        for end in ends:
            _tell(connection, end)
    return len(ends), len(ends) == AT_ONCE


def _ends(connection: BaseDatabaseWrapper, namespace: str) -> list[End]:
    """Return what has ended among the runs that are open, in the order of their ends."""
    open_ticks = TickClaim.objects.using(connection.alias).filter(namespace=namespace, open=True)
    # A job may be gone, pruned or deleted by hand.
    over = open_ticks.filter(Q(job__state__in=SETTLED) | Q(job__state__isnull=True))
    rows = list(
        over.values_list(
            *("pk", "name", "job_id", "job__type", "job__state"),
            *("job__finished_at", "job__claim_id", "job__cancelled_reason"),
        )[:AT_ONCE]
    )
    runs = {
        (job, claim): rest
        for job, claim, *rest in Execution.objects.using(connection.alias)
        .filter(
            job_id__in=[row[2] for row in rows],
            claim_id__in=[row[6] for row in rows if row[6]],
        )
        .values_list("job_id", "claim_id", "started_at", "error", "interruption_reason")
    }
    found = [_end(row, runs) for row in rows]
    return sorted(found, key=lambda end: (end.at is not None, end.at, end.tick))


def _end(row: tuple, runs: dict[tuple[UUID, UUID], list]) -> End:  # type: ignore[type-arg]
    tick, name, job, type, state, at, claim, _ = row
    started, error, reason = runs.get((job, claim), (None, "", ""))
    seconds = (at - started).total_seconds() if at and started else None
    return End(
        tick=tick,
        name=name,
        type=type or "",
        state=state or State.CANCELLED,
        at=at,
        error=error or str(reason),
        reason=reason,
        seconds=seconds,
    )


def _write(connection: BaseDatabaseWrapper, namespace: str, by_name: dict[str, list[End]]) -> None:
    rows = Schedule.objects.using(connection.alias).filter(namespace=namespace, name__in=by_name)
    rows = rows.only("name", "last_finish", "last_error", "failures_in_row", "paused_at")
    still = set(
        TickClaim.objects.using(connection.alias)
        .filter(namespace=namespace, open=True, name__in=by_name)
        .values_list("name", flat=True)
    )
    changed = []
    for row in rows:
        finish, error, failures = row.last_finish, row.last_error, row.failures_in_row
        for end in by_name[row.name]:
            if end.state == State.COMPLETED:
                finish, error, failures = end.at, "", 0
            elif end.failed:
                finish, error, failures = end.at, end.error[:_ERROR_MAX_CHARS], failures + 1
        changed.append((row.pk, finish, error, failures, int(row.name in still)))
        if row.paused_at is None:
            _pause_after_failures(connection, row, failures, error)
    statements_for(connection).update_rows(
        Schedule._meta.db_table,
        {"id": BIGINT, "finish": TIME, "error": TEXT, "failures": BIGINT, "still": BIGINT},
        changed,
        {
            "last_finish": "n.finish",
            "last_error": "n.error",
            "failures_in_row": "n.failures",
            "running": "n.still = 1",
        },
    )


def _pause_after_failures(
    connection: BaseDatabaseWrapper, row: Schedule, failures: int, error: str
) -> None:
    """Pause a schedule that has failed as often in a row as its declaration allows."""
    declaration = schedules.get(row.name)
    limit = declaration.pause_after_failures if declaration else None
    if limit is None or failures < limit:
        return
    times = f"{failures} failures in a row" if failures > 1 else "a failure"
    logger.warning("schedule pauses itself schedule=%s after=%s", row.name, times)
    Schedule.objects.using(connection.alias).filter(pk=row.pk, paused_at__isnull=True).update(
        paused_at=now_expression(connection),
        paused_by="",
        paused_reason=f"It paused itself after {times}: {error}"[:_ERROR_MAX_CHARS],
    )


def _tell(connection: BaseDatabaseWrapper, end: End) -> None:
    declaration = schedules.get(end.name)
    metadata = {
        "name": end.name,
        "kind": declaration.kind if declaration else None,
        "duration": end.seconds,
        "via_job": end.type != f"schedule:{end.name}",
    }
    using = connection.alias
    if end.reason == InterruptionReason.TIMED_OUT:
        limit = settings.SCHEDULE_MAX_RUN
        if declaration and declaration.max_run is not None:
            limit = declaration.max_run
        watchdog = {"name": end.name, "max_run": limit}
        audit("scheduler.task.watchdog", outcome=FAILURE, metadata=watchdog, using=using)
    if end.state == State.COMPLETED:
        audit("scheduler.task.success", outcome=SUCCESS, metadata=metadata, using=using)
    elif end.failed:
        audit(
            "scheduler.task.failure",
            outcome=FAILURE,
            # Not the error's text: that may quote the payload.
            reason=str(end.reason) or end.error.partition(":")[0],
            metadata=metadata,
            using=using,
        )
