"""The statements of the claim: whose turn it is, what is due, and taking it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ..fields import time_from_database
from ..states import EDGES
from .rows import Candidate, Taking
from .session import ENTRY, EXECUTION, JOB, NAMESPACE, NOT_HELD, Session, as_uuid, in_states, marks

# One batch of a mass change (promotions, put-offs): short enough to hold locks for a breath.
BATCH = 1_000

_HEAD = "job_id, owner_id, type, attempts, max_attempts, rank, run_at, created_at"


class ClaimStatements(Session):
    """Find and take due jobs."""

    def lock_namespace(self, name: str) -> tuple[str, bool] | None:
        """Lock the namespace's row; return its turn and whether it is paused, None without row.

        A statement of its own, and first: what waits for a lock inside a larger statement goes on
        to count on the snapshot from before the wait, and breaks every cap.
        """
        rows = self.execute(
            f"SELECT turn_after, paused_at IS NOT NULL FROM {NAMESPACE} WHERE name = %s{self.lock}",
            [name],
        )
        return (rows[0][0], bool(rows[0][1])) if rows else None

    def move_turn(self, name: str, turn_after: str) -> None:
        self.execute(f"UPDATE {NAMESPACE} SET turn_after = %s WHERE name = %s", [turn_after, name])

    def promote(self, namespace: str) -> int:
        """Mark due what has become claimable, at most ``BATCH`` rows; return how many."""
        rows = self.execute(
            f"SELECT job_id FROM {ENTRY} WHERE namespace = %s AND due = FALSE"
            f" AND claimable_at <= {self.now} ORDER BY claimable_at LIMIT {BATCH}"
            f"{self.skip_locked}",
            [namespace],
        )
        if rows:
            ids = [row[0] for row in rows]
            self.execute(f"UPDATE {ENTRY} SET due = TRUE WHERE job_id IN ({marks(ids)})", ids)
        return len(rows)

    def next_claimable_at(self, namespace: str, queues: Sequence[str] | None) -> datetime | None:
        """Return when the next waiting entry becomes claimable, None where none waits."""
        chosen, params = (
            ("", []) if queues is None else (f" AND queue IN ({marks(queues)})", queues)
        )
        rows = self.execute(
            f"SELECT {self.utc('claimable_at')} FROM {ENTRY} WHERE namespace = %s AND due = FALSE"
            f"{chosen} ORDER BY claimable_at LIMIT 1",
            [namespace, *params],
        )
        return time_from_database(rows[0][0]) if rows else None

    def utc(self, column: str) -> str:
        """Return SQL that reads a column of times as UTC."""
        return column

    def active_by_owner(self, namespace: str) -> dict[str, int]:
        """Count the executions of each owner that have not ended."""
        return dict(
            self.execute(
                f"SELECT owner_id, COUNT(*) FROM {EXECUTION} WHERE namespace = %s"
                " AND state IN ('claimed', 'running') GROUP BY owner_id",
                [namespace],
            )
        )

    def queues(self, namespace: str) -> list[str]:
        """Name the queues that have due entries, by hopping from one name to the next."""
        found: list[str] = []
        rows = self._first_queue(namespace, None)
        while rows:
            found.append(rows[0][0])
            rows = self._first_queue(namespace, found[-1])
        return found

    def _first_queue(self, namespace: str, after: str | None) -> list[tuple[Any, ...]]:
        behind, params = ("", []) if after is None else (" AND queue > %s", [after])
        return self.execute(
            f"SELECT queue FROM {ENTRY} WHERE namespace = %s{behind} ORDER BY queue LIMIT 1",
            [namespace, *params],
        )

    def owners_due(
        self, namespace: str, queue: str, *, after: str, full: Sequence[str], limit: int
    ) -> list[str]:
        """Return the next ``limit`` owners with due entries in turn order, without ``full`` ones.

        Hops from owner to owner along the index, so that its cost does not grow with backlogs.
        """
        owners: list[str] = []
        for bound, stop in (("owner_id > %s", None), ("owner_id >= %s", after)):
            at = after if stop is None else ""
            while len(owners) < limit:
                rows = self.execute(
                    f"SELECT owner_id FROM {ENTRY} WHERE namespace = %s AND queue = %s"
                    f" AND due = TRUE AND {bound} ORDER BY owner_id LIMIT 1",
                    [namespace, queue, at],
                )
                if not rows or (stop is not None and rows[0][0] > stop):
                    break
                at, bound = rows[0][0], "owner_id > %s"
                if at not in full:
                    owners.append(at)
        return owners

    def heads(
        self,
        namespace: str,
        queue: str,
        owners: Sequence[str],
        *,
        each: int,
        types: Sequence[str] | None = None,
        lock: bool = True,
    ) -> list[Candidate]:
        """Return the first ``each`` due entries of each owner, of ``types`` only where given.

        With ``lock``, databases that can skip what others hold do so and lock what they return.
        """
        found: list[Candidate] = []
        only, params = (
            ("", []) if types is None else (f" AND type IN ({marks(types)})", list(types))
        )
        for owner in owners:
            rows = self.execute(
                f"SELECT {_HEAD} FROM {ENTRY} WHERE namespace = %s AND queue = %s AND due = TRUE"
                f" AND owner_id = %s{only} ORDER BY rank, run_at, created_at, job_id LIMIT {each}",
                [namespace, queue, owner, *params],
            )
            found += [self.candidate(queue, row) for row in rows]
        return found

    def candidate(self, queue: str, row: tuple[Any, ...]) -> Candidate:
        job_id = as_uuid(row[0])
        order = (row[5], row[6], row[7], job_id.bytes)
        return Candidate(job_id, row[1], queue, row[2], row[3], row[4], order)

    def due_of_type(self, namespace: str, queue: str, owner: str, type: str) -> list[uuid.UUID]:
        """Return up to ``BATCH`` due jobs of one type of one owner, locked."""
        rows = self.execute(
            f"SELECT job_id FROM {ENTRY} WHERE namespace = %s AND queue = %s AND due = TRUE"
            f" AND owner_id = %s AND type = %s"
            f" ORDER BY rank, run_at, created_at, job_id LIMIT {BATCH}{self.skip_locked}",
            [namespace, queue, owner, type],
        )
        return [as_uuid(row[0]) for row in rows]

    def hold(self, ids: Sequence[uuid.UUID], reason: str, *, until: datetime) -> None:
        """Put due jobs off ``until`` then, and say why."""
        if not ids:
            return
        values = self.keys(ids)
        self.execute(
            f"UPDATE {ENTRY} SET due = FALSE, claimable_at = %s"
            f" WHERE job_id IN ({marks(values)}) AND due = TRUE",
            [self.time(until), *values],
        )
        self.execute(
            f"UPDATE {JOB} SET claimable_at = %s, held_reason = %s,"
            f" held_since = COALESCE(held_since, {self.now}), updated_at = {self.now}"
            f" WHERE id IN ({marks(values)}) AND state = 'queued'",
            [self.time(until), reason, *values],
        )

    def unhold(self, ids: Sequence[uuid.UUID]) -> None:
        """Let put-off jobs be claimed at once."""
        if not ids:
            return
        values = self.keys(ids)
        self.execute(
            f"UPDATE {ENTRY} SET due = TRUE, claimable_at = {self.now}"
            f" WHERE job_id IN ({marks(values)}) AND due = FALSE",
            values,
        )
        self.execute(
            f"UPDATE {JOB} SET claimable_at = {self.now}, held_reason = '', held_since = NULL,"
            f" updated_at = {self.now} WHERE id IN ({marks(values)}) AND state = 'queued'",
            values,
        )

    def take(
        self, takings: Sequence[Taking], *, worker: uuid.UUID, lease: float
    ) -> list[uuid.UUID]:
        """Claim ``takings``: entries go, jobs move, executions begin; return the jobs claimed.

        What was cancelled or is being changed by somebody else is left out.
        """
        by_id = {taking.job_id: taking for taking in takings}
        rows = self.execute(
            f"SELECT job_id FROM {ENTRY} WHERE job_id IN ({marks(takings)}) AND due = TRUE"
            f"{self.skip_locked}",
            self.keys(by_id),
        )
        taken = [by_id[as_uuid(row[0])] for row in rows]
        if not taken:
            return []
        ids = self.keys(taking.job_id for taking in taken)
        claims = self.keys(taking.claim_id for taking in taken)
        self.execute(f"DELETE FROM {ENTRY} WHERE job_id IN ({marks(ids)})", ids)
        self._move_claimed(taken)
        again = self.keys(taking.job_id for taking in taken if taking.requeue_on_interrupt)
        repeats = f"CASE WHEN id IN ({marks(again)}) THEN TRUE ELSE FALSE END" if again else "FALSE"
        self.execute(
            f"INSERT INTO {EXECUTION} (job_id, namespace, owner_id, attempt, claim_id, worker_id,"
            " state, lease_expires_at, requeue_on_interrupt, claimed_at, started_at, updated_at,"
            " interruption_reason, error, error_code, traceback, resolved_by, resolved_note)"
            f" SELECT id, namespace, owner_id, attempts, claim_id, %s, state,"
            f" {self.clock.sql(self.connection, plus=lease)}, {repeats}, {self.now},"
            f" CASE WHEN state = 'running' THEN {self.now} END, {self.now}, '', '', '', '', '', ''"
            f" FROM {JOB} WHERE id IN ({marks(ids)}) AND claim_id IN ({marks(claims)})",
            [self.key(worker), *again, *ids, *claims],
        )
        return [taking.job_id for taking in taken]

    def _move_claimed(self, taken: Sequence[Taking]) -> None:
        for edge_name, starts in (("claim_and_start", True), ("claim", False)):
            group = [taking for taking in taken if taking.starts is starts]
            if not group:
                continue
            edge = EDGES[edge_name]
            ids = self.keys(taking.job_id for taking in group)
            pairs = [
                value
                for taking in group
                for value in (self.key(taking.job_id), self.key(taking.claim_id))
            ]
            cases = " ".join(["WHEN %s THEN %s"] * len(group))
            self.execute(
                f"UPDATE {JOB} SET claim_id = CASE id {cases} END, state = '{edge.target.value}',"
                f" attempts = attempts + 1, updated_at = {self.now}{NOT_HELD if starts else ''}"
                f" WHERE id IN ({marks(ids)}) AND state IN {in_states(edge.sources)}",
                [*pairs, *ids],
            )
