"""Telling the audit trail of what became of executions, by whoever wrote it."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence

from django.db import Error
from django.db.backends.base.base import BaseDatabaseWrapper

from ..audit import AuditEvent, audited, job_event, send
from ..db import Outcome
from ..models import Execution, Job
from ..signals import jobs_ended

logger = logging.getLogger(__name__)

# Of a job that is claimed or running and that no execution holds: its row was edited by hand.
NO_EXECUTION = "no_execution"

# The action of each settlement, and whether the job goes back to the queue for another attempt.
_ACTIONS: dict[str, tuple[str, bool | None]] = {
    "complete": ("job.completed", None),
    "fail": ("job.failed", False),
    "retry": ("job.failed", True),
    "interrupt": ("job.interrupted", False),
    "retry_interrupted": ("job.interrupted", True),
    "release": ("job.released", None),
}


def settled(
    outcome: Outcome, *, type: str | None, owner_id: str | None, attempt: int | None
) -> AuditEvent:
    """Return the event of a settlement.

    Its reason is a code or the class of an exception, never an error's text: that may quote the
    payload.
    """
    action, retry = _ACTIONS[outcome.edge]
    reason = outcome.reason or outcome.held_reason
    if action == "job.failed":
        reason = outcome.error_code or outcome.error.partition(":")[0]
    return job_event(
        action,
        job_id=outcome.job_id,
        type=type,
        owner_id=owner_id,
        claim_id=outcome.claim_id,
        attempt=attempt,
        reason=str(reason),
        retry=retry,
    )


def tell_settled(connection: BaseDatabaseWrapper, outcomes: Sequence[Outcome]) -> None:
    """Tell of settlements that are committed; whose they were is read where nobody knows."""
    if interrupted := [each.job_id for each in outcomes if each.edge == "interrupt"]:
        jobs_ended(interrupted, connection.alias)
    if not outcomes or not audited():
        return
    found: dict[uuid.UUID, tuple[str, str, int]] = {}
    try:
        found = _whose(connection, outcomes)
    except Error as error:  # what is written is told of all the same
        logger.warning("audit trail without types and owners error=%s", error)
        connection.close_if_unusable_or_obsolete()
    events = []
    for outcome in outcomes:
        type, owner_id, attempt = found.get(outcome.claim_id, (None, None, None))
        events.append(settled(outcome, type=type, owner_id=owner_id, attempt=attempt))
    send(events)


def _whose(
    connection: BaseDatabaseWrapper, outcomes: Sequence[Outcome]
) -> dict[uuid.UUID, tuple[str, str, int]]:
    """Return type, owner and attempt of executions, by claim id."""
    rows = Execution.objects.using(connection.alias).filter(
        job_id__in=[outcome.job_id for outcome in outcomes],
        claim_id__in=[outcome.claim_id for outcome in outcomes],
    )
    told = rows.values_list("claim_id", "job__type", "owner_id", "attempt")
    return {row[0]: row[1:] for row in told}


def tell_ended(connection: BaseDatabaseWrapper, ids: Sequence[uuid.UUID]) -> None:
    """Tell of jobs interrupted for want of an execution, when the transaction commits."""
    if ids:
        jobs_ended(ids, connection.alias)
    if not ids or not audited():
        return
    jobs = Job.objects.using(connection.alias).filter(pk__in=ids)
    rows = jobs.values("pk", "type", "owner_id", "claim_id", "attempts")
    send(
        [
            job_event(
                "job.interrupted",
                job_id=row["pk"],
                type=row["type"],
                owner_id=row["owner_id"],
                claim_id=row["claim_id"],
                attempt=row["attempts"],
                reason=NO_EXECUTION,
                retry=False,
            )
            for row in rows
        ],
        using=connection.alias,
    )
