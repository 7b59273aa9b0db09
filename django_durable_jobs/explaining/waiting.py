"""Why a queued job is not claimed: the claim's own conditions, in the order in which they go away.

Whatever `claims.claim` refuses has its reason here, and nothing that it would take is said to be
held up: what is told to be in the way really is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime

from ..claims import NEVER
from ..conf import settings
from ..models import QueueEntry, Worker
from ..states import HeldReason, State
from .reading import COUNTED, Line, Standing
from .words import Facts, Reason

# A job that could run and was not taken for so many times the longest sleep is worth a look.
_LATE = 2


def queued(standing: Standing) -> list[Reason]:
    """Return what is to be said of a queued job, what must go away first at the front."""
    if standing.job.state != State.QUEUED:
        return []
    entry = standing.entry
    if entry is None:
        return [Reason(code="entry_missing", facts={})]
    reasons = [*_time(standing, entry), *_workers(standing, entry)]
    line = standing.line
    if line is not None:
        reasons += _caps(standing, entry, line)
        if not reasons:
            reasons = _turn(standing, entry, line)
    return [*reasons, *_schedule(standing)]


def describe(worker: Worker) -> str:
    return f"{worker.host}:{worker.pid}"


def claimers(standing: Standing) -> list[Worker]:
    """Return the live workers that take jobs."""
    return [worker for worker in standing.live if worker.state == Worker.Status.RUNNING]


def serves(worker: Worker, queue: str) -> bool:
    if queue in worker.excluded_queues:
        return False
    return worker.queues is None or queue in worker.queues


def able(standing: Standing, entry: QueueEntry) -> list[Worker]:
    """Return the workers that could take the job."""
    return [
        worker
        for worker in claimers(standing)
        if serves(worker, entry.queue) and entry.type in worker.types
    ]


# Its time


def _time(standing: Standing, entry: QueueEntry) -> Iterator[Reason]:
    if standing.line is not None or entry.claimable_at >= NEVER:
        return
    job = standing.job
    facts: Facts = {
        "due_at": entry.claimable_at.isoformat(),
        "in_seconds": standing.until(entry.claimable_at),
    }
    if job.held_reason == HeldReason.NOT_ELIGIBLE:
        yield Reason(code="not_eligible", facts=_refused(standing) | facts)
    elif job.held_reason == HeldReason.RETRY:
        facts |= {"attempt": job.attempts, "max_attempts": job.max_attempts}
        yield Reason(code="retry", facts=facts)
    else:
        yield Reason(code="scheduled", facts=facts)


def _refused(standing: Standing) -> Facts:
    since: datetime = standing.job.held_since or standing.job.updated_at
    return {"since": since.isoformat(), "for_seconds": standing.since(since)}


# The namespace and its workers


def _workers(standing: Standing, entry: QueueEntry) -> Iterator[Reason]:
    namespace = standing.namespace
    if namespace is not None and namespace.paused_at is not None:
        facts = {
            "namespace": entry.namespace,
            "since": namespace.paused_at.isoformat(),
            "by": namespace.paused_by,
            "reason": namespace.paused_reason,
        }
        yield Reason(code="namespace_paused", facts=facts)
    workers = claimers(standing)
    serving = [worker for worker in workers if serves(worker, entry.queue)]
    if not workers:
        yield _no_worker(standing, entry)
    elif not serving:
        facts = {"queue": entry.queue, "workers": len(workers)}
        yield Reason(code="queue_not_served", facts=facts)
    elif not able(standing, entry):
        yield _no_handler(standing, entry)
    elif standing.line is None and entry.claimable_at >= NEVER:
        # The worker that knows it has not freed it yet.
        yield _no_handler(standing, entry, known=True)


def _no_worker(standing: Standing, entry: QueueEntry) -> Reason:
    silent = [worker for worker in standing.workers if worker not in standing.live]
    last = max((worker.heartbeat_at for worker in silent), default=None)
    facts = {
        "namespace": entry.namespace,
        "draining": len(standing.live),
        "silent": len(silent),
        "silent_seconds": None if last is None else standing.since(last),
    }
    return Reason(code="no_worker", facts=facts)


def _no_handler(standing: Standing, entry: QueueEntry, *, known: bool = False) -> Reason:
    schedule = standing.schedule
    elsewhere = any(entry.type in worker.types for worker in claimers(standing))
    if schedule is not None and schedule.retired_at is not None and not (known or elsewhere):
        facts = {
            "schedule": schedule.name,
            "since": schedule.retired_at.isoformat(),
            "type": entry.type,
        }
        return Reason(code="schedule_gone", facts=facts)
    facts = {"type": entry.type, "queue": entry.queue, "elsewhere": elsewhere, "known": known}
    return Reason(code="no_handler", facts=facts)


# The caps


def _caps(standing: Standing, entry: QueueEntry, line: Line) -> Iterator[Reason]:
    held, cap = _held(line), settings.GLOBAL_CONCURRENCY
    if cap is not None and held.total() >= cap:
        facts: Facts = {"namespace": entry.namespace, "held": held.total(), "cap": cap}
        yield Reason(code="namespace_full", facts=facts)
    if _is_full(entry.owner_id, held):
        facts = {
            "owner": entry.owner_id,
            "held": held[entry.owner_id],
            "cap": settings.OWNER_CONCURRENCY,
            "jobs": [{"id": str(id), "state": state} for id, state in line.owners_jobs],
        }
        yield Reason(code="owner_cap", facts=facts)
    workers = able(standing, entry)
    if workers and not _free(workers, line):
        slots = sum(worker.concurrency for worker in workers)
        facts = {"slots": slots, "workers": len(workers)}
        yield Reason(code="no_free_slot", facts=facts)


def _free(workers: list[Worker], line: Line) -> dict[Worker, int]:
    """Return the free slots of the workers that have any, the most first."""
    busy: Counter[object] = Counter()
    for holder in line.holders:
        busy[holder.worker] += holder.held
    free = {worker: worker.concurrency - busy[worker.pk] for worker in workers}
    ranked = sorted(free.items(), key=lambda item: -item[1])
    return {worker: count for worker, count in ranked if count > 0}


# Its turn


def _turn(standing: Standing, entry: QueueEntry, line: Line) -> list[Reason]:
    """Return what is to be said of a job that the next claim may take."""
    workers = able(standing, entry)
    free = _free(workers, line)
    held, slots = _held(line), sum(free.values())
    if settings.GLOBAL_CONCURRENCY is not None:
        slots = min(slots, settings.GLOBAL_CONCURRENCY - held.total())
    known = {type for worker in workers for type in worker.types}
    jobs = sum(count for type, count in line.before.items() if type in known)
    owners = sum(not _is_full(owner, held) for owner in line.owners)
    reasons = []
    if standing.job.held_reason == HeldReason.NOT_ELIGIBLE:
        reasons.append(Reason(code="asked_again", facts=_refused(standing)))
    # Each owner before it has a job dealt in each round, until its own round comes.
    first = jobs + owners * (jobs + 1)
    if jobs and (first >= slots or jobs >= _room(entry.owner_id, held, slots)):
        more = sum(line.before.values()) > COUNTED
        facts: Facts = {"jobs": min(jobs, COUNTED), "or_more": more, "owner": entry.owner_id}
        reasons.append(Reason(code="turn", facts=facts))
    elif first >= slots or not line.all_owners:
        facts = {"owners": max(owners, 1), "or_more": not line.all_owners}
        reasons.append(Reason(code="turn_owners", facts=facts))
    elif not reasons:
        reasons.append(_claimable(standing, entry, free, slots))
    return reasons


def _claimable(
    standing: Standing, entry: QueueEntry, free: dict[Worker, int], slots: int
) -> Reason:
    due = standing.since(entry.claimable_at)
    facts = {
        "worker": describe(next(iter(free))),
        "slots": slots,
        "due_at": entry.claimable_at.isoformat(),
        "for_seconds": due,
        "late": due > _LATE * settings.MAX_SLEEP,
    }
    return Reason(code="claimable", facts=facts)


def _held(line: Line) -> Counter[str]:
    """Count what each owner holds."""
    held: Counter[str] = Counter()
    for holder in line.holders:
        held[holder.owner_id] += holder.held
    return held


def _room(owner: str, held: Counter[str], slots: int) -> int:
    """Return how many jobs the owner may be dealt at most."""
    if owner in settings.UNCAPPED_OWNERS:
        return slots
    return int(settings.OWNER_CONCURRENCY) - held[owner]


def _is_full(owner: str, held: Counter[str]) -> bool:
    return _room(owner, held, slots=1) <= 0


# Its schedule


def _schedule(standing: Standing) -> Iterator[Reason]:
    schedule = standing.schedule
    if schedule is not None and schedule.paused_at is not None:
        facts = {"schedule": schedule.name, "since": schedule.paused_at.isoformat()}
        yield Reason(code="schedule_paused", facts=facts)
