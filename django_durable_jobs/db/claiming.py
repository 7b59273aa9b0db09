"""The statements of the claim: marking due, putting off, taking."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from ..states import EDGES
from .looking import ORDER, LookStatements
from .rows import Candidate, Taking
from .session import ENTRY, EXECUTION, JOB, NAMESPACE, NOT_HELD, as_uuid, in_states, marks

# One batch of a mass change (promotions, put-offs): short enough to hold locks for a breath.
BATCH = 1_000

# What an execution starts with, in the order of the SELECTs that fill it.
EXECUTION_COLUMNS = (
    "job_id, namespace, owner_id, attempt, claim_id, worker_id, state, lease_expires_at,"
    " requeue_on_interrupt, claimed_at, started_at, updated_at, interruption_reason, error,"
    " error_code, traceback, resolved_by, resolved_note"
)


class ClaimStatements(LookStatements):
    """Take due jobs."""

    def lock_namespace(self, name: str, *, lock: bool = True) -> tuple[str, bool] | None:
        """Lock the namespace's row; return its turn and whether it is paused, None without row.

        Without ``lock``, only read it.

        A statement of its own, and first: what waits for a lock inside a larger statement goes on
        to count on the snapshot from before the wait, and breaks every cap.
        """
        rows = self.execute(
            f"SELECT turn_after, paused_at IS NOT NULL FROM {NAMESPACE} WHERE name = %s"
            f"{self.lock if lock else ''}",
            [name],
        )
        return (rows[0][0], bool(rows[0][1])) if rows else None

    def promote(self, namespace: str) -> int:
        """Mark due what has become claimable, at most ``BATCH`` rows; return how many."""
        rows = self.execute(
            f"SELECT job_id FROM {ENTRY}{self.by_wait} WHERE namespace = %s AND due = FALSE"
            f" AND claimable_at <= {self.now} ORDER BY claimable_at LIMIT {BATCH}"
            f"{self.skip_locked}",
            [namespace],
        )
        for ids in self.batches(row[0] for row in rows):
            self.execute(f"UPDATE {ENTRY} SET due = TRUE WHERE job_id IN ({marks(ids)})", ids)
        return len(rows)

    def lock_candidates(self, candidates: Sequence[Candidate]) -> set[uuid.UUID]:
        """Lock these entries; return those that nobody else has locked or changed meanwhile.

        For databases whose ``heads`` does not lock what it finds: a replace may have been
        committed since, which makes the job another owner's or one of a gated type.
        """
        locked: set[uuid.UUID] = set()
        seen = {c.job_id: (c.owner_id, c.queue, c.type) for c in candidates}
        for values in self.batches(self.keys(seen)):
            rows = self.execute(
                f"SELECT job_id, owner_id, queue, type FROM {ENTRY}"
                f" WHERE job_id IN ({marks(values)}) AND due = TRUE{self.skip_locked}",
                values,
            )
            found = ((as_uuid(row[0]), row[1:]) for row in rows)
            locked.update(job_id for job_id, facts in found if seen[job_id] == facts)
        return locked

    def lock_entries(self, ids: Sequence[uuid.UUID]) -> set[uuid.UUID]:
        """Lock these due entries, by primary key; return those that nobody else has locked."""
        locked: set[uuid.UUID] = set()
        for values in self.batches(self.keys(ids)):
            rows = self.execute(
                f"SELECT job_id FROM {ENTRY} WHERE job_id IN ({marks(values)}) AND due = TRUE"
                f"{self.skip_locked}",
                values,
            )
            locked.update(as_uuid(row[0]) for row in rows)
        return locked

    def due_of_type(self, namespace: str, queue: str, owner: str, type: str) -> list[uuid.UUID]:
        """Return the jobs of one type among the first ``BATCH`` due ones of one owner."""
        rows = self.execute(
            f"SELECT job_id, type FROM {ENTRY}{self.by_turn} WHERE namespace = %s AND queue = %s"
            f" AND due = TRUE AND owner_id = %s ORDER BY {ORDER} LIMIT {BATCH}",
            [namespace, queue, owner],
        )
        return [as_uuid(row[0]) for row in rows if row[1] == type]

    def put_off(self, ids: Sequence[uuid.UUID], reason: str, *, until: datetime) -> None:
        """Put due jobs off ``until`` then, and say why; what is not due any more stays as it is."""
        for values in self.batches(self.keys(sorted(self.lock_entries(ids)))):
            self.execute(
                f"UPDATE {ENTRY} SET due = FALSE, claimable_at = %s"
                f" WHERE job_id IN ({marks(values)})",
                [self.time(until), *values],
            )
            # MySQL sets from left to right: held_since looks at the reason from before.
            self.execute(
                f"UPDATE {JOB} SET held_since = CASE WHEN held_reason = %s"
                f" THEN COALESCE(held_since, {self.now}) ELSE {self.now} END, held_reason = %s,"
                f" claimable_at = %s, updated_at = {self.now}"
                f" WHERE id IN ({marks(values)}) AND state = 'queued'",
                [reason, reason, self.time(until), *values],
            )

    def free(self, ids: Sequence[uuid.UUID]) -> int:
        """Let put-off jobs be claimed at once; return how many."""
        freed = 0
        for values in self.batches(self.keys(ids)):
            freed += self.count(
                f"UPDATE {ENTRY} SET due = TRUE, claimable_at = {self.now}"
                f" WHERE job_id IN ({marks(values)}) AND due = FALSE",
                values,
            )
            self.execute(
                f"UPDATE {JOB} SET claimable_at = {self.now}, held_reason = '', held_since = NULL,"
                f" updated_at = {self.now} WHERE id IN ({marks(values)}) AND state = 'queued'",
                values,
            )
        return freed

    def take(
        self,
        takings: Sequence[Taking],
        *,
        worker: uuid.UUID,
        lease: float,
        turn: tuple[str, str] | None = None,
    ) -> list[uuid.UUID]:
        """Claim ``takings``, whose entries are locked; return the jobs claimed.

        Entries go, jobs move, executions begin; ``turn`` is the new turn of a namespace (its name,
        the owner), None where it stays. An entry whose job is not queued (a row edited or
        deleted by hand) goes too.
        """
        taken: list[uuid.UUID] = []
        for part in self.batches(takings, size=100):
            ids = self.keys(taking.job_id for taking in part)
            self.execute(f"DELETE FROM {ENTRY} WHERE job_id IN ({marks(ids)})", ids)
            self._move_claimed(part)
            again = self.keys(taking.job_id for taking in part if taking.requeue_on_interrupt)
            taken += self._begin(part, again, worker=worker, lease=lease)
        if turn is not None:
            name, owner = turn
            self.execute(f"UPDATE {NAMESPACE} SET turn_after = %s WHERE name = %s", [owner, name])
        return taken

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

    def _begin(
        self, taken: Sequence[Taking], again: Sequence[Any], *, worker: uuid.UUID, lease: float
    ) -> list[uuid.UUID]:
        """Write the executions of the jobs that moved; return these jobs."""
        ids = self.keys(taking.job_id for taking in taken)
        claims = self.keys(taking.claim_id for taking in taken)
        chosen = f"FROM {JOB} WHERE id IN ({marks(ids)}) AND claim_id IN ({marks(claims)})"
        repeats = f"CASE WHEN id IN ({marks(again)}) THEN TRUE ELSE FALSE END" if again else "FALSE"
        made = self.count(
            f"INSERT INTO {EXECUTION} ({EXECUTION_COLUMNS})"
            " SELECT id, namespace, owner_id, attempts, claim_id, %s, state,"
            f" {self.clock.sql(self.connection, plus=lease)}, {repeats}, {self.now},"
            f" CASE WHEN state = 'running' THEN {self.now} END, {self.now}, '', '', '', '', '', ''"
            f" {chosen}",
            [self.key(worker), *again, *ids, *claims],
        )
        if made == len(taken):
            return [taking.job_id for taking in taken]
        return [as_uuid(row[0]) for row in self.execute(f"SELECT id {chosen}", [*ids, *claims])]

    @staticmethod
    def batches(values: Iterable[Any], *, size: int = 400) -> Iterable[list[Any]]:
        """Split ``values``: SQLite may bind no more than 999 of them in one statement."""
        everything = list(values)
        return (everything[at : at + size] for at in range(0, len(everything), size))
