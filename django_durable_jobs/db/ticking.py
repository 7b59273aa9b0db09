"""The statements of ticks: won by whoever inserts the row, many at a time."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from .session import Session, as_uuid, marks

TICK = "django_durable_jobs_tickclaim"

# SQLite may bind no more than 999 values to a statement.
_ROWS = 100


class NewTick(NamedTuple):
    """A tick to be claimed, with the id of the job that it will have, None for none."""

    name: str
    scheduled_at: datetime
    job: uuid.UUID | None
    outcome: str
    reason: str = ""


class TickStatements(Session):
    """Claim ticks."""

    insert_once = " ON CONFLICT DO NOTHING"

    def claim_ticks(
        self, namespace: str, worker: uuid.UUID | None, ticks: Sequence[NewTick]
    ) -> set[uuid.UUID]:
        """Insert the ticks that nobody has claimed; return the jobs of those that were won."""
        won: set[uuid.UUID] = set()
        row = f"(%s, %s, %s, {self.now}, %s, %s, %s, %s, %s)"
        claimed_by = None if worker is None else self.key(worker)
        for start in range(0, len(ticks), _ROWS):
            part = ticks[start : start + _ROWS]
            params = [
                value
                for tick in part
                for value in (
                    *(namespace, tick.name, self.time(tick.scheduled_at), claimed_by),
                    *(None if tick.job is None else self.key(tick.job), tick.outcome, tick.reason),
                    tick.job is not None,
                )
            ]
            self.execute(
                f"INSERT INTO {TICK} (namespace, name, scheduled_at, claimed_at, claimed_by,"
                f" job_id, outcome, reason, open) VALUES {', '.join([row] * len(part))}"
                f"{self.insert_once}",
                params,
            )
            if jobs := self.keys(tick.job for tick in part if tick.job is not None):
                rows = self.execute(
                    f"SELECT job_id FROM {TICK} WHERE job_id IN ({marks(jobs)})", jobs
                )
                won |= {as_uuid(row[0]) for row in rows}
        return won
