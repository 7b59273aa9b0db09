"""Where a queued job stands: who holds slots, and what comes before it. Reads a bounded number of
rows in one statement each, however long the queue is.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

from ..states import ACTIVE
from .looking import ORDER
from .session import ENTRY, EXECUTION, Session, as_uuid

# How often a look for owners goes on behind the last one that it saw.
_STEPS = 2


class Holder(NamedTuple):
    """How many executions that have not ended one worker has of one owner."""

    owner_id: str
    worker: uuid.UUID
    held: int


class StandingStatements(Session):
    """Tell why a queued job is not claimed; changes nothing."""

    def holders(self, namespace: str) -> list[Holder]:
        """Count the executions that have not ended, by owner and worker.

        One state at a time, as the claim counts them.
        """
        rows = self.execute(
            "SELECT owner_id, worker_id, COUNT(*) FROM"
            f" ({self._each_active('owner_id, worker_id', '')}) held GROUP BY owner_id, worker_id",
            [namespace] * len(ACTIVE),
        )
        return [Holder(row[0], as_uuid(row[1]), row[2]) for row in rows]

    def held_of(self, namespace: str, owner: str, *, limit: int) -> list[tuple[uuid.UUID, str]]:
        """Return some of the jobs of an owner that are held, and their states."""
        rows = self.execute(
            f"{self._each_active('job_id, state', ' AND owner_id = %s')} LIMIT {limit}",
            [namespace, owner] * len(ACTIVE),
        )
        return [(as_uuid(row[0]), row[1]) for row in rows]

    def _each_active(self, columns: str, chosen: str) -> str:
        one = f"SELECT {columns} FROM {EXECUTION}{self.by_active} WHERE namespace = %s"
        return " UNION ALL ".join(f"{one} AND state = '{state.value}'{chosen}" for state in ACTIVE)

    def before(
        self, job_id: uuid.UUID, namespace: str, queue: str, owner: str, *, limit: int
    ) -> dict[str, int]:
        """Count by type the due jobs that come before this queued one, of its owner in its queue.

        Looks at no more than ``limit`` of them.
        """
        earlier = "1 = 0"
        for column in reversed(ORDER.split(", ")):
            same = f"line.{column} = mine.{column}"
            earlier = f"line.{column} < mine.{column} OR ({same} AND ({earlier}))"
        return dict(
            self.execute(
                f"SELECT line.type, COUNT(*) FROM (SELECT {ORDER}, type FROM {ENTRY}{self.by_turn}"
                " WHERE namespace = %s AND queue = %s AND due = TRUE AND owner_id = %s"
                f" ORDER BY {ORDER} LIMIT {limit}) line, {ENTRY} mine"
                f" WHERE mine.job_id = %s AND ({earlier}) GROUP BY line.type",
                [namespace, queue, owner, self.key(job_id)],
            )
        )

    def owners_before(
        self, namespace: str, queue: str, owner: str, *, turn_after: str, limit: int
    ) -> tuple[list[str], bool]:
        """Return the owners with due jobs in the queue whose turn comes before this one's.

        Returns also whether these are all: it reads ``limit`` entries, and from behind the last
        owner seen as many once more, on either side of the end of the alphabet.
        """
        if owner > turn_after:
            return self._owners(namespace, queue, (">", turn_after), owner, limit)
        behind, all_behind = self._owners(namespace, queue, (">", turn_after), None, limit)
        again, all_again = self._owners(namespace, queue, (">=", ""), owner, limit)
        return behind + again, all_behind and all_again

    def _owners(
        self, namespace: str, queue: str, start: tuple[str, str], end: str | None, limit: int
    ) -> tuple[list[str], bool]:
        found: list[str] = []
        bound, at = start
        ending = "" if end is None else " AND owner_id < %s"
        for _ in range(_STEPS):
            # Its bounds are constants: MySQL makes no range of what one row says of the next.
            rows = self.execute(
                f"SELECT owner_id, COUNT(*) FROM (SELECT owner_id FROM {ENTRY}{self.by_turn}"
                f" WHERE namespace = %s AND queue = %s AND due = TRUE AND owner_id {bound} %s"
                f"{ending} ORDER BY owner_id LIMIT {limit}) step"
                " GROUP BY owner_id ORDER BY owner_id",
                [namespace, queue, at, *([] if end is None else [end])],
            )
            found += [row[0] for row in rows]
            if sum(row[1] for row in rows) < limit:
                return found, True
            bound, at = ">", found[-1]
        return found, False
