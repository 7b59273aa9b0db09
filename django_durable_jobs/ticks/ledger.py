"""The ledger of ticks that did not fire, and how long it is kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from asgiref.sync import sync_to_async
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Max, QuerySet

from ..audit import audit
from ..catchup import Course, Gap
from ..conf import Settings, settings
from ..db import BIGINT, TIME, current_clock, retrying, statements_for, transaction
from ..jobspec import namespace_name
from ..models import Schedule, TickClaim, TickGap
from ..namespaces import database

# How many rows one transaction deletes.
BATCH = 500


def note_gaps(
    connection: BaseDatabaseWrapper, namespace: str, missed: Sequence[tuple[Schedule, Course, Gap]]
) -> None:
    """Write down stretches of missed ticks: one that goes on where the last ended makes it longer.

    Each with its schedule, as it was when they were missed, and its course; in the caller's
    transaction.
    """
    gaps = TickGap.objects.using(connection.alias).filter(namespace=namespace)
    names = {schedule.name for schedule, _, _ in missed}
    newest = gaps.filter(name__in=names).values("name").annotate(newest=Max("pk"))
    last = gaps.in_bulk([row["newest"] for row in newest])
    last_of = {gap.name: gap for gap in last.values()}
    longer: dict[int, tuple[int, object, int]] = {}
    new = []
    for schedule, course, gap in missed:
        name = schedule.name
        before = last_of.get(name)
        # What was missed before an edit are ticks of another rule.
        edited = before is not None and before.last <= schedule.declared_at
        if before is not None and not edited and _goes_on(before, course, gap):
            before.last, before.count = gap.last, before.count + gap.count
            if before.pk:
                longer[before.pk] = (before.pk, before.last, before.count)
            continue
        row = TickGap(
            namespace=namespace,
            name=name,
            first=gap.first,
            last=gap.last,
            count=gap.count,
            reason=gap.reason,
            rule=schedule.rule,
        )
        last_of[name] = row
        new.append(row)
    if longer:
        statements_for(connection).update_rows(
            TickGap._meta.db_table,
            {"id": BIGINT, "last": TIME, "count": BIGINT},
            list(longer.values()),
            {"last": "n.last", "count": "n.count"},
        )
    TickGap.objects.using(connection.alias).bulk_create(new, batch_size=100)


def _goes_on(before: TickGap, course: Course, gap: Gap) -> bool:
    return before.reason == gap.reason and course.next_fire(before.last) == gap.first


def prune_tick_claims(
    older_than: float | timedelta | None = None,
    *,
    namespace: str | None = None,
    using: str | None = None,
) -> int:
    """Delete the claims of ticks strictly older than ``older_than``, and gaps that ended before.

    ``older_than`` is in seconds, or a timedelta; 0 is every tick that is past, None the setting
    TICK_RETENTION (which may say that all are kept). By the database's clock. A claim whose run
    is not over stays. Returns how many claims were deleted (the seed's pruneTickClaims). Raises
    ValueError for an age that makes no sense, and InvalidJob.
    """
    age = Settings.TICK_RETENTION.unless(older_than, "older_than")
    if older_than is None and age <= 0:
        return 0
    name = settings.NAMESPACE if namespace is None else namespace_name(namespace)
    connection = connections[database(using)]
    deleted, more = 0, True
    while more:
        claims, more = _prune(connection, name, max(age, 0.0))
        deleted += claims
    _tell(deleted, age, connection.alias)
    return deleted


class TickPruner:
    """Prunes a namespace by TICK_RETENTION little by little, for the leader."""

    def __init__(self, namespace: str, *, now: Callable[[], float] = time.monotonic) -> None:
        self._namespace = namespace
        self._now = now
        self._next_at = 0.0

    def step(self, connection: BaseDatabaseWrapper) -> bool:
        """Delete a batch, once per PRUNE_INTERVAL; tell whether there is more right now."""
        age = settings.TICK_RETENTION
        if age <= 0 or self._now() < self._next_at:
            return False
        # Before the attempt: one that fails is not made at every call.
        self._next_at = self._now() + settings.PRUNE_INTERVAL
        deleted, more = _prune(connection, self._namespace, age)
        _tell(deleted, age, connection.alias)
        if more:
            self._next_at = self._now()
        return more


def _prune(connection: BaseDatabaseWrapper, namespace: str, age: float) -> tuple[int, bool]:
    """Delete a batch of claims, and of gaps; return how many claims, and whether there is more."""

    def prune() -> tuple[int, bool]:
        with transaction(connection.alias):
            limit = current_clock().now(connection) - timedelta(seconds=age)
            old = TickClaim.objects.using(connection.alias).filter(namespace=namespace, open=False)
            deleted = _delete(old.filter(scheduled_at__lt=limit).order_by("scheduled_at"))
            gaps = TickGap.objects.using(connection.alias).filter(namespace=namespace)
            ended = _delete(gaps.filter(last__lt=limit))
            return deleted, BATCH in (deleted, ended)

    # What is lost inside a transaction of the caller's is the caller's to try again.
    return prune() if connection.in_atomic_block else retrying(prune)


def _delete(rows: QuerySet[TickClaim] | QuerySet[TickGap]) -> int:
    # By keys, found first: MySQL takes no LIMIT inside IN, and a delete by a range would lock what
    # a fire inserts.
    keys = list(rows.values_list("pk", flat=True)[:BATCH])
    deleted, _ = rows.model._default_manager.using(rows.db).filter(pk__in=keys).delete()
    return deleted


def _tell(deleted: int, age: float, using: str) -> None:
    if deleted:
        audit(
            "scheduler.tick.pruned",
            metadata={"rows_deleted": deleted, "older_than": age},
            using=using,
        )


aprune_tick_claims = sync_to_async(prune_tick_claims)
