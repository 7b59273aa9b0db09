"""From the claim on: claim, start, settle, renew, record, expire. Called by the machinery.

Losing is an ordinary answer here: whoever no longer holds a claim gets False or is left out of
the result, and has changed nothing.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Q, TextField
from django.db.models.functions import Cast

from .db import Candidate, Outcome, Statements, Taking, current_clock, statements_for
from .models import Execution, Job, Namespace, QueueEntry, Worker
from .states import ACTIVE, HeldReason, InterruptionReason
from .turns import deal

# "Until somebody comes who knows the type": past every run_at that is accepted.
NEVER = datetime(9999, 1, 1, tzinfo=UTC)

# How much wider each further look along the owners is, when a look filled no slot.
_WIDER = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """What one worker may take now.

    ``queues`` None means every queue of the namespace but ``excluded``. ``gated`` types have a
    can_run: of these only ``approved`` jobs are taken, and they do not start at once. ``repeats``
    says whether (type, attempt, attempts granted) goes back to the queue when interrupted.
    ``lease`` is in seconds.
    """

    namespace: str
    worker: uuid.UUID
    slots: int
    types: frozenset[str]
    lease: float
    queues: tuple[str, ...] | None = None
    excluded: frozenset[str] = frozenset()
    gated: frozenset[str] = frozenset()
    approved: frozenset[uuid.UUID] = frozenset()
    owner_cap: int | None = None
    uncapped: frozenset[str] = frozenset()
    global_cap: int | None = None
    repeats: Callable[[str, int, int | None], bool] = lambda type, attempt, granted: False
    make_id: Callable[[], uuid.UUID] = uuid.uuid4


@dataclass(slots=True)
class Claimed:
    """A job that this process holds; ``unreadable`` says what is wrong with its row."""

    job: Job
    claim_id: uuid.UUID
    started: bool
    unreadable: str = ""

    @property
    def attempt(self) -> int:
        return self.job.attempts


@dataclass(slots=True)
class ClaimResult:
    """What a claim took, and whether another one at once may take more."""

    takings: list[Taking] = field(default_factory=list)
    more: bool = False
    paused: bool = False


def claim(connection: BaseDatabaseWrapper, request: ClaimRequest) -> ClaimResult:
    """Take as many jobs as there are slots, owners in turn, no cap exceeded.

    Call it inside a transaction (READ COMMITTED; on SQLite one that holds the write lock): it
    locks the namespace's row first, which puts the claims of all workers in order.
    """
    statements = statements_for(connection)
    row = statements.lock_namespace(request.namespace)
    if row is None:
        Namespace.objects.using(connection.alias).bulk_create(
            [Namespace(name=request.namespace)], ignore_conflicts=True
        )
        row = statements.lock_namespace(request.namespace)
        assert row is not None
    turn_after, paused = row
    if paused:
        return ClaimResult(paused=True)
    promoted = statements.promote(request.namespace)
    chosen, last, left_over = _choose(statements, request, turn_after, locked=True)
    takings = [_taking(candidate, request) for candidate in chosen]
    taken: set[uuid.UUID] = set()
    if takings:
        taken = set(statements.take(takings, worker=request.worker, lease=request.lease))
        if last != turn_after:
            statements.move_turn(request.namespace, last)
    more = left_over or bool(promoted and not takings)
    return ClaimResult([taking for taking in takings if taking.job_id in taken], more=more)


def peek(connection: BaseDatabaseWrapper, request: ClaimRequest) -> list[uuid.UUID]:
    """Return the gated jobs that a claim would come to now, in turn order; locks nothing."""
    statements = statements_for(connection)
    namespace = Namespace.objects.using(connection.alias).filter(pk=request.namespace).first()
    if namespace is None or namespace.paused_at is not None:
        return []
    chosen, _, _ = _choose(statements, request, namespace.turn_after, locked=False)
    return [candidate.job_id for candidate in chosen if candidate.type in request.gated]


def _taking(candidate: Candidate, request: ClaimRequest) -> Taking:
    attempt = candidate.attempts + 1
    return Taking(
        job_id=candidate.job_id,
        owner_id=candidate.owner_id,
        claim_id=request.make_id(),
        starts=candidate.type not in request.gated,
        requeue_on_interrupt=request.repeats(candidate.type, attempt, candidate.max_attempts),
    )


def _choose(
    statements: Statements, request: ClaimRequest, turn_after: str, *, locked: bool
) -> tuple[list[Candidate], str, bool]:
    """Choose whom the free slots go to; return them, the new turn, and whether to look again.

    Looks at as many owners as there are slots first. Only if these had nothing for this worker
    does it look further along, so that a claim usually costs the same however many owners wait.
    """
    active = statements.active_by_owner(request.namespace)
    slots = request.slots
    if request.global_cap is not None:
        slots = min(slots, request.global_cap - sum(active.values()))
    if slots <= 0:
        return [], turn_after, False
    full = [
        owner
        for owner, count in active.items()
        if request.owner_cap is not None
        and owner not in request.uncapped
        and count >= request.owner_cap
    ]
    queues = request.queues
    if queues is None:
        queues = tuple(q for q in statements.queues(request.namespace) if q not in request.excluded)
    limit = slots
    while True:
        found: list[Candidate] = []
        seen_all = True
        for queue in queues:
            owners = statements.owners_due(
                request.namespace, queue, after=turn_after, full=full, limit=limit
            )
            seen_all = seen_all and len(owners) < limit
            if owners:
                each = max(1, slots - len(owners) + 1) if len(queues) == 1 else slots
                found += _heads(statements, request, queue, owners, each=each, locked=locked)
        heads = _by_owner(found, request, locked=locked)
        chosen, last = deal(heads, turn_after, slots=slots, room=_room(heads, active, request))
        if len(chosen) == slots or seen_all:
            waiting = any(
                c.type in request.gated and c.job_id not in request.approved for c in found
            )
            return chosen, last, locked and waiting
        limit *= _WIDER


def _heads(
    statements: Statements,
    request: ClaimRequest,
    queue: str,
    owners: Sequence[str],
    *,
    each: int,
    locked: bool,
) -> list[Candidate]:
    """Return the owners' next jobs that this worker has handlers for."""
    found = statements.heads(request.namespace, queue, owners, each=each, lock=locked)
    strangers = {(c.owner_id, c.type) for c in found if c.type not in request.types}
    if not strangers:
        return found
    if locked:
        _put_off_unknown(statements, request.namespace, queue, strangers)
    return (
        statements.heads(
            request.namespace, queue, owners, each=each, types=sorted(request.types), lock=locked
        )
        if request.types
        else []
    )


def _put_off_unknown(
    statements: Statements, namespace: str, queue: str, strangers: Iterable[tuple[str, str]]
) -> None:
    """Take jobs out of the way whose type no live worker knows; a worker that does frees them.

    Under the namespace's lock, which a worker that registers its types takes too: it either is
    seen here or sees what was put off.
    """
    known = live_types(statements.connection, namespace)
    for owner, type in sorted(strangers):
        if type not in known:
            ids = statements.due_of_type(namespace, queue, owner, type)
            statements.hold(ids, HeldReason.NO_HANDLER, until=NEVER)


def live_types(connection: BaseDatabaseWrapper, namespace: str) -> set[str]:
    """Return the types that the namespace's running workers have handlers for."""
    workers = Worker.objects.using(connection.alias).filter(
        namespace=namespace, state__in=[Worker.Status.RUNNING, Worker.Status.DRAINING]
    )
    return {type for types in workers.values_list("types", flat=True) for type in types}


def _by_owner(
    found: Iterable[Candidate], request: ClaimRequest, *, locked: bool
) -> dict[str, list[Candidate]]:
    heads: dict[str, list[Candidate]] = {}
    for candidate in sorted(found, key=lambda candidate: candidate.order):
        if locked and candidate.type in request.gated and candidate.job_id not in request.approved:
            continue
        heads.setdefault(candidate.owner_id, []).append(candidate)
    return heads


def _room(owners: Iterable[str], active: dict[str, int], request: ClaimRequest) -> dict[str, int]:
    if request.owner_cap is None:
        return {}
    return {
        owner: request.owner_cap - active.get(owner, 0)
        for owner in owners
        if owner not in request.uncapped
    }


def load(connection: BaseDatabaseWrapper, takings: Sequence[Taking]) -> list[Claimed]:
    """Read the jobs just claimed, in the order given.

    JSON comes as text and is read row by row, so that a row edited into nonsense is told of and
    harms no neighbour.
    """
    texts = {f"{name}_text": Cast(name, TextField()) for name in ("payload", "target", "meta")}
    rows = (
        Job.objects.using(connection.alias)
        .filter(pk__in=[taking.job_id for taking in takings])
        .defer("payload", "target", "meta")
        .annotate(**texts)
    )
    jobs = {job.pk: job for job in rows}
    claimed = []
    for taking in takings:
        job = jobs.get(taking.job_id)
        if job is not None:
            problem = _read_json(job)
            claimed.append(Claimed(job, taking.claim_id, taking.starts, problem))
    return claimed


def _read_json(job: Any) -> str:
    """Fill in the job's JSON fields from their texts; return what is wrong, "" if nothing is."""
    for name in ("payload", "target", "meta"):
        try:
            value = json.loads(job.__dict__.pop(f"{name}_text"))
        except (ValueError, TypeError, RecursionError) as error:
            return f"The job's {name} cannot be read: {error}. Its row was edited by hand."
        job.__dict__[name] = value
    target = job.target
    if not isinstance(target, dict) or not all(
        isinstance(target.get(key), str) and target[key].strip() for key in ("kind", "id")
    ):
        return (
            "The job's target is not an object with a kind and an id: its row was edited by hand."
        )
    return ""


def settle(connection: BaseDatabaseWrapper, outcomes: Sequence[Outcome]) -> set[uuid.UUID]:
    """Write outcomes together, inside the caller's transaction; return the claims still held."""
    return statements_for(connection).settle_many(outcomes) if outcomes else set()


def put_off(
    connection: BaseDatabaseWrapper, job: Job, *, longest: float, now: datetime | None = None
) -> None:
    """Put off a queued job whose can_run said no, for as long as it has been held so far.

    The pause grows from one second to ``longest`` seconds: it doubles with each refusal.
    """
    now = now or current_clock().now(connection)
    held = (now - job.held_since).total_seconds() if job.held_since else 0.0
    pause = min(max(held, 1.0), longest)
    until = datetime.fromtimestamp(now.timestamp() + pause, tz=UTC)
    statements_for(connection).hold([job.pk], HeldReason.NOT_ELIGIBLE, until=until)


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
    ids = list(
        entries.filter(which, namespace=namespace, due=False).values_list("job_id", flat=True)
    )
    for start in range(0, len(ids), 500):
        statements.unhold(ids[start : start + 500])
    return len(ids)


def interrupt(claim: tuple[uuid.UUID, uuid.UUID], reason: str, *, repeats: bool) -> Outcome:
    """Return the outcome of an execution that nobody will finish."""
    job_id, claim_id = claim
    edge = "retry_interrupted" if repeats else "interrupt"
    return Outcome(job_id=job_id, claim_id=claim_id, edge=edge, reason=reason)


def expire(
    connection: BaseDatabaseWrapper, namespace: str, *, requeue_unstarted: bool, lease: float
) -> list[Outcome]:
    """Interrupt what is held by workers whose lease ran out; return what was.

    Any worker may do it, at any time: each row is settled only if its lease is still over.
    """
    clock = current_clock()
    now = clock.now(connection)
    late = Execution.objects.using(connection.alias).filter(
        namespace=namespace, state__in=ACTIVE, lease_expires_at__lt=now
    )
    done = []
    for row in late.only("job_id", "claim_id", "state", "requeue_on_interrupt"):
        outcome = _abandoned(row, InterruptionReason.WORKER_LOST, requeue_unstarted)
        if statements_for(connection).settle(outcome, lease_ended=True):
            done.append(outcome)
    return done


def interrupt_worker(
    connection: BaseDatabaseWrapper, worker: uuid.UUID, reason: str, *, requeue_unstarted: bool
) -> list[Outcome]:
    """Interrupt everything that a worker known to be dead still holds; return what was."""
    worker_row = Worker.objects.using(connection.alias).get(pk=worker)
    held = Execution.objects.using(connection.alias).filter(
        namespace=worker_row.namespace, state__in=ACTIVE, worker_id=worker
    )
    outcomes = [_abandoned(row, reason, requeue_unstarted) for row in held]
    settled = settle(connection, outcomes)
    return [outcome for outcome in outcomes if outcome.claim_id in settled]


def _abandoned(row: Execution, reason: str, requeue_unstarted: bool) -> Outcome:
    if row.state == "claimed" and requeue_unstarted:
        return Outcome(job_id=row.job_id, claim_id=row.claim_id, edge="release")
    return interrupt((row.job_id, row.claim_id), reason, repeats=row.requeue_on_interrupt)
