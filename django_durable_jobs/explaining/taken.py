"""What is to be said of a job that a worker holds, and of one that has ended."""

from __future__ import annotations

from ..conf import settings
from ..models import Worker
from ..states import ACTIVE, ExecutionState, InterruptionReason, State
from .reading import Standing
from .waiting import describe
from .words import Facts, Reason

# How long a handler has that was told to stop, once its worker has heard of it.
_STOPPED_WITHIN = 5.0
# Why the jobs of loop records are cancelled, in the words that are stored (loops/rules.py).
REPLACED = "record_schedule_changed"
WITHDRAWN = ("record_deleted", "record_disabled_or_unscheduled", "record_requires_owner")


def active(standing: Standing) -> list[Reason]:
    """Return what is to be said of a claimed or running job; nothing of another."""
    job, execution = standing.job, standing.execution
    if job.state not in ACTIVE:
        return []
    if execution is None or execution.state not in ACTIVE:
        return [Reason(code="claim_lost", facts={})]
    since = execution.started_at or execution.claimed_at
    facts: Facts = {
        "worker": _name(standing),
        "worker_id": str(execution.worker_id),
        "since": since.isoformat(),
        "for_seconds": standing.since(since),
        "attempt": execution.attempt,
        "lease_ends_at": execution.lease_expires_at.isoformat(),
        "timeout": job.timeout,
    }
    silent, asked = _silent(standing), _asked_to_stop(standing)
    code = "running" if job.state == State.RUNNING else "claimed"
    held = [] if silent else [Reason(code=code, facts=facts)]
    return [*silent, *asked, *held]


def _name(standing: Standing) -> str:
    assert standing.execution is not None
    holder = standing.holder
    return str(standing.execution.worker_id) if holder is None else describe(holder)


def _silent(standing: Standing) -> list[Reason]:
    """Tell that the worker which holds the job seems dead, and what follows."""
    execution, holder = standing.execution, standing.holder
    assert execution is not None
    lease = standing.until(execution.lease_expires_at)
    silent = None if holder is None else standing.since(holder.heartbeat_at)
    gone = holder is not None and holder.state in (Worker.Status.STOPPED, Worker.Status.LOST)
    too_long = max(2 * settings.HEARTBEAT, settings.LEASE / 2)
    if lease > 0 and not gone and (silent is None or silent <= too_long):
        return []
    unstarted = standing.job.state == State.CLAIMED and settings.RECOVER_UNSTARTED == "requeue"
    facts: Facts = {
        "worker": _name(standing),
        "worker_id": str(execution.worker_id),
        "silent_seconds": None if gone else silent,
        "lease_ends_at": execution.lease_expires_at.isoformat(),
        "lease_seconds": lease,
        "requeued": unstarted or execution.requeue_on_interrupt,
        "live": any(worker.pk != execution.worker_id for worker in standing.live),
    }
    return [Reason(code="worker_silent", facts=facts)]


def _asked_to_stop(standing: Standing) -> list[Reason]:
    asked = standing.job.stop_requested_at
    if asked is None:
        return []
    seconds = standing.since(asked)
    facts: Facts = {
        "worker": _name(standing),
        "asked_at": asked.isoformat(),
        "asked_seconds": seconds,
        "late": seconds > 2 * settings.HEARTBEAT + _STOPPED_WITHIN,
        "reason": standing.job.cancelled_reason,
    }
    return [Reason(code="stop_requested", facts=facts)]


# What has ended


def ended(standing: Standing) -> list[Reason]:
    """Return what became of a job that has ended, and what an operator can do."""
    job, execution = standing.job, standing.execution
    assert job.finished_at is not None
    facts: Facts = {"finished_at": job.finished_at.isoformat(), "attempt": job.attempts}
    match job.state:
        case State.COMPLETED if execution and execution.state == ExecutionState.INTERRUPTED:
            facts |= {"by": execution.resolved_by, "note": execution.resolved_note}
            return [Reason(code="resolved", facts=facts)]
        case State.COMPLETED:
            return [Reason(code="completed", facts=facts)]
        case State.FAILED:
            facts["error_code"] = "" if execution is None else execution.error_code
            return [Reason(code="failed", facts=facts)]
        case State.INTERRUPTED:
            return _interrupted(standing, facts)
        case _:
            return [_cancelled(standing, facts)]


def _interrupted(standing: Standing, facts: Facts) -> list[Reason]:
    execution, holder = standing.execution, standing.holder
    reason = "" if execution is None else execution.interruption_reason
    facts |= {"reason": reason, "started": execution is None or execution.started_at is not None}
    reasons = [Reason(code="interrupted", facts=facts)]
    stoppable = reason in (InterruptionReason.TIMED_OUT, InterruptionReason.STOP_REQUESTED)
    running = holder is not None and standing.lives(holder) and holder.stopped_at is None
    if stoppable and running and holder is not None and holder.stuck:
        stuck: Facts = {"worker": describe(holder), "stuck": holder.stuck}
        reasons.append(Reason(code="stuck", facts=stuck))
    return reasons


def _cancelled(standing: Standing, facts: Facts) -> Reason:
    job = standing.job
    facts["reason"] = job.cancelled_reason or ""
    of_loop = job.type.startswith("loop-occurrence:")
    if of_loop and job.cancelled_reason == REPLACED:
        return Reason(code="replaced", facts=facts)
    if of_loop and job.cancelled_reason in WITHDRAWN:
        return Reason(code="withdrawn", facts=facts)
    return Reason(code="cancelled", facts=facts)
