"""What goes in and out of the claim and settle statements."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class Candidate:
    """A due queue entry, as the claim sees it. ``order`` sorts it among its owner's."""

    job_id: uuid.UUID
    owner_id: str
    queue: str
    type: str
    attempts: int
    max_attempts: int | None
    order: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which due jobs a second look is for: of these ``types``, and these ``ids`` of any type."""

    types: tuple[str, ...]
    ids: tuple[uuid.UUID, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What a claim is to look at.

    ``queues`` None means every queue of the namespace but ``excluded``. Of each queue the next
    ``limit`` owners in turn behind ``after`` are seen, without those who hold ``cap`` jobs and are
    not ``uncapped``; of each owner as many due jobs as ``slots`` may need. ``skip`` leaves jobs
    out. With ``lock``, a database that can lock what it finds and pass over what others hold
    does so.
    """

    namespace: str
    queues: tuple[str, ...] | None
    excluded: frozenset[str]
    after: str
    cap: int | None
    uncapped: frozenset[str]
    slots: int
    limit: int
    skip: tuple[uuid.UUID, ...] = ()
    lock: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What there was: whether waiting entries have become due that are not marked so yet, who
    holds how much, the owners of each queue in turn, and the first due jobs of each.
    """

    ripe: bool
    active: dict[str, int]
    owners: dict[str, list[str]]
    heads: list[Candidate]


def enough_each(slots: int, owners: dict[str, list[str]]) -> int:
    """Return how many jobs of each owner fill the slots if every one of them has at least one."""
    return max(1, slots + 1 - len({name for names in owners.values() for name in names}))


@dataclass(frozen=True, slots=True)
class Taking:
    """A candidate that the claim takes: under which claim id, and whether it starts at once."""

    job_id: uuid.UUID
    owner_id: str
    claim_id: uuid.UUID
    starts: bool
    requeue_on_interrupt: bool


class Serves(NamedTuple):
    """What a worker claims: these types, from these queues (None: every one) but the excluded."""

    types: tuple[str, ...]
    queues: tuple[str, ...] | None
    excluded: tuple[str, ...]


class Oldest(NamedTuple):
    """The queued job that has been due for longest, and since when."""

    job_id: uuid.UUID
    type: str
    queue: str
    due_since: datetime


class Held(NamedTuple):
    """An execution that somebody holds; the ids first, so that a list sorts by them."""

    job_id: uuid.UUID
    claim_id: uuid.UUID
    state: str
    requeue_on_interrupt: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an execution ended: the edge that its job takes, and what is kept of it.

    ``edge`` is one of ``states.EDGES``' settlements (complete, fail, retry, interrupt,
    retry_interrupted, release); ``result`` is JSON text; ``delay`` seconds pass before a job that
    goes back to the queue is claimable, ``held_reason`` says why. ``unstarted`` holds only for a
    claim whose handler was not called: one that has started meanwhile is left alone.
    """

    job_id: uuid.UUID
    claim_id: uuid.UUID
    edge: str
    result: str | None = None
    error: str = ""
    error_code: str = ""
    traceback: str = ""
    reason: str = ""
    delay: float = 0.0
    held_reason: str = ""
    unstarted: bool = False
