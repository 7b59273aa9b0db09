"""The statements that find and delete jobs which ended long ago."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ..states import SETTLED
from .session import EXECUTION, JOB, Session, as_uuid, in_states, marks

SCHEDULE = "django_durable_jobs_schedule"
TICK = "django_durable_jobs_tickclaim"


class PruneStatements(Session):
    """Look along the jobs' primary key, a stretch at a time; delete what ended long ago."""

    def ended_before(
        self,
        namespace: str,
        age: float,
        *,
        after: uuid.UUID,
        below: uuid.UUID | None,
        limit: int,
        stretch: int,
    ) -> tuple[list[uuid.UUID], uuid.UUID | None]:
        """Return ids of jobs that ended more than ``age`` seconds ago, ``limit`` of them at most,
        and behind which id to go on (None: there is nothing more).

        Looks at the next ``stretch`` rows behind ``after``, whatever they are.
        """
        span = "id > %s" if below is None else "id > %s AND id < %s"
        bounds = self.keys([after] if below is None else [after, below])
        rows = self.execute(
            "SELECT looked.id FROM (SELECT id, namespace, state, finished_at"
            f" FROM {JOB} WHERE {span} ORDER BY id LIMIT {stretch}) looked"
            f" WHERE looked.namespace = %s AND {self._ended('looked', age)}"
            f" ORDER BY looked.id LIMIT {limit}",
            [*bounds, namespace],
        )
        if len(rows) < limit:
            last = self.execute(
                f"SELECT id FROM {JOB} WHERE {span} ORDER BY id LIMIT 1 OFFSET {stretch - 1}",
                bounds,
            )
        else:
            last = rows[-1:]
        return [as_uuid(row[0]) for row in rows], as_uuid(last[0][0]) if last else None

    def delete_ended(self, ids: Sequence[uuid.UUID], age: float) -> int:
        """Delete those of the jobs that ended more than ``age`` seconds ago, with their executions.

        Looked at again under locks, and left alone where somebody holds a lock on the job or on
        one of its executions. A schedule's last job is left as well.
        """
        wanted = self.keys(ids)
        last = self._select(SCHEDULE, "last_job_id", wanted)
        wanted = [key for key in wanted if key not in last]
        if not wanted:
            return 0
        # Executions before jobs, as everybody locks them.
        locked = self._select(EXECUTION, "job_id", wanted, f" ORDER BY job_id{self.skip_locked}")
        jobs = self._select(
            JOB, "id", wanted, f" AND {self._ended(JOB, age)} ORDER BY id{self.skip_locked}"
        )
        # Nobody adds an execution to a settled job whose row is locked: these are all there are.
        everything = self._select(EXECUTION, "job_id", list(jobs)) if jobs else locked
        chosen = [key for key in jobs if locked[key] == everything[key]]
        if not chosen:
            return 0
        these = f"IN ({marks(chosen)})"
        self.execute(f"DELETE FROM {EXECUTION} WHERE job_id {these}", chosen)
        self.execute(f"UPDATE {TICK} SET job_id = NULL WHERE job_id {these}", chosen)
        return self.count(f"DELETE FROM {JOB} WHERE id {these}", chosen)

    def _ended(self, table: str, age: float) -> str:
        cutoff = self.clock.sql(self.connection, plus=-age)
        return f"{table}.state IN {in_states(SETTLED)} AND {table}.finished_at < {cutoff}"

    def _select(self, table: str, column: str, keys: Sequence[Any], more: str = "") -> Counter[Any]:
        """Return which of the keys stand in the column, and how often each."""
        sql = f"SELECT {column} FROM {table} WHERE {column} IN ({marks(keys)}){more}"
        return Counter(self._as_keys(row[0] for row in self.execute(sql, keys)))

    def _as_keys(self, values: Iterable[Any]) -> list[Any]:
        return self.keys(as_uuid(value) for value in values)
