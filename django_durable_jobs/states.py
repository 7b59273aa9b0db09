"""The states of a job and of an execution, and the only edges between them.

Everything that writes a state, in Python or in SQL, is built from ``EDGES``: an edge that is
not listed here does not exist.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _


class State(TextChoices):
    """Where a job stands."""

    QUEUED = "queued", _("queued")  # has a queue entry; waits for its time, its turn or a retry
    CLAIMED = "claimed", _("claimed")  # one worker holds it; its handler was not called
    RUNNING = "running", _("running")  # its handler was called, or is about to be
    COMPLETED = "completed", _("completed")  # its handler returned, or an operator resolved it
    FAILED = "failed", _("failed")  # its handler raised, or its row could not be run
    INTERRUPTED = "interrupted", _("interrupted")  # claimed, and nobody knows how far it came
    CANCELLED = "cancelled", _("cancelled")  # withdrawn before it was claimed


class ExecutionState(TextChoices):
    """Where one attempt at a job stands."""

    CLAIMED = "claimed", _("claimed")
    RUNNING = "running", _("running")
    COMPLETED = "completed", _("completed")
    FAILED = "failed", _("failed")
    INTERRUPTED = "interrupted", _("interrupted")
    RELEASED = "released", _("released")  # given back before its handler was called


ACTIVE = (State.CLAIMED, State.RUNNING)  # somebody holds a claim
LIVE = (State.QUEUED, *ACTIVE)  # may still change by itself
SETTLED = (State.COMPLETED, State.FAILED, State.INTERRUPTED, State.CANCELLED)
UNCLAIMED = (State.QUEUED, State.CANCELLED)  # exactly these have no claim id

# The column that holds an ended execution's end, by its state: exactly one is set.
ENDED_AT = {
    ExecutionState.COMPLETED: "completed_at",
    ExecutionState.FAILED: "failed_at",
    ExecutionState.INTERRUPTED: "interrupted_at",
    ExecutionState.RELEASED: "released_at",
}


@dataclass(frozen=True, slots=True)
class Edge:
    """One allowed move of a job: from any of ``sources`` to ``target``.

    ``execution`` is the state in which the move leaves the execution that held the claim, None
    where it touches none.
    """

    sources: tuple[State, ...]
    target: State
    execution: ExecutionState | None = None


EDGES = {
    "claim": Edge((State.QUEUED,), State.CLAIMED, ExecutionState.CLAIMED),
    # Where no can_run stands between the two, claim and start are one commit.
    "claim_and_start": Edge((State.QUEUED,), State.RUNNING, ExecutionState.RUNNING),
    "start": Edge((State.CLAIMED,), State.RUNNING, ExecutionState.RUNNING),
    "complete": Edge((State.RUNNING,), State.COMPLETED, ExecutionState.COMPLETED),
    "fail": Edge((State.RUNNING,), State.FAILED, ExecutionState.FAILED),
    "retry": Edge((State.RUNNING,), State.QUEUED, ExecutionState.FAILED),
    "interrupt": Edge(ACTIVE, State.INTERRUPTED, ExecutionState.INTERRUPTED),
    # A handler (or project) that declared itself safe to repeat after an interruption.
    "retry_interrupted": Edge(ACTIVE, State.QUEUED, ExecutionState.INTERRUPTED),
    # From running only by the holder that knows its handler was not called.
    "release": Edge(ACTIVE, State.QUEUED, ExecutionState.RELEASED),
    "cancel": Edge((State.QUEUED,), State.CANCELLED),
    # The operators' two edges out of a settled state.
    "requeue": Edge((State.FAILED, State.INTERRUPTED, State.CANCELLED), State.QUEUED),
    "resolve": Edge((State.INTERRUPTED,), State.COMPLETED),
}


class HeldReason(TextChoices):
    """Why a queued job is not claimable although its run_at has come."""

    NOT_ELIGIBLE = "not_eligible", _("its can_run says not now")
    NO_HANDLER = "no_handler", _("no live worker knows its type")
    RETRY = "retry", _("waits for its retry")


class InterruptionReason(TextChoices):
    """Why an execution was interrupted; names after the seed where it has one."""

    SERVER_RESTARTED = "server_restarted_after_claim", _("its worker's process is gone")
    WORKER_LOST = "worker_lost", _("its worker's lease ran out")
    CLAIM_UNCONFIRMED = "claim_unconfirmed", _("its claim's commit was never confirmed")
    SCHEDULER_SHUTDOWN = "scheduler_shutdown", _("its worker shut down before it ended")
    TIMED_OUT = "timed_out", _("it ran past its time limit")
    STOP_REQUESTED = "stop_requested", _("somebody asked it to stop")


class TickOutcome(TextChoices):
    """What became of a schedule's tick."""

    FIRED = "fired", _("fired")
    SKIPPED = "skipped", _("skipped")
    MANUAL = "manual", _("run by hand")
