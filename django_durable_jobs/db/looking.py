"""The statements that look for due jobs: whose turn it is, and what comes first."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Any

from ..fields import time_from_database
from ..states import ACTIVE
from .rows import Candidate, Seen, Sight, Wanted, enough_each
from .session import ENTRY, EXECUTION, Session, as_uuid, marks

_HEAD = "job_id, owner_id, type, attempts, max_attempts, rank, run_at, created_at"
ORDER = "rank, run_at, created_at, job_id"

# How many owners' next jobs one statement asks for (SQLite takes at most 500 selects in a union).
_HEADS_AT_ONCE = 50


class LookStatements(Session):
    """Find due jobs; changes nothing."""

    # Whether ``heads`` locks what it returns.
    heads_lock = False

    def reading(self) -> AbstractContextManager[object]:
        """Hold together the statements of a look that locks nothing."""
        return nullcontext()

    def look(self, sight: Sight) -> Seen:
        """Return whose turn it is and what they have, by one look at everything."""
        active = self.active_by_owner(sight.namespace)
        full = [
            owner
            for owner, count in active.items()
            if sight.cap is not None and count >= sight.cap and owner not in sight.uncapped
        ]
        queues = self.queues(sight.namespace) if sight.queues is None else sight.queues
        owners = {
            queue: self.owners_due(
                sight.namespace, queue, after=sight.after, full=full, limit=sight.limit
            )
            for queue in queues
            if queue not in sight.excluded
        }
        each = enough_each(sight.slots, owners)
        heads = [
            head
            for queue, names in owners.items()
            for head in self.heads(
                sight.namespace, queue, names, each=each, skip=sight.skip, lock=sight.lock
            )
        ]
        ripe = self.anything_ripe(sight.namespace)
        return Seen(ripe=ripe, active=active, owners=owners, heads=heads)

    def anything_ripe(self, namespace: str) -> bool:
        """Tell whether a waiting entry has become claimable that is not marked due yet."""
        return bool(
            self.execute(
                f"SELECT 1 FROM {ENTRY}{self.by_wait} WHERE namespace = %s AND due = FALSE"
                f" AND claimable_at <= {self.now} LIMIT 1",
                [namespace],
            )
        )

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
        """Count the executions of each owner that have not ended.

        One state at a time: where nearly all have ended, SQLite takes a list of states for a
        reason to read everything.
        """
        one = (
            f"SELECT owner_id FROM {EXECUTION}{self.by_active} WHERE namespace = %s"
            " AND state = '{}'"
        )
        held = " UNION ALL ".join(one.format(state.value) for state in ACTIVE)
        return dict(
            self.execute(
                f"SELECT owner_id, COUNT(*) FROM ({held}) held GROUP BY owner_id",
                [namespace] * len(ACTIVE),
            )
        )

    def queues(self, namespace: str) -> list[str]:
        """Name the queues that have entries, by hopping from one name to the next."""
        found: list[str] = []
        bound, params = "", [namespace]
        while rows := self.execute(
            f"SELECT queue FROM {ENTRY}{self.by_turn} WHERE namespace = %s{bound}"
            " ORDER BY queue LIMIT 1",
            params,
        ):
            found.append(rows[0][0])
            bound, params = " AND queue > %s", [namespace, found[-1]]
        return found

    def owners_due(
        self, namespace: str, queue: str, *, after: str, full: Sequence[str], limit: int
    ) -> list[str]:
        """Return the next ``limit`` owners with due entries in turn order, without ``full`` ones.

        Walks along the index by small steps: a step reads a few entries, and the next one starts
        behind the last owner seen, so that a long backlog costs no more than a short one.
        """
        owners: list[str] = []
        skipped = set(full)
        for bound, at, stop in ((">", after, None), (">=", "", after)):
            while len(owners) < limit:
                step = 4 * (limit - len(owners))
                rows = self.execute(
                    "SELECT owner_id, COUNT(*) FROM ("
                    f"SELECT owner_id FROM {ENTRY}{self.by_turn} WHERE namespace = %s"
                    f" AND queue = %s AND due = TRUE AND owner_id {bound} %s"
                    f" ORDER BY owner_id LIMIT {step}) step GROUP BY owner_id ORDER BY owner_id",
                    [namespace, queue, at],
                )
                names = [row[0] for row in rows if stop is None or row[0] <= stop]
                owners += [name for name in names if name not in skipped]
                if len(names) < len(rows) or sum(row[1] for row in rows) < step:
                    break
                at, bound = names[-1], ">"
        return owners[:limit]

    def heads(
        self,
        namespace: str,
        queue: str,
        owners: Sequence[str],
        *,
        each: int,
        wanted: Wanted | None = None,
        skip: Sequence[uuid.UUID] = (),
        lock: bool = True,
    ) -> list[Candidate]:
        """Return the first ``each`` due entries of each owner, only ``wanted`` ones where given.

        With ``lock``, a database that can lock what it finds and pass over what others hold does
        so; the others lock by ``lock_candidates`` and look again without what they could not have
        (``skip``).
        """
        chosen, params = self._chosen(wanted, skip)
        one = (
            f"SELECT * FROM (SELECT {_HEAD} FROM {ENTRY}{self.by_turn} WHERE namespace = %s"
            f" AND queue = %s AND due = TRUE AND owner_id = %s{chosen} ORDER BY {ORDER}"
            f" LIMIT {each}) head"
        )
        found: list[Candidate] = []
        for start in range(0, len(owners), _HEADS_AT_ONCE):
            part = owners[start : start + _HEADS_AT_ONCE]
            rows = self.execute(
                " UNION ALL ".join([one] * len(part)),
                [value for owner in part for value in (namespace, queue, owner, *params)],
            )
            found += [self.candidate(queue, row) for row in rows]
        return found

    def _chosen(self, wanted: Wanted | None, skip: Sequence[uuid.UUID]) -> tuple[str, list[Any]]:
        sql, params = "", []
        if wanted is not None:
            # An empty list is no list in SQL: no id and no type is None.
            types: list[Any] = list(wanted.types) or [None]
            ids: list[Any] = self.keys(wanted.ids) or [None]
            sql = f" AND (type IN ({marks(types)}) OR job_id IN ({marks(ids)}))"
            params += [*types, *ids]
        if skip:
            sql += f" AND job_id NOT IN ({marks(skip)})"
            params += self.keys(skip)
        return sql, params

    def candidate(self, queue: str, row: tuple[Any, ...]) -> Candidate:
        job_id = as_uuid(row[0])
        order = (row[5], row[6], row[7], job_id.bytes)
        return Candidate(job_id, row[1], queue, row[2], row[3], row[4], order)
