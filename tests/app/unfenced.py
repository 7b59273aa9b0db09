"""Take the fence away, in the process that imports this, to prove that tests would notice.

Without it a settlement asks neither for the claim id nor for the state, and what a lost worker
held goes back to the queue instead of being interrupted: a job runs twice, and a zombie
overwrites what became of it meanwhile. Only tests/app/apps.py imports it, and only where the
environment says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django_durable_jobs.db import (
    MySQLStatements,
    Outcome,
    PostgreSQLStatements,
    Statements,
    session,
)


def _settle(self: Any, outcome: Outcome, *, lease_ended: bool = False) -> bool:
    """Write an outcome by the job's id alone; what is lost is queued again."""
    job = [self.key(outcome.job_id)]
    claim = [self.key(outcome.claim_id)]
    back = outcome.edge in ("interrupt", "retry_interrupted", "release", "retry")
    ended = {"complete": "completed", "fail": "failed"}.get(outcome.edge, "released")
    column = {"completed": "completed_at", "failed": "failed_at", "released": "released_at"}[ended]
    others = "".join(
        f", {name} = NULL"
        for name in ("completed_at", "failed_at", "interrupted_at", "released_at")
        if name != column
    )
    self.execute(
        f"UPDATE {session.EXECUTION} SET state = '{ended}', {column} = {self.now}{others}"
        " WHERE job_id = %s AND claim_id = %s",
        [*job, *claim],
    )
    if not back:
        self.execute(f"DELETE FROM {session.ENTRY} WHERE job_id = %s", job)
        self.execute(
            f"UPDATE {session.JOB} SET state = '{ended}', finished_at = {self.now},"
            " claim_id = %s WHERE id = %s",
            [*claim, *job],
        )
        return True
    queued = self.count(
        f"UPDATE {session.JOB} SET state = 'queued', claim_id = NULL, finished_at = NULL"
        " WHERE id = %s AND state IN ('claimed', 'running')",
        job,
    )
    if queued:
        self.add_entries([outcome.job_id])
    return True


def _settle_many(self: Any, outcomes: Sequence[Outcome]) -> set[UUID]:
    return {outcome.claim_id for outcome in outcomes if self.settle(outcome)}


for _class in (Statements, PostgreSQLStatements, MySQLStatements):
    _class.settle = _settle  # type: ignore[method-assign]
    _class.settle_many = _settle_many  # type: ignore[method-assign]
