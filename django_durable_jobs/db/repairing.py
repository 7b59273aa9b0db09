"""The statements that find rows which do not match: jobs, their entries, their executions."""

from __future__ import annotations

import uuid
from typing import NamedTuple

from ..states import ACTIVE, EDGES
from .session import ENTRY, EXECUTION, JOB, as_uuid, in_states, marks
from .settling import SettleStatements

FIRST = uuid.UUID(int=0)


class Stretch(NamedTuple):
    """What is wrong among the rows looked at, and behind which key to go on (None: the end)."""

    wrong: list[uuid.UUID]
    after: uuid.UUID | None


class RepairStatements(SettleStatements):
    """Look along both tables by primary key, a stretch at a time; write only what is wrong.

    The other table is asked for one row at a time (a scalar subquery, where PostgreSQL answers
    EXISTS by reading all of it), so that a look costs the same however long the queue is.
    """

    def jobs_without_entry(self, namespace: str, after: uuid.UUID, limit: int) -> Stretch:
        return self._stretch(
            "SELECT looked.id, looked.state = 'queued' AND looked.namespace = %s"
            f" AND (SELECT e.due FROM {ENTRY} e WHERE e.job_id = looked.id) IS NULL"
            f" FROM (SELECT id, state, namespace FROM {JOB} WHERE id > %s ORDER BY id"
            f" LIMIT {limit}) looked ORDER BY looked.id",
            (namespace, self.key(after)),
            limit,
        )

    def entries_without_job(self, namespace: str, after: uuid.UUID, limit: int) -> Stretch:
        return self._stretch(
            f"SELECT looked.job_id, looked.namespace = %s AND (SELECT j.state FROM {JOB} j"
            " WHERE j.id = looked.job_id AND j.state = 'queued') IS NULL"
            f" FROM (SELECT job_id, namespace FROM {ENTRY} WHERE job_id > %s ORDER BY job_id"
            f" LIMIT {limit}) looked ORDER BY looked.job_id",
            (namespace, self.key(after)),
            limit,
        )

    def jobs_without_execution(self, namespace: str, after: uuid.UUID, limit: int) -> Stretch:
        """Find claimed and running jobs that no execution holds: nobody would ever end them."""
        return self._stretch(
            f"SELECT looked.id, looked.namespace = %s AND looked.state IN {in_states(ACTIVE)}"
            f" AND (SELECT MIN(x.id) FROM {EXECUTION} x WHERE x.job_id = looked.id"
            f" AND x.claim_id = looked.claim_id AND x.state IN {in_states(ACTIVE)}) IS NULL"
            f" FROM (SELECT id, state, namespace, claim_id FROM {JOB} WHERE id > %s ORDER BY id"
            f" LIMIT {limit}) looked ORDER BY looked.id",
            (namespace, self.key(after)),
            limit,
        )

    def end_jobs(self, ids: list[uuid.UUID]) -> list[uuid.UUID]:
        """Interrupt those of the jobs that no execution holds; return them."""
        edge = EDGES["interrupt"]
        values = self.keys(sorted(ids))
        rows = self.execute(
            f"SELECT id FROM {JOB} WHERE id IN ({marks(values)})"
            f" AND state IN {in_states(edge.sources)} ORDER BY id{self.lock}",
            values,
        )
        values = [row[0] for row in rows]
        if not values:
            return []
        moved = self.count(
            f"UPDATE {JOB} SET state = '{edge.target.value}', finished_at = {self.now},"
            f" updated_at = {self.now},"
            " key_hash = CASE WHEN key_scope = 'live' THEN NULL ELSE key_hash END"
            f" WHERE id IN ({marks(values)}) AND state IN {in_states(edge.sources)}"
            f" AND NOT EXISTS (SELECT 1 FROM {EXECUTION} x WHERE x.job_id = {JOB}.id"
            f" AND x.claim_id = {JOB}.claim_id AND x.state IN {in_states(ACTIVE)})",
            values,
        )
        if moved < len(values):
            rows = self.execute(
                f"SELECT id FROM {JOB} WHERE id IN ({marks(values)})"
                f" AND state = '{edge.target.value}'",
                values,
            )
        return [as_uuid(row[0]) for row in rows]

    def _stretch(self, sql: str, params: tuple[object, ...], limit: int) -> Stretch:
        rows = self.execute(sql, params)
        after = as_uuid(rows[-1][0]) if len(rows) == limit else None
        return Stretch([as_uuid(row[0]) for row in rows if row[1]], after)

    def make_entries(self, ids: list[uuid.UUID]) -> int:
        """Put those of the jobs into the queue that are queued and have no entry; say how many.

        Looked at again under the jobs' locks: a claim, a cancellation or another repair may have
        come by. A job that somebody holds is left for the next time.
        """
        values = self.keys(ids)
        rows = self.execute(
            f"SELECT id FROM {JOB} WHERE id IN ({marks(values)}) AND state = 'queued'"
            f" ORDER BY id{self.skip_locked}",
            values,
        )
        locked = {row[0] for row in rows}
        if locked:
            chosen = list(locked)
            there = self.execute(
                f"SELECT job_id FROM {ENTRY} WHERE job_id IN ({marks(chosen)})", chosen
            )
            locked -= {row[0] for row in there}
            self.add_entries([as_uuid(value) for value in locked])
        return len(locked)

    def drop_entries(self, ids: list[uuid.UUID]) -> int:
        """Delete those of the entries that have no queued job; return how many."""
        values = self.keys(ids)
        rows = self.execute(
            f"SELECT job_id FROM {ENTRY} WHERE job_id IN ({marks(values)})"
            f" ORDER BY job_id{self.skip_locked}",
            values,
        )
        chosen = [row[0] for row in rows]
        if not chosen:
            return 0
        return self.count(
            f"DELETE FROM {ENTRY} WHERE job_id IN ({marks(chosen)}) AND NOT EXISTS (SELECT 1"
            f" FROM {JOB} j WHERE j.id = {ENTRY}.job_id AND j.state = 'queued')",
            chosen,
        )
