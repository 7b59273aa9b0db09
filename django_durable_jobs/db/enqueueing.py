"""The statements that put new jobs in."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from ..fields import time_from_database
from .session import ENTRY, JOB, as_uuid, marks
from .settling import SettleStatements


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job's row before it is one. JSON is text; ``run_at`` None is the database's now."""

    id: uuid.UUID
    namespace: str
    queue: str
    type: str
    idempotency_key: str
    key_hash: str
    key_scope: str
    owner_id: str
    project_id: str
    target: str
    target_kind: str
    target_id: str
    payload: str
    meta: str
    fingerprint: str
    priority: int
    run_at: datetime | None


class Inserted(NamedTuple):
    """When a job that was inserted is to run, and when it was made, by the database's clock."""

    run_at: datetime
    created_at: datetime


# In the order of NewJob's fields, run_at last.
COLUMNS = tuple(NewJob.__dataclass_fields__)
NAMES = ", ".join(COLUMNS)
JSON_COLUMNS = ("target", "payload", "meta")


class EnqueueStatements(SettleStatements):
    """Insert jobs and their queue entries; a key or id that is taken is passed over."""

    rows_per_insert = 500
    in_one_statement = False  # whether an insert is all or nothing without a transaction
    on_conflict = " ON CONFLICT DO NOTHING"

    def insert_jobs(self, jobs: Sequence[NewJob], *, notify: str) -> dict[uuid.UUID, Inserted]:
        """Insert what is new; return its times by id. ``notify`` is the channel to wake, or ""."""
        inserted: dict[uuid.UUID, Inserted] = {}
        for start in range(0, len(jobs), self.rows_per_insert):
            new = self.insert_batch(jobs[start : start + self.rows_per_insert])
            if new:
                self.add_entries([*new])
            inserted |= new
        return inserted

    def insert_batch(self, jobs: Sequence[NewJob]) -> dict[uuid.UUID, Inserted]:
        """Insert some rows from one JSON parameter: SQLite may bind no more than 999 values."""
        columns = ", ".join(f"json_extract(value, '$[{n}]')" for n in range(len(COLUMNS) - 1))
        run_at = f"COALESCE(json_extract(value, '$[{len(COLUMNS) - 1}]'), {self.now})"
        rows = self.execute(
            f"INSERT INTO {JOB} ({NAMES}, claimable_at, created_at, updated_at, state, held_reason,"
            f" attempts) SELECT {columns}, {run_at}, {run_at}, {self.now}, {self.now}, 'queued',"
            f" '', 0 FROM json_each(%s) WHERE TRUE{self.on_conflict}"
            " RETURNING id, run_at, created_at",
            [json.dumps([self.values(job) for job in jobs])],
        )
        return {as_uuid(row[0]): self.inserted(row) for row in rows}

    def values(self, job: NewJob) -> list[Any]:
        """Return the row's values in the order of ``COLUMNS``, as this database takes them."""
        values = [getattr(job, name) for name in COLUMNS]
        values[0] = self.key(job.id)
        values[-1] = None if job.run_at is None else self.time(job.run_at)
        return values

    @staticmethod
    def inserted(row: tuple[Any, ...]) -> Inserted:
        run_at, created_at = time_from_database(row[1]), time_from_database(row[2])
        assert run_at is not None
        assert created_at is not None
        return Inserted(run_at, created_at)


class ValuesInsert(EnqueueStatements):
    """Insert by VALUES, and ask afterwards what is there: for MySQL, which returns nothing."""

    def insert_batch(self, jobs: Sequence[NewJob]) -> dict[uuid.UUID, Inserted]:
        row = (
            f"({marks(COLUMNS[:-1])}, COALESCE(%s, {self.now}), COALESCE(%s, {self.now}),"
            f" {self.now}, {self.now}, 'queued', '', 0)"
        )
        params = [value for job in jobs for value in (*self.values(job), self.values(job)[-1])]
        # INSERT IGNORE would pass over truncations too.
        self.execute(
            f"INSERT INTO {JOB} ({NAMES}, claimable_at, created_at, updated_at, state, held_reason,"
            f" attempts) VALUES {', '.join([row] * len(jobs))} ON DUPLICATE KEY UPDATE id = id",
            params,
        )
        # Exactly what is queued without an entry is ours: an id that somebody else inserted, even
        # a moment ago, was committed together with its entry, or cannot be seen from here.
        ids = self.keys(job.id for job in jobs)
        rows = self.execute(
            f"SELECT id, run_at, created_at FROM {JOB} j WHERE id IN ({marks(ids)})"
            f" AND state = 'queued' AND NOT EXISTS (SELECT 1 FROM {ENTRY} WHERE job_id = j.id)",
            ids,
        )
        return {as_uuid(row[0]): self.inserted(row) for row in rows}
