"""What failed and why, and what was interrupted and waits for somebody to decide."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from django.db.models import F
from django.db.models.functions import Left

from ..models import Execution
from ..states import ExecutionState, State
from .newest import newest_bound

MOST_FAILURES = 200
MOST_UNDECIDED = 1_000
_ERROR = 1_024  # characters of an error that are read


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Attempts that failed alike: of one type, with one error. The rest is of the latest one."""

    type: str
    error: str
    error_code: str
    count: int
    at: datetime
    job: UUID
    job_state: str


@dataclass(frozen=True, slots=True)
class Undecided:
    """A job that was interrupted, and stays so until somebody requeues or resolves it."""

    job: UUID
    type: str
    reason: str
    at: datetime | None


def failures(namespace: str, *, using: str) -> list[Failure]:
    """Group the latest failed attempts by type and error, latest first, in two queries.

    MOST_FAILURES of them are looked at, among the newest executions.
    """
    rows = Execution.objects.using(using).filter(
        pk__gt=newest_bound(using), namespace=namespace, state=ExecutionState.FAILED.value
    )
    told = rows.order_by("-pk").values_list(
        "job__type", Left("error", _ERROR), "error_code", "failed_at", "job_id", "job__state"
    )
    found: dict[tuple[str, str, str], Failure] = {}
    counts: dict[tuple[str, str, str], int] = {}
    for type, error, code, at, job, state in told[:MOST_FAILURES]:
        alike = (type, error, code)
        counts[alike] = counts.get(alike, 0) + 1
        if alike not in found or at > found[alike].at:
            found[alike] = Failure(
                type=type, error=error, error_code=code, count=0, at=at, job=job, job_state=state
            )
    grouped = [replace(each, count=counts[alike]) for alike, each in found.items()]
    return sorted(grouped, key=lambda each: each.at, reverse=True)


def undecided(namespace: str, *, using: str) -> list[Undecided]:
    """Return the jobs that were interrupted last and are so still, in two queries.

    MOST_UNDECIDED at most, out of the newest executions.
    """
    rows = Execution.objects.using(using).filter(
        pk__gt=newest_bound(using),
        namespace=namespace,
        state=ExecutionState.INTERRUPTED.value,
        job__state=State.INTERRUPTED.value,
        job__claim_id=F("claim_id"),
    )
    told = rows.order_by("-pk").values_list(
        "job_id", "job__type", "interruption_reason", "interrupted_at"
    )
    return [Undecided(*row) for row in told[:MOST_UNDECIDED]]
