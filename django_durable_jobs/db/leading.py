"""The statements of leadership: a lease with an epoch, on a row of its own."""

from __future__ import annotations

import uuid
from typing import NamedTuple

from ..fields import time_from_database
from .session import Session, as_uuid

LEADER = "django_durable_jobs_leader"


class Lead(NamedTuple):
    """Who leads (None: nobody), under which epoch, and for how many seconds from now."""

    worker: uuid.UUID | None
    epoch: int
    seconds: float


class LeadStatements(Session):
    """Look who leads, take over, stay, give up; and hold the row for what a leader writes."""

    insert_once = " ON CONFLICT DO NOTHING"
    share = ""  # behind a SELECT; SQLite has locked the whole file

    def leader(self, namespace: str) -> Lead | None:
        """Return who leads; None where nobody ever has."""
        rows = self.execute(
            f"SELECT worker, epoch, expires_at, {self.now} FROM {LEADER} WHERE namespace = %s",
            [namespace],
        )
        if not rows:
            return None
        worker, epoch, ends, now = rows[0]
        end, moment = time_from_database(ends), time_from_database(now)
        assert moment is not None
        seconds = 0.0 if end is None else (end - moment).total_seconds()
        return Lead(None if worker is None else as_uuid(worker), epoch, seconds)

    def take_lead(self, namespace: str, worker: uuid.UUID, *, lease: float) -> int | None:
        """Lead from now on if nobody does; return the new epoch, None where somebody leads.

        Waits for what the last leader may have begun to write.
        """
        self.execute(
            f"INSERT INTO {LEADER} (namespace, epoch) VALUES (%s, 0){self.insert_once}",
            [namespace],
        )
        taken = self.count(
            f"UPDATE {LEADER} SET epoch = epoch + 1, worker = %s, acquired_at = {self.now},"
            f" expires_at = {self.clock.sql(self.connection, plus=lease)}"
            f" WHERE namespace = %s AND (worker IS NULL OR expires_at <= {self.now})",
            [self.key(worker), namespace],
        )
        if not taken:
            return None
        rows = self.execute(f"SELECT epoch FROM {LEADER} WHERE namespace = %s", [namespace])
        return int(rows[0][0])

    def keep_lead(self, namespace: str, epoch: int, *, lease: float) -> bool:
        """Lead for another lease; False where somebody else has taken over."""
        return bool(
            self.count(
                f"UPDATE {LEADER} SET expires_at = {self.clock.sql(self.connection, plus=lease)}"
                " WHERE namespace = %s AND epoch = %s AND worker IS NOT NULL",
                [namespace, epoch],
            )
        )

    def give_up_lead(self, namespace: str, epoch: int) -> bool:
        """Lead no longer; False where somebody else has taken over."""
        return bool(
            self.count(
                f"UPDATE {LEADER} SET worker = NULL, expires_at = NULL"
                " WHERE namespace = %s AND epoch = %s AND worker IS NOT NULL",
                [namespace, epoch],
            )
        )

    def leads(self, namespace: str, epoch: int) -> bool:
        """Tell whether this epoch still leads; it does until the transaction around this ends."""
        rows = self.execute(
            f"SELECT 1 FROM {LEADER} WHERE namespace = %s AND epoch = %s"
            f" AND worker IS NOT NULL{self.share}",
            [namespace, epoch],
        )
        return bool(rows)
