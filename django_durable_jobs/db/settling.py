"""The statements from the claim on: starting, settling, renewing, and going back to the queue."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from ..states import ACTIVE, EDGES, ENDED_AT, SETTLED, State
from .rows import Held, Outcome
from .session import ENTRY, EXECUTION, JOB, NOT_HELD, Session, as_uuid, in_states, marks

# Settlements that travel together; the others are rare and go one by one.
TOGETHER = ("complete", "fail")


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
        """Settle each outcome; return the claim ids that were still held.

        Rows are locked in the order of their jobs' ids, as everybody does who locks several.
        """
        ordered = sorted(outcomes, key=lambda outcome: outcome.job_id)
        together = [outcome for outcome in ordered if outcome.edge in TOGETHER]
        if len(together) < 2:
            return {outcome.claim_id for outcome in ordered if self.settle(outcome)}
        held = {o.claim_id for o in ordered if o.edge not in TOGETHER and self.settle(o)}
        for start in range(0, len(together), self.settled_at_once):
            held |= self.end_together(together[start : start + self.settled_at_once])
        return held

    settled_at_once = 50

    def end_together(self, outcomes: Sequence[Outcome]) -> set[uuid.UUID]:
        """Write ends of running jobs, in three statements whatever their number."""
        running = in_states(EDGES["complete"].sources)
        wanted = {(outcome.job_id, outcome.claim_id): outcome for outcome in outcomes}
        jobs = self.keys(job_id for job_id, _ in wanted)
        claims = self.keys(claim_id for _, claim_id in wanted)
        rows = self.execute(
            f"SELECT id, job_id, claim_id FROM {EXECUTION} WHERE job_id IN ({marks(jobs)})"
            f" AND claim_id IN ({marks(claims)}) AND state IN {running} ORDER BY job_id{self.lock}",
            [*jobs, *claims],
        )
        ends = [
            (row[0], outcome)
            for row in rows
            if (outcome := wanted.get((as_uuid(row[1]), as_uuid(row[2]))))
        ]
        held: set[uuid.UUID] = set()
        for edge_name in TOGETHER:
            group = [(id, outcome) for id, outcome in ends if outcome.edge == edge_name]
            if group:
                self._end_executions(edge_name, group)
                held |= self._end_jobs(edge_name, [outcome for _, outcome in group])
        return held

    def _end_executions(self, edge_name: str, group: Sequence[tuple[int, Outcome]]) -> None:
        edge = EDGES[edge_name]
        assert edge.execution is not None
        sets, params = [], []
        for column in ("result", "error", "error_code", "traceback"):
            values = [(id, getattr(outcome, column)) for id, outcome in group]
            if any(value for _, value in values):
                sets.append(
                    f", {column} = CASE id {' '.join(['WHEN %s THEN %s'] * len(group))} END"
                )
                params += [part for pair in values for part in pair]
        ids = [id for id, _ in group]
        self.execute(
            f"UPDATE {EXECUTION} SET state = '{edge.execution.value}',"
            f" {ENDED_AT[edge.execution]} = {self.now}, updated_at = {self.now}{''.join(sets)}"
            f" WHERE id IN ({marks(ids)}) AND state IN {in_states(edge.sources)}",
            [*params, *ids],
        )

    def _end_jobs(self, edge_name: str, outcomes: Sequence[Outcome]) -> set[uuid.UUID]:
        edge = EDGES[edge_name]
        jobs = self.keys(outcome.job_id for outcome in outcomes)
        claims = self.keys(outcome.claim_id for outcome in outcomes)
        fence = (
            f"WHERE id IN ({marks(jobs)}) AND claim_id IN ({marks(claims)})"
            f" AND state IN {in_states(edge.sources)}"
        )
        moved = self.count(
            f"UPDATE {JOB} SET state = '{edge.target.value}', updated_at = {self.now},"
            f" {self._settled_columns()} {fence}",
            [*jobs, *claims],
        )
        if moved == len(outcomes):
            return {outcome.claim_id for outcome in outcomes}
        # A job was deleted or edited by hand: say exactly which ones moved.
        rows = self.execute(
            f"SELECT claim_id FROM {JOB} WHERE id IN ({marks(jobs)}) AND claim_id IN"
            f" ({marks(claims)}) AND state = '{edge.target.value}'",
            [*jobs, *claims],
        )
        return {as_uuid(row[0]) for row in rows}

    def _settled_columns(self) -> str:
        return (
            f"finished_at = {self.now},"
            " key_hash = CASE WHEN key_scope = 'live' THEN NULL ELSE key_hash END"
        )

    def settle(self, outcome: Outcome, *, lease_ended: bool = False) -> bool:
        """Write one outcome, if its claim is still held; return whether it was.

        ``lease_ended`` settles only an execution whose lease has run out meanwhile (the reaper's
        guard: what it read may have been renewed since).
        """
        edge = EDGES[outcome.edge]
        assert edge.execution is not None
        fence = [self.key(outcome.job_id), self.key(outcome.claim_id)]
        sources = in_states([State.CLAIMED] if outcome.unstarted else edge.sources)
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
            changes = self._settled_columns()
            params: list[Any] = []
        else:
            # A job that is put off for one reason again and again is held since the first time.
            # MySQL sets from left to right: held_since looks at the reason from before.
            held_since = (
                f"CASE WHEN held_reason = %s THEN COALESCE(held_since, {self.now})"
                f" ELSE {self.now} END"
                if outcome.held_reason
                else "NULL"
            )
            due_at = self.clock.sql(self.connection, plus=outcome.delay)
            changes = (
                f"claim_id = NULL, claimable_at = {due_at},"
                f" held_since = {held_since}, held_reason = %s"
                + (", attempts = attempts - 1" if outcome.edge == "release" else "")
            )
            params = [outcome.held_reason] * (2 if outcome.held_reason else 1)
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
            f" AND {self.filtered_state} IN ('claimed', 'running')"
        )
        rows = self.execute(
            # In no order: an ORDER BY that looks cheap has MariaDB read all of an index for it.
            # Who waits for nobody's lock needs none.
            f"SELECT id FROM {EXECUTION} WHERE {chosen}{self.skip_locked}",
            [*jobs, *claims],
        )
        if rows:
            ids = [row[0] for row in rows]
            self.execute(
                f"UPDATE {EXECUTION} SET"
                f" lease_expires_at = {self.clock.sql(self.connection, plus=lease)}"
                f" WHERE id IN ({marks(ids)}) AND {self.filtered_state} IN ('claimed', 'running')",
                ids,
            )
        rows = self.execute(f"SELECT claim_id FROM {EXECUTION} WHERE {chosen}", [*jobs, *claims])
        return {as_uuid(row[0]) for row in rows}

    def stop_requests(self, held: Sequence[tuple[uuid.UUID, uuid.UUID]]) -> set[uuid.UUID]:
        """Return those of ``held`` (job id, claim id) whose job was asked to stop: claim ids."""
        jobs = self.keys(job_id for job_id, _ in held)
        claims = self.keys(claim_id for _, claim_id in held)
        rows = self.execute(
            f"SELECT claim_id FROM {JOB} WHERE id IN ({marks(jobs)})"
            f" AND claim_id IN ({marks(claims)}) AND stop_requested_at IS NOT NULL",
            [*jobs, *claims],
        )
        return {as_uuid(row[0]) for row in rows}

    def held(
        self, namespace: str, *, worker: uuid.UUID | None = None, late: bool = False, limit: int
    ) -> list[Held]:
        """Return executions that have not ended, in the order of their jobs: ``worker``'s only,
        or ``late`` ones only, whose leases are over.
        """
        chosen, params = "", [namespace]
        if worker is not None:
            chosen, params = " AND worker_id = %s", [namespace, self.key(worker)]
        if late:
            chosen += f" AND lease_expires_at < {self.now}"
        found = []
        for state in ACTIVE:
            rows = self.execute(
                "SELECT job_id, claim_id, requeue_on_interrupt"
                f" FROM {EXECUTION}{self.by_active} WHERE namespace = %s"
                f" AND state = '{state.value}'{chosen} LIMIT {limit}",
                params,
            )
            found += [Held(as_uuid(r[0]), as_uuid(r[1]), state, bool(r[2])) for r in rows]
        return sorted(found)[:limit]

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
