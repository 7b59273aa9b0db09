"""Reading rows whole, without what the ORM does for a query: it costs more than the query."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

from ..fields import time_from_database
from .claiming import ClaimStatements
from .rows import Oldest, Serves
from .session import ENTRY, JOB, as_uuid, marks

# How a column is read: JSON as its text, times in UTC, ids as UUIDs, the rest as it comes.
Kind: TypeAlias = Literal["json", "time", "uuid", ""]


class ReadStatements(ClaimStatements):
    """Read what a claim took, and what waits to be taken."""

    text = "TEXT"  # what JSON is cast to

    def read_jobs(
        self, ids: Sequence[uuid.UUID], columns: Sequence[tuple[str, Kind]]
    ) -> Iterator[list[Any]]:
        """Yield the values of these columns for each of the jobs that is there, in any order."""
        ways = {"json": lambda name: f"CAST({name} AS {self.text})", "time": self.utc}
        chosen = ", ".join(ways.get(kind, str)(name) for name, kind in columns)
        times = [n for n, (_, kind) in enumerate(columns) if kind == "time"]
        uuids = [n for n, (_, kind) in enumerate(columns) if kind == "uuid"]
        for keys in self.batches(self.keys(ids)):
            rows = self.execute(f"SELECT {chosen} FROM {JOB} WHERE id IN ({marks(keys)})", keys)
            for row in rows:
                values = list(row)
                for n in times:
                    values[n] = time_from_database(values[n])
                for n in uuids:
                    values[n] = None if values[n] is None else as_uuid(values[n])
                yield values

    def oldest_due(self, namespace: str, served: Iterable[Serves]) -> Oldest | None:
        """Return the entry that has been due for longest among what one of these would claim."""
        ways, params = [], []
        for types, queues, excluded in served:
            conditions = [f"type IN ({marks(types)})"] if types else ["1 = 0"]
            if queues is not None:
                conditions.append(f"queue IN ({marks(queues)})" if queues else "1 = 0")
            if excluded:
                conditions.append(f"queue NOT IN ({marks(excluded)})")
            ways.append(f"({' AND '.join(conditions)})")
            params += [*types, *(queues or ()), *excluded]
        if not ways:
            return None
        found = []
        # Each along its index: those marked due, and those that no claim has marked yet.
        for due in ("due = TRUE", f"due = FALSE AND claimable_at <= {self.now}"):
            found += self.execute(
                f"SELECT job_id, type, queue, {self.utc('claimable_at')}"
                f" FROM {ENTRY}{self.by_wait} WHERE namespace = %s AND {due}"
                f" AND ({' OR '.join(ways)}) ORDER BY {ENTRY}.claimable_at LIMIT 1",
                [namespace, *params],
            )
        entries = []
        for job_id, type, queue, value in found:
            since = time_from_database(value)
            assert since is not None
            entries.append(Oldest(as_uuid(job_id), type, queue, since))
        return min(entries, key=lambda entry: entry.due_since, default=None)
