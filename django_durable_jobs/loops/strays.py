"""Queued jobs that no loop record points at."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from django.db import router
from django.db.models import QuerySet

from ..conf import settings
from ..models import LoopRecord, QueueEntry
from .records import PREFIX, key_in, type_of
from .rules import CHANGED, DELETED, synced_digest


def entries_of(root: type[LoopRecord], alias: str) -> QuerySet[QueueEntry]:
    """Return the queue entries of this model's occurrences."""
    entries = QueueEntry.objects.using(alias)
    return entries.filter(namespace=settings.NAMESPACE, type=type_of(root))


def strays_of(
    root: type[LoopRecord], alias: str, part_size: int
) -> Iterator[dict[str, list[UUID]]]:
    """Yield queued jobs of occurrences that no record points at any more, by why they go."""
    entries = entries_of(root, alias).order_by("pk")
    part = list(entries.values_list("pk", "job__target_id", "job__idempotency_key")[:part_size])
    records = root._base_manager.using(router.db_for_write(root))
    while part:
        keys = {key_in(root, target) for _, target, _ in part} - {None}
        known = {
            str(key): synced_digest(synced)
            for key, synced in records.filter(pk__in=keys).values_list("pk", "synced")
        }
        found: dict[str, list[UUID]] = {DELETED: [], CHANGED: []}
        for id, target, key in part:
            if target not in known:
                found[DELETED].append(id)
            elif key != PREFIX + known[target]:
                found[CHANGED].append(id)
        yield found
        rest = entries.filter(pk__gt=part[-1][0])
        part = list(rest.values_list("pk", "job__target_id", "job__idempotency_key")[:part_size])
