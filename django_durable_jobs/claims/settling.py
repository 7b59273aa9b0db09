"""Settling: what became of an execution is written, by whoever still holds its claim."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from django.db import DatabaseError, DataError, IntegrityError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import atomic

from ..db import Held, Outcome, statements_for
from ..models import Execution, Worker
from ..states import ACTIVE, InterruptionReason, State

# How many leases that ran out one call ends: so many rows are locked at once.
EXPIRED_AT_ONCE = 50
# One worker holds no more than it has slots.
_ALL = 100_000


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

    Call it inside a transaction. Refused is what the database cannot hold (DataError,
    IntegrityError); raises whatever is not an outcome's fault: deadlocks, a full disk, a server
    that is read-only, lost connections.
    """
    statements = statements_for(connection)
    done = Settlement()
    for outcome in sorted(outcomes, key=lambda outcome: outcome.job_id):
        try:
            with atomic(using=connection.alias):
                if statements.settle(outcome):
                    done.held.add(outcome.claim_id)
        except (DataError, IntegrityError) as error:
            done.refused.append((outcome, error))
    return done


def ends(
    connection: BaseDatabaseWrapper, claims: Iterable[tuple[uuid.UUID, uuid.UUID]]
) -> dict[uuid.UUID, tuple[str, str]]:
    """Return how the executions of these claims (job id, claim id) have ended, by claim id.

    Each its state and the reason of its interruption, "" for none.
    """
    jobs, ids = zip(*claims, strict=True)
    found = Execution.objects.using(connection.alias).filter(job_id__in=jobs, claim_id__in=ids)
    rows = found.exclude(state__in=ACTIVE).values_list("claim_id", "state", "interruption_reason")
    return {claim_id: (state, reason) for claim_id, state, reason in rows}


def interrupt(claim: tuple[uuid.UUID, uuid.UUID], reason: str, *, repeats: bool) -> Outcome:
    """Return the outcome of an execution that nobody will finish."""
    job_id, claim_id = claim
    edge = "retry_interrupted" if repeats else "interrupt"
    return Outcome(job_id=job_id, claim_id=claim_id, edge=edge, reason=reason)


def expire(
    connection: BaseDatabaseWrapper, namespace: str, *, requeue_unstarted: bool
) -> list[Outcome]:
    """Interrupt what is held by workers whose lease ran out; return what was, 50 at most.

    Any worker may do it, at any time: each row is settled only if its lease is still over.
    """
    statements = statements_for(connection)
    done = []
    for held in statements.held(namespace, late=True, limit=EXPIRED_AT_ONCE):
        outcome = _abandoned(held, InterruptionReason.WORKER_LOST, requeue_unstarted)
        if statements.settle(outcome, lease_ended=True):
            done.append(outcome)
    return done


def interrupt_worker(
    connection: BaseDatabaseWrapper, worker: uuid.UUID, reason: str, *, requeue_unstarted: bool
) -> list[Outcome]:
    """Interrupt everything that a worker known to be dead still holds; return what was."""
    row = Worker.objects.using(connection.alias).only("namespace").get(pk=worker)
    held = statements_for(connection).held(row.namespace, worker=worker, limit=_ALL)
    return _settled(connection, [_abandoned(one, reason, requeue_unstarted) for one in held])


def unconfirmed(
    connection: BaseDatabaseWrapper, namespace: str, worker: uuid.UUID, held: Iterable[uuid.UUID]
) -> list[Outcome]:
    """Interrupt what the database holds for this worker and the worker does not; return it.

    Where the reply to a claim's commit was lost, nobody knows that the job is claimed.
    """
    known = set(held)
    found = statements_for(connection).held(namespace, worker=worker, limit=_ALL)
    outcomes = [
        _abandoned(one, InterruptionReason.CLAIM_UNCONFIRMED, requeue_unstarted=False)
        for one in found
        if one.claim_id not in known
    ]
    return _settled(connection, outcomes)


def _settled(connection: BaseDatabaseWrapper, outcomes: list[Outcome]) -> list[Outcome]:
    held = settle(connection, outcomes)
    return [outcome for outcome in outcomes if outcome.claim_id in held]


def _abandoned(held: Held, reason: str, requeue_unstarted: bool) -> Outcome:
    job_id, claim_id, state, repeats = held
    if state == State.CLAIMED and requeue_unstarted:
        return Outcome(job_id=job_id, claim_id=claim_id, edge="release", unstarted=True)
    return interrupt((job_id, claim_id), reason, repeats=repeats)
