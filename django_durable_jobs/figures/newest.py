"""What the newest executions tell: how many ended how, how long they took, and where they ran."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connections
from django.db.models import Case, F, When
from django.db.models.functions import Coalesce

from ..db import current_clock
from ..fields import UTCDateTimeField
from ..models import Execution, Worker
from ..states import ACTIVE, ENDED_AT, ExecutionState
from .spans import Span, Spread

NEWEST = 5_000  # as many executions are looked at, of all namespaces together
MOST_ACTIVE = 500  # of each state
MOST_LANES = 12
OUTCOMES = (ExecutionState.COMPLETED, ExecutionState.FAILED, ExecutionState.INTERRUPTED)


@dataclass(frozen=True, slots=True)
class Bucket:
    """One stretch of the span. ``ended`` counts executions by outcome; those that were given back
    before they began are in none. ``waiting`` is of those that began in it, ``running`` of those
    that ended in it. Not ``covered`` where some of its executions were not looked at.
    """

    start: datetime
    ended: dict[str, int]
    waiting: Spread | None
    running: Spread | None
    covered: bool


class Run(NamedTuple):
    """One execution in a worker's lane; ``end`` is None while it runs."""

    state: str
    start: datetime
    end: datetime | None


@dataclass(frozen=True, slots=True)
class Lane:
    """What one worker ran, by start. ``name`` is "" where its row is gone."""

    worker: UUID
    name: str
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recent:
    """What the newest executions tell of a span.

    ``covered_from`` is the time from which on all of them were looked at: None where that is so
    for the whole span. ``lanes`` are of the workers that began something last, ``lanes_left_out``
    counts the others.
    """

    span: Span
    start: datetime
    now: datetime
    covered_from: datetime | None
    buckets: tuple[Bucket, ...]
    waiting: Spread | None
    running: Spread | None
    lanes: tuple[Lane, ...]
    lanes_left_out: int

    @property
    def ended(self) -> Counter[str]:
        """Count what ended in the span, by outcome."""
        total: Counter[str] = Counter()
        for bucket in self.buckets:
            total.update(bucket.ended)
        return total


class _Seen(NamedTuple):
    """An execution as it is read. ``claimable_at`` is known of a job's latest attempt only."""

    state: str
    worker: UUID
    claimed_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    claimable_at: datetime | None


@dataclass(slots=True)
class _Pile:
    """What falls into one bucket, until it is summed up."""

    start: datetime
    covered: bool
    ended: Counter[str] = field(default_factory=Counter)
    waiting: list[float] = field(default_factory=list)
    running: list[float] = field(default_factory=list)


def recent(namespace: str, span: Span, *, using: str) -> Recent:
    """Sum up the newest executions of a namespace, in six queries.

    Looks at no more than the NEWEST executions of the database, and at MOST_ACTIVE that have not
    ended in each state. Times are by the database's clock.
    """
    now = current_clock().now(connections[using])
    start = span.start(now)
    bound = newest_bound(using)
    covered_from = _covered_from(bound, start, using)
    seen = [*_ended(namespace, bound, start, using), *active(namespace, using)]
    piles = _piled(seen, span, start, covered_from)
    lanes, left_out = _lanes(seen, start, using)
    return Recent(
        span=span,
        start=start,
        now=now,
        covered_from=covered_from,
        buckets=tuple(map(_summed, piles)),
        waiting=Spread.of([value for pile in piles for value in pile.waiting]),
        running=Spread.of([value for pile in piles for value in pile.running]),
        lanes=lanes,
        lanes_left_out=left_out,
    )


# What is read


def newest_bound(using: str) -> int:
    """Return the number that only the NEWEST executions are above.

    A bound instead of LIMIT: every filter beside it is looked at in those rows only, whatever
    the statistics say.
    """
    newest = Execution.objects.using(using).order_by("-pk").values_list("pk", flat=True).first()
    return (newest or 0) - NEWEST


def _covered_from(bound: int, start: datetime, using: str) -> datetime | None:
    """Return when the last execution was claimed that is not looked at, if the span has it."""
    older = Execution.objects.using(using).filter(pk__lte=bound).order_by("-pk")
    claimed_at = older.values_list("claimed_at", flat=True).first()
    return claimed_at if claimed_at is not None and claimed_at >= start else None


def _ended(namespace: str, bound: int, start: datetime, using: str) -> list[_Seen]:
    rows = Execution.objects.using(using).filter(
        pk__gt=bound, namespace=namespace, updated_at__gte=start
    )
    found = map(_Seen._make, rows.values_list(*_columns()))
    return [each for each in found if each.state not in ACTIVE]


def active(namespace: str, using: str) -> list[_Seen]:
    """Return the executions that have not ended, along the index that finds them by state."""
    rows = Execution.objects.using(using).filter(namespace=namespace)
    return [
        _Seen._make(row)
        for state in ACTIVE
        for row in rows.filter(state=state.value).values_list(*_columns())[:MOST_ACTIVE]
    ]


def _columns() -> tuple[Any, ...]:
    ended_at = Coalesce(*ENDED_AT.values(), output_field=UTCDateTimeField())
    # A job that was put back since has another time there, and another claim.
    claimable_at = Case(When(claim_id=F("job__claim_id"), then=F("job__claimable_at")))
    return "state", "worker_id", "claimed_at", "started_at", ended_at, claimable_at


def _piled(
    seen: Iterable[_Seen], span: Span, start: datetime, covered_from: datetime | None
) -> list[_Pile]:
    begins = [start + timedelta(seconds=span.bucket * n) for n in range(span.count)]
    piles = [_Pile(each, covered_from is None or each >= covered_from) for each in begins]
    for each in seen:
        began, ended = (span.index(start, at) for at in (each.started_at, each.ended_at))
        if began is not None and each.claimable_at and piles[began].covered:
            piles[began].waiting.append(_between(each.claimable_at, each.started_at))
        if ended is not None and piles[ended].covered and each.state in OUTCOMES:
            piles[ended].ended[each.state] += 1
            if each.started_at:
                piles[ended].running.append(_between(each.started_at, each.ended_at))
    return piles


def _between(start: datetime, end: datetime | None) -> float:
    """Return the seconds between two times, none where clocks that differ have them reversed."""
    return max((end - start).total_seconds(), 0.0) if end else 0.0


def _summed(pile: _Pile) -> Bucket:
    return Bucket(
        pile.start,
        {outcome.value: pile.ended[outcome.value] for outcome in OUTCOMES},
        Spread.of(pile.waiting),
        Spread.of(pile.running),
        pile.covered,
    )


def _lanes(seen: Iterable[_Seen], start: datetime, using: str) -> tuple[tuple[Lane, ...], int]:
    """Sort the executions that reach into the span by worker, and name the workers."""
    by_worker: dict[UUID, list[Run]] = defaultdict(list)
    for each in seen:
        if each.ended_at is None or each.ended_at >= start:
            begin = each.started_at or each.claimed_at
            by_worker[each.worker].append(Run(each.state, begin, each.ended_at))
    latest = sorted(by_worker, key=lambda worker: max(run.start for run in by_worker[worker]))
    chosen = latest[: -MOST_LANES - 1 : -1]
    rows = Worker.objects.using(using).filter(pk__in=chosen)
    names = {row.pk: str(row) for row in rows.only("host", "pid")}
    lanes = [
        Lane(worker, names.get(worker, ""), tuple(sorted(by_worker[worker], key=_begin)))
        for worker in chosen
    ]
    return tuple(sorted(lanes, key=lambda lane: (lane.name, lane.worker))), len(latest) - len(lanes)


def _begin(run: Run) -> datetime:
    return run.start
