"""The statements from the claim on: starting, settling, renewing, and going back to the queue."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from ..states import EDGES, ENDED_AT, SETTLED
from .rows import Outcome
from .session import ENTRY, EXECUTION, JOB, NOT_HELD, Session, as_uuid, in_states, marks


class SettleStatements(Session):
    """Write what becomes of a claim; each fenced by the claim id."""

    def start(self, job_id: uuid.UUID, claim_id: uuid.UUID) -> bool:
        """Mark a claimed execution running; False where the claim is no longer held."""
        edge = EDGES["start"]
        fence = [self.key(job_id), self.key(claim_id)]
        moved = self.count(
            f"UPDATE {EXECUTION} SET state = '{edge.target.value}', started_at = {self.now},"
            f" updated_at = {self.now} WHERE job_id = %s AND claim_id = %s"
            f" AND state IN {in_states(edge.sources)}",
            fence,
        )
        return bool(moved) and bool(
            self.count(
                f"UPDATE {JOB} SET state = '{edge.target.value}', updated_at = {self.now}{NOT_HELD}"
                f" WHERE id = %s AND claim_id = %s AND state IN {in_states(edge.sources)}",
                fence,
            )
        )

    def settle_many(self, outcomes: Sequence[Outcome]) -> set[uuid.UUID]:
        """Settle each outcome; return the claim ids that were still held."""
        return {
            outcome.claim_id
            for outcome in sorted(outcomes, key=lambda outcome: outcome.job_id)
            if self.settle(outcome)
        }

    def settle(self, outcome: Outcome, *, lease_ended: bool = False) -> bool:
        """Write one outcome, if its claim is still held; return whether it was.

        ``lease_ended`` settles only an execution whose lease has run out meanwhile (the reaper's
        guard: what it read may have been renewed since).
        """
        edge = EDGES[outcome.edge]
        assert edge.execution is not None
        fence = [self.key(outcome.job_id), self.key(outcome.claim_id)]
        sources = in_states(edge.sources)
        ended = self.count(
            f"UPDATE {EXECUTION} SET state = '{edge.execution.value}',"
            f" {ENDED_AT[edge.execution]} = {self.now}, updated_at = {self.now}, result = %s,"
            " error = %s, error_code = %s, traceback = %s, interruption_reason = %s"
            # Released means that the handler was not called, so it never started.
            + (", started_at = NULL" if outcome.edge == "release" else "")
            + f" WHERE job_id = %s AND claim_id = %s AND state IN {sources}"
            + (f" AND lease_expires_at < {self.now}" if lease_ended else ""),
            [
                outcome.result,
                outcome.error,
                outcome.error_code,
                outcome.traceback,
                outcome.reason,
                *fence,
            ],
        )
        return bool(ended) and self._move_settled(outcome, fence, sources)

    def _move_settled(self, outcome: Outcome, fence: list[Any], sources: str) -> bool:
        edge = EDGES[outcome.edge]
        if edge.target in SETTLED:
            changes = (
                f"finished_at = {self.now},"
                " key_hash = CASE WHEN key_scope = 'live' THEN NULL ELSE key_hash END"
            )
            params: list[Any] = []
        else:
            due_at = self.clock.sql(self.connection, plus=outcome.delay)
            held = f"{self.now}" if outcome.held_reason else "NULL"
            # A job that is put off again and again has been held since the first time.
            changes = (
                f"claim_id = NULL, claimable_at = {due_at}, held_reason = %s,"
                f" held_since = COALESCE(held_since, {held})"
                + (", attempts = attempts - 1" if outcome.edge == "release" else "")
            )
            params = [outcome.held_reason]
        moved = self.count(
            f"UPDATE {JOB} SET state = '{edge.target.value}', updated_at = {self.now}, {changes}"
            f" WHERE id = %s AND claim_id = %s AND state IN {sources}",
            [*params, *fence],
        )
        if moved and edge.target not in SETTLED:
            self.add_entries([outcome.job_id])
        return bool(moved)

    def add_entries(self, ids: Sequence[uuid.UUID]) -> None:
        """Put queued jobs into the queue, from their own rows."""
        values = self.keys(ids)
        self.execute(
            f"INSERT INTO {ENTRY} (job_id, namespace, queue, due, owner_id, rank, run_at,"
            " created_at, claimable_at, type, attempts, max_attempts)"
            f" SELECT id, namespace, queue, CASE WHEN claimable_at <= {self.now} THEN TRUE"
            " ELSE FALSE END, owner_id, -priority, run_at, created_at, claimable_at, type,"
            " attempts, max_attempts"
            f" FROM {JOB} WHERE id IN ({marks(values)}) AND state = 'queued'",
            values,
        )

    def renew(self, held: Sequence[tuple[uuid.UUID, uuid.UUID]], *, lease: float) -> set[uuid.UUID]:
        """Renew the leases of ``held`` (job id, claim id); return the claim ids still active.

        Rows that somebody is settling at this moment are skipped: they need no lease any more.
        """
        jobs = self.keys(job_id for job_id, _ in held)
        claims = self.keys(claim_id for _, claim_id in held)
        chosen = (
            f"job_id IN ({marks(jobs)}) AND claim_id IN ({marks(claims)})"
            " AND state IN ('claimed', 'running')"
        )
        rows = self.execute(
            f"SELECT id FROM {EXECUTION} WHERE {chosen} ORDER BY id{self.skip_locked}",
            [*jobs, *claims],
        )
        if rows:
            ids = [row[0] for row in rows]
            self.execute(
                f"UPDATE {EXECUTION} SET"
                f" lease_expires_at = {self.clock.sql(self.connection, plus=lease)}"
                f" WHERE id IN ({marks(ids)}) AND state IN ('claimed', 'running')",
                ids,
            )
        rows = self.execute(f"SELECT claim_id FROM {EXECUTION} WHERE {chosen}", [*jobs, *claims])
        return {as_uuid(row[0]) for row in rows}

    def record(self, job_id: uuid.UUID, claim_id: uuid.UUID, column: str, value: str) -> bool:
        """Replace one JSON column of a running execution; False where it runs no more."""
        assert column in ("metadata", "receipt", "progress")
        return bool(
            self.count(
                f"UPDATE {EXECUTION} SET {column} = %s, updated_at = {self.now}"
                " WHERE job_id = %s AND claim_id = %s AND state = 'running'",
                [value, self.key(job_id), self.key(claim_id)],
            )
        )
