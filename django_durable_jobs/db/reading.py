"""Reading rows whole, without what the ORM does for a query: it costs more than the query."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

from ..fields import time_from_database
from .claiming import ClaimStatements
from .session import JOB, as_uuid, marks

# How a column is read: JSON as its text, times in UTC, ids as UUIDs, the rest as it comes.
Kind: TypeAlias = Literal["json", "time", "uuid", ""]


class ReadStatements(ClaimStatements):
    """Read what a claim took."""

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
