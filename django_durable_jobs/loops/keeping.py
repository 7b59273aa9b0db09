"""Which jobs of occurrences are kept although they ended long ago."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django.db import router

from ..models import Job
from .occurrences import TARGET, key_of
from .records import key_in, model_of
from .rules import synced_digest


def pointed_at(ids: Sequence[UUID], using: str) -> set[UUID]:
    """Return those of the jobs whose record still points at their occurrence.

    Only by its job is it known that an occurrence was cancelled, or has run: without it the record
    would have it run, a year later too. Reads once per model of what is among the jobs.
    """
    jobs = Job.objects.using(using).filter(pk__in=ids, target_kind=TARGET)
    rows = list(jobs.values_list("pk", "type", "target_id", "idempotency_key"))
    roots = {type: model_of(type) for type in {type for _, type, _, _ in rows}}
    kept: set[UUID] = set()
    for type, root in roots.items():
        if root is not None:
            keys = {key_in(root, target) for _, of, target, _ in rows if of == type} - {None}
            records = root._base_manager.using(router.db_for_write(root)).filter(pk__in=keys)
            synced = set(records.values_list("synced", flat=True))
            current = {key_of(digest) for each in synced if (digest := synced_digest(each))}
            kept |= {id for id, of, _, key in rows if of == type and key in current}
    return kept
