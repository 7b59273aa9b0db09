"""Settling: what became of an execution is written, by whoever still holds its claim."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from django.db import DatabaseError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet
from django.db.transaction import atomic

from ..db import Outcome, current_clock, is_transient, statements_for
from ..models import Execution, Worker
from ..states import ACTIVE, ExecutionState, InterruptionReason

# How many leases that ran out one call ends: so many rows are locked at once.
_EXPIRED_AT_ONCE = 500


def settle(connection: BaseDatabaseWrapper, outcomes: Sequence[Outcome]) -> set[uuid.UUID]:
    """Write outcomes together, inside the caller's transaction; return the claims still held.

    Raises what the database raises if it refuses one of them: see ``settle_apart``.
    """
    return statements_for(connection).settle_many(outcomes) if outcomes else set()


@dataclass(slots=True)
class Settlement:
    """What ``settle_apart`` did: the claims that were still held, and what was refused, and why."""

    held: set[uuid.UUID] = field(default_factory=set)
    refused: list[tuple[Outcome, DatabaseError]] = field(default_factory=list)


def settle_apart(connection: BaseDatabaseWrapper, outcomes: Iterable[Outcome]) -> Settlement:
    """Write outcomes one by one, each in a savepoint: one that is refused harms no neighbour.

    Call it inside a transaction. Raises only what is not an outcome's fault: deadlocks, lock
    timeouts, lost connections.
    """
    statements = statements_for(connection)
    done = Settlement()
    for outcome in sorted(outcomes, key=lambda outcome: outcome.job_id):
        try:
            with atomic(using=connection.alias):
                if statements.settle(outcome):
                    done.held.add(outcome.claim_id)
        except DatabaseError as error:
            if is_transient(error):
                raise
            done.refused.append((outcome, error))
    return done


def interrupt(claim: tuple[uuid.UUID, uuid.UUID], reason: str, *, repeats: bool) -> Outcome:
    """Return the outcome of an execution that nobody will finish."""
    job_id, claim_id = claim
    edge = "retry_interrupted" if repeats else "interrupt"
    return Outcome(job_id=job_id, claim_id=claim_id, edge=edge, reason=reason)


def expire(
    connection: BaseDatabaseWrapper, namespace: str, *, requeue_unstarted: bool
) -> list[Outcome]:
    """Interrupt what is held by workers whose lease ran out; return what was, 500 at most.

    Any worker may do it, at any time: each row is settled only if its lease is still over.
    """
    now = current_clock().now(connection)
    late = _active(connection, namespace).filter(lease_expires_at__lt=now)
    done = []
    for row in late.order_by("job_id")[:_EXPIRED_AT_ONCE]:
        outcome = _abandoned(row, InterruptionReason.WORKER_LOST, requeue_unstarted)
        if statements_for(connection).settle(outcome, lease_ended=True):
            done.append(outcome)
    return done


def interrupt_worker(
    connection: BaseDatabaseWrapper, worker: uuid.UUID, reason: str, *, requeue_unstarted: bool
) -> list[Outcome]:
    """Interrupt everything that a worker known to be dead still holds; return what was."""
    worker_row = Worker.objects.using(connection.alias).get(pk=worker)
    held = _active(connection, worker_row.namespace).filter(worker_id=worker)
    return _settled(connection, [_abandoned(row, reason, requeue_unstarted) for row in held])


def unconfirmed(
    connection: BaseDatabaseWrapper, namespace: str, worker: uuid.UUID, held: Iterable[uuid.UUID]
) -> list[Outcome]:
    """Interrupt what the database holds for this worker and the worker does not; return it.

    Where the reply to a claim's commit was lost, nobody knows that the job is claimed.
    """
    known = set(held)
    outcomes = [
        _abandoned(row, InterruptionReason.CLAIM_UNCONFIRMED, requeue_unstarted=False)
        for row in _active(connection, namespace).filter(worker_id=worker)
        if row.claim_id not in known
    ]
    return _settled(connection, outcomes)


def _active(connection: BaseDatabaseWrapper, namespace: str) -> QuerySet[Execution]:
    """Return the executions that somebody holds, without their JSON, which may be unreadable."""
    rows = Execution.objects.using(connection.alias).filter(namespace=namespace, state__in=ACTIVE)
    return rows.only("job_id", "claim_id", "state", "requeue_on_interrupt")


def _settled(connection: BaseDatabaseWrapper, outcomes: list[Outcome]) -> list[Outcome]:
    held = settle(connection, outcomes)
    return [outcome for outcome in outcomes if outcome.claim_id in held]


def _abandoned(row: Execution, reason: str, requeue_unstarted: bool) -> Outcome:
    if row.state == ExecutionState.CLAIMED and requeue_unstarted:
        return Outcome(job_id=row.job_id, claim_id=row.claim_id, edge="release", unstarted=True)
    return interrupt((row.job_id, row.claim_id), reason, repeats=row.requeue_on_interrupt)
