"""What goes in and out of the claim and settle statements."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Survey:
    """What a claim knows before it chooses: how many rows became due, who holds how much."""

    promoted: int
    active: dict[str, int]
    queues: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Taking:
    """A candidate that the claim takes: under which claim id, and whether it starts at once."""

    job_id: uuid.UUID
    owner_id: str
    claim_id: uuid.UUID
    starts: bool
    requeue_on_interrupt: bool


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
