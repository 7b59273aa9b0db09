"""What waits, for whom, for what, and what keeps it waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from django.db.models import ExpressionWrapper, F, QuerySet

from ..claims import NEVER
from ..conf import settings
from ..fields import UTCDateTimeField
from ..models import Execution, Job, QueueEntry, Worker
from ..states import ACTIVE, HeldReason
from .newest import MOST_ACTIVE

MOST_WAITING = 10_000
MOST_SOON = 500  # SQLite may bind no more than 999 values
MOST_NAMED = 10
MOST_OWNERS = 20
# As lists: by "due" alone, as Django has it for a flag, SQLite finds nothing in an index.
_DUE: dict[str, Any] = {"due__in": [True]}
_NOT_DUE: dict[str, Any] = {"due__in": [False]}
# Not the column itself: Django would sort by what is read, in UTC, which no index has.
_AT = ExpressionWrapper(F("claimable_at"), output_field=UTCDateTimeField())
# Longer than a worker that is not busy takes to claim what is due.
_WAITS = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class OwnerShare:
    """What one owner has due, and how much of it is being run."""

    owner: str
    due: int
    active: int


@dataclass(frozen=True, slots=True)
class Soon:
    """The next job of a type that becomes due, at ``at``, or is asked about again then (``held``).

    ``count`` are waiting that are held alike, it included.
    """

    job: UUID
    type: str
    at: datetime
    held: str
    count: int


@dataclass(frozen=True, slots=True)
class Reason:
    """Something that keeps due jobs from running: a code, how many jobs, and the names in it.

    no_worker       nobody lives who could run anything
    no_handler      no live worker knows their type (``names``)
    no_queue        no live worker that knows their type serves their queue (``names``)
    not_eligible    their can_run says not now (by type)
    retry           they wait for their retry (by type)
    owner_full      their owners (``names``) run as much as OWNER_CONCURRENCY allows
    namespace_full  the namespace runs as much as GLOBAL_CONCURRENCY allows
    busy            all slots of the live workers are taken
    """

    code: Literal[
        "no_worker", "no_handler", "no_queue", "not_eligible", "retry", "owner_full",
        "namespace_full", "busy",
    ]  # fmt: skip
    count: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What waits. ``due`` counts to MOST_WAITING, ``later`` and each kind of ``held`` to MOST_SOON.

    ``owners`` are those with most due, and those of whom something runs. ``kinds`` counts what is
    due by type and queue; ``held`` by reason and type what became due and was put off; ``soon`` is
    what comes next, by type. ``silent`` counts executions whose lease ran out.
    """

    due: int
    later: int
    oldest: datetime | None
    owners: tuple[OwnerShare, ...]
    owners_left_out: int
    kinds: Counter[tuple[str, str]]
    held: Counter[tuple[str, str]]
    soon: tuple[Soon, ...]
    active: Counter[str]
    silent: int

    @property
    def claimed(self) -> int:
        return self.active["claimed"]

    @property
    def running(self) -> int:
        return self.active["running"]


def backlog(namespace: str, now: datetime, *, using: str) -> Backlog:
    """Read what waits in a namespace as of ``now`` (aware), in nine queries at most.

    Of what is due the MOST_WAITING are looked at that have been so for longest, of what is not
    the MOST_SOON that come first.
    """
    entries = QueueEntry.objects.using(using).filter(namespace=namespace)
    due, oldest = _due(entries, now)
    later = list(
        entries.filter(**_NOT_DUE, claimable_at__gt=now, claimable_at__lt=NEVER)
        .order_by("claimable_at")
        .values_list("job_id", "type", _AT)[:MOST_SOON]
    )
    why = _held(later, using)
    unknown = entries.filter(**_NOT_DUE, claimable_at__gte=NEVER).order_by("claimable_at")
    held = Counter((why[job], type) for job, type, _at in later if job in why)
    held.update(
        (HeldReason.NO_HANDLER.value, type)
        for type in unknown.values_list("type", flat=True)[:MOST_SOON]
    )
    running = list(_active(namespace, using))
    counts = Counter(owner for owner, _type, _queue in due)
    active = Counter(owner for _state, owner, _lease in running)
    owners = _shares(counts, active)
    return Backlog(
        due=len(due),
        later=len(later),
        oldest=oldest,
        owners=tuple(owners),
        owners_left_out=len({*counts, *active}) - len(owners),
        kinds=Counter((type, queue) for _owner, type, queue in due),
        held=held,
        soon=tuple(_soon(later, why)),
        active=Counter(state for state, _owner, _lease in running),
        silent=sum(lease < now for _state, _owner, lease in running),
    )


def reasons(waits: Backlog, workers: Iterable[Worker], now: datetime) -> list[Reason]:
    """Say what keeps due jobs from running. ``workers`` are those that live and take new jobs."""
    return list(_reasons(waits, list(workers), now))


def _reasons(waits: Backlog, workers: list[Worker], now: datetime) -> Iterator[Reason]:
    if not workers:
        if waits.due:
            yield Reason("no_worker", waits.due)
    else:
        yield from _unserved(waits, workers)
    for code in HeldReason.NOT_ELIGIBLE.value, HeldReason.RETRY.value:
        types = Counter({type: n for (why, type), n in waits.held.items() if why == code})
        if types:
            yield Reason(code, types.total(), _most(types))  # type: ignore[arg-type]
    yield from _full(waits, workers, now)


def _unserved(waits: Backlog, workers: list[Worker]) -> Iterator[Reason]:
    """Tell of due jobs that nobody would claim, by what of them nobody has."""
    known = {type for worker in workers for type in worker.types}
    no_handler = Counter(
        {
            type: n
            for (why, type), n in waits.held.items()
            if why == HeldReason.NO_HANDLER and type not in known
        }
    )
    no_queue: Counter[str] = Counter()
    for (type, queue), count in waits.kinds.items():
        if type not in known:
            no_handler[type] += count
        elif not any(type in worker.types and _serves(worker, queue) for worker in workers):
            no_queue[queue] += count
    if no_handler:
        yield Reason("no_handler", no_handler.total(), _most(no_handler))
    if no_queue:
        yield Reason("no_queue", no_queue.total(), _most(no_queue))


def _serves(worker: Worker, queue: str) -> bool:
    named = worker.queues is None or queue in worker.queues
    return named and queue not in worker.excluded_queues


def _full(waits: Backlog, workers: list[Worker], now: datetime) -> Iterator[Reason]:
    """Tell of caps that are reached, where what is due has waited for longer than a moment."""
    if waits.oldest is None or now - waits.oldest < _WAITS:
        return
    cap, total = settings.OWNER_CONCURRENCY, settings.GLOBAL_CONCURRENCY
    full = Counter(
        {
            share.owner: share.due
            for share in waits.owners
            if share.due and share.active >= cap and share.owner not in settings.UNCAPPED_OWNERS
        }
    )
    active = waits.active.total()
    if full:
        yield Reason("owner_full", full.total(), _most(full))
    if total is not None and active >= total:
        yield Reason("namespace_full", waits.due)
    elif workers and sum(worker.concurrency for worker in workers) <= active:
        yield Reason("busy", waits.due)


def _most(counts: Counter[str]) -> tuple[str, ...]:
    return tuple(name for name, _count in counts.most_common(MOST_NAMED))


# What is read


def _due(entries: QuerySet[QueueEntry], now: datetime) -> tuple[list[Any], datetime | None]:
    """Return (owner, type, queue) of what may be claimed now, and since when the oldest may.

    Each along its index: those marked due, and those that no claim has marked yet.
    """
    found: list[Any] = []
    oldest: list[datetime] = []
    for each in entries.filter(**_DUE), entries.filter(**_NOT_DUE, claimable_at__lte=now):
        ordered = each.order_by("claimable_at")
        found += ordered.values_list("owner_id", "type", "queue")[:MOST_WAITING]
        oldest += ordered.values_list(_AT, flat=True)[:1]
    return found[:MOST_WAITING], min(oldest, default=None)


def _held(later: Iterable[tuple[UUID, str, datetime]], using: str) -> dict[UUID, str]:
    """Return why some of these were put off. No join: what is sorted by an index has to stay so."""
    ids = [job for job, _type, _at in later]
    held = Job.objects.using(using).filter(pk__in=ids).exclude(held_reason="")
    return dict(held.values_list("pk", "held_reason"))


def _soon(later: Iterable[tuple[UUID, str, datetime]], reasons: Mapping[UUID, str]) -> list[Soon]:
    """Return the first job of each type that is held alike, and how many there are of it."""
    found: dict[tuple[str, str], Soon] = {}
    for job, type, at in later:
        alike = (type, reasons.get(job, ""))
        first = found.setdefault(alike, Soon(job, type, at, alike[1], 0))
        found[alike] = replace(first, count=first.count + 1)
    return list(found.values())[:MOST_NAMED]


def _active(namespace: str, using: str) -> Iterator[tuple[str, str, datetime]]:
    rows = Execution.objects.using(using).filter(namespace=namespace)
    for state in ACTIVE:
        one = rows.filter(state=state.value).values_list("state", "owner_id", "lease_expires_at")
        yield from one[:MOST_ACTIVE]


def _shares(counts: Counter[str], active: Counter[str]) -> list[OwnerShare]:
    """Return those who have most due, and all of whom something runs: who has most due first."""
    chosen = {*active, *(name for name, _count in counts.most_common(MOST_OWNERS))}
    names = sorted(chosen, key=lambda name: (-counts[name], -active[name], name))
    return [OwnerShare(name, counts[name], active[name]) for name in names]
