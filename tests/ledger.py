"""A ledger outside the database: what handlers did, whatever became of their rows.

Each line is one ``write`` to a descriptor opened for appending, so that lines of several
processes never mix, and a line that was written stays written when its process is killed.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

VARIABLE = "DDJ_LEDGER"


@dataclass(frozen=True, slots=True)
class Line:
    """One event of one execution. ``at`` is in nanoseconds of the host's monotonic clock."""

    event: str
    job: UUID
    claim: UUID
    pid: int
    at: int
    note: Any = None


def write(event: str, job: UUID, claim: UUID, note: Any = None) -> None:
    """Append a line to the ledger that the environment names; without one do nothing."""
    path = os.environ.get(VARIABLE)
    if path:
        line = [event, str(job), str(claim), os.getpid(), time.monotonic_ns(), note]
        os.write(_descriptor(path), json.dumps(line).encode() + b"\n")


def read(path: Path) -> list[Line]:
    """Return the lines so far, in the order in which they were written."""
    if not path.exists():
        return []
    # The last line may be under way.
    whole = path.read_bytes().rpartition(b"\n")[0]
    return [_line(text) for text in whole.splitlines()]


def of(lines: Iterable[Line], *events: str) -> list[Line]:
    """Return the lines of these events."""
    return [line for line in lines if line.event in events]


def most_at_once(lines: Iterable[Line], owners: dict[UUID, str]) -> tuple[int, dict[str, int]]:
    """Return how many ran at once at most, of all and of each owner (a sweep over the times).

    An execution runs from its start line to its end line. What ends and what starts in the same
    nanosecond does not overlap. One without an end line (it was killed) counts for no time at
    all, since nobody knows when it ended.
    """
    ends = {line.claim for line in of(lines, "end")}
    steps = [
        (line.at, 1 if line.event == "start" else -1, owners[line.job])
        for line in of(lines, "start", "end")
        if line.claim in ends
    ]
    now: dict[str, int] = {}
    most: dict[str, int] = {}
    all_now = all_most = 0
    for _, step, owner in sorted(steps):
        all_now += step
        all_most = max(all_most, all_now)
        now[owner] = now.get(owner, 0) + step
        most[owner] = max(most.get(owner, 0), now[owner])
    return all_most, most


@functools.cache
def _descriptor(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def _line(text: bytes) -> Line:
    event, job, claim, pid, at, note = json.loads(text)
    return Line(event, UUID(job), UUID(claim), pid, at, note)
