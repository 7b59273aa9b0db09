"""Changing many queued jobs at once, for the machinery: ``jobs.replace_queued`` is for one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db.models import F

from .audit import audited, job_event, send
from .db import now_expression, transaction
from .jobspec import JobSpec
from .models import Job, QueueEntry
from .namespaces import announce
from .states import HeldReason, State


def refresh_many(jobs: Mapping[UUID, Mapping[str, Any]], *, using: str) -> list[UUID]:
    """Give queued jobs the owner and the payload that they are to have, a few statements for all.

    ``jobs`` are in enqueue's names, by id; the rest of what they say must be stored already. What
    is not queued, or says the same, stays as it is. Return the jobs that were changed.
    """
    with transaction(using) as connection:
        # Locked before they are looked at: a claim either was before or passes them over.
        rows = QueueEntry.objects.using(using).filter(pk__in=list(jobs)).order_by("pk")
        entries = {entry.pk: entry for entry in rows.select_for_update()}
        stored = Job.objects.using(using).filter(pk__in=list(entries), state=State.QUEUED)
        changed = []
        for job in stored.only(*_READ).order_by("pk"):
            spec = JobSpec(namespace=job.namespace, **jobs[job.pk])
            if spec.fingerprint != job.fingerprint:
                job.payload, job.fingerprint = spec.payload, spec.fingerprint
                job.owner_id, job.updated_at = spec.owner_id, now_expression(connection)
                changed.append(job)
        names = ("owner_id", "payload", "fingerprint", "updated_at")
        Job.objects.using(using).bulk_update(changed, names, batch_size=len(jobs))
        moved = [job for job in changed if job.owner_id != entries[job.pk].owner_id]
        for job in moved:
            entries[job.pk].owner_id = job.owner_id
        QueueEntry.objects.using(using).bulk_update(
            [entries[job.pk] for job in moved], ["owner_id"], batch_size=len(jobs)
        )
        # What it was put off for (can_run's no) may be what was changed.
        freed = [job for job in changed if job.held_reason not in ("", HeldReason.RETRY)]
        _free([job.pk for job in freed], using)
        if audited():
            named = [{"job_id": j.pk, "type": j.type, "owner_id": j.owner_id} for j in changed]
            send([job_event("job.replaced", **each) for each in named], using=using)
        for namespace in {job.namespace for job in (*moved, *freed)}:
            announce(namespace, using)
    return [job.pk for job in changed]


_READ = ("namespace", "type", "owner_id", "fingerprint", "held_reason")


def _free(ids: list[UUID], using: str) -> None:
    """Have jobs that were put off asked again from their time on."""
    if ids:
        jobs = Job.objects.using(using).filter(pk__in=ids)
        jobs.update(claimable_at=F("run_at"), held_since=None, held_reason="")
        # The next claim marks those due whose time has come.
        entries = QueueEntry.objects.using(using).filter(pk__in=ids)
        entries.update(claimable_at=F("run_at"), due=False)
