"""Putting off what cannot run now, and freeing it when it may."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Q

from ..db import Statements, current_clock, statements_for
from ..models import Job, QueueEntry, Worker
from ..states import HeldReason

# "Until somebody comes who knows the type": past every run_at that is accepted.
NEVER = datetime(9999, 1, 1, tzinfo=UTC)


def pause_after(job: Job, now: datetime, *, longest: float) -> float:
    """Return for how many seconds a job whose can_run said no is put off.

    As long as it has been refused so far and a second more: 1, 2, 4, 8 seconds, up to ``longest``.
    """
    held: datetime | None = job.held_since
    refused_before = held is not None and job.held_reason == HeldReason.NOT_ELIGIBLE
    so_far = (now - held).total_seconds() if held is not None and refused_before else 0.0
    return min(max(so_far, 0.0) + 1.0, longest)


def put_off(connection: BaseDatabaseWrapper, job: Job, *, longest: float) -> None:
    """Put off a queued job whose can_run said no, by ``pause_after``."""
    now = current_clock().now(connection)
    until = now + timedelta(seconds=pause_after(job, now, longest=longest))
    statements_for(connection).put_off([job.pk], HeldReason.NOT_ELIGIBLE, until=until)


def live_types(connection: BaseDatabaseWrapper, namespace: str) -> set[str]:
    """Return the types that the namespace's running workers have handlers for."""
    workers = Worker.objects.using(connection.alias).filter(
        namespace=namespace, state__in=[Worker.Status.RUNNING, Worker.Status.DRAINING]
    )
    return {type for types in workers.values_list("types", flat=True) for type in types}


def free_known(connection: BaseDatabaseWrapper, namespace: str, types: Iterable[str]) -> int:
    """Let jobs be claimed that were put off for want of a handler, now that there is one.

    Call it inside a transaction, after the worker's row with its types was committed. Returns
    how many were freed.
    """
    statements = statements_for(connection)
    statements.lock_namespace(namespace)
    return _free(statements, namespace, Q(claimable_at__gte=NEVER, type__in=list(types)))


def free_ineligible(connection: BaseDatabaseWrapper, namespace: str) -> int:
    """Ask every job again at once whose can_run said no. Returns how many."""
    return _free(
        statements_for(connection),
        namespace,
        Q(claimable_at__lt=NEVER, job__held_reason=HeldReason.NOT_ELIGIBLE),
    )


def _free(statements: Statements, namespace: str, which: Q) -> int:
    entries = QueueEntry.objects.using(statements.connection.alias)
    ids = entries.filter(which, namespace=namespace, due=False).values_list("job_id", flat=True)
    # In the order of their keys, as everybody locks several entries.
    return statements.free(sorted(ids))
