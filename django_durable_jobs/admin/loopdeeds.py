"""What operators do to loop records, and the jobs that belong to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import UUID

from django.db import router
from django.db.transaction import atomic
from django.utils.translation import gettext_lazy as _

from ..conf import settings
from ..db import retrying, transaction
from ..jobspec import hash_key
from ..loops import record_of, root_of, type_of
from ..loops.occurrences import TARGET, occurrence_of
from ..models import Job, LoopRecord
from ..namespaces import database
from .steering import GONE, Answer, Deed, Refused

MOST_OCCURRENCES = 10
OWNERLESS = _("It has no owner, and does not run until it has one.")


def with_locked(row: Any, act: Callable[[LoopRecord], UUID | None]) -> UUID | None:
    """Do something to a record as it is now, in one transaction with its job."""
    root, alias = root_of(type(row)), database()
    using = router.db_for_write(root)

    def locked() -> UUID | None:
        with transaction(alias), atomic(using=using):
            rows = root._base_manager.using(using).select_for_update().only("pk")
            record = record_of(root, row.pk, using) if rows.filter(pk=row.pk).first() else None
            if record is None:
                raise Refused(GONE)
            return act(record)

    return retrying(locked)


def _able(enabled: bool) -> Callable[[Any, Answer], UUID | None]:
    def switch(record: LoopRecord) -> None:
        if record.enabled == enabled:
            raise Refused(_("It is enabled already.") if enabled else _("It is disabled already."))
        record.enabled = enabled
        record.save(update_fields=["enabled"])

    return lambda row, answer: with_locked(row, switch)


def _run_now(row: Any, answer: Answer) -> UUID | None:
    def run(record: LoopRecord) -> UUID | None:
        seen = answer.seen.get(str(row.pk))
        if seen is not None and seen != record.updated_at.isoformat():
            raise Refused(_("It was changed, or run, since you were asked: look again."))
        if not record.enabled:
            raise Refused(_("It is disabled: enable it first."))
        record.get_recurrence()  # raises: with a rule that is none it could not go on afterwards
        record.run_now()
        if record.last_error:
            raise Refused(record.last_error)
        if record.needs_owner:
            raise Refused(OWNERLESS)
        found = list(jobs_in_hand([record]))
        return found[0][1].pk if found else None

    return with_locked(row, run)


RUN_NOW = Deed(
    name="run_now",
    permission="fire_loop",
    button=_("Run now…"),
    yes=_("Yes, run now"),
    title=_("Run now"),
    explanation=_(
        "It runs at once: what it was waiting for gives way to this, and afterwards it goes on by"
        " its rule. One that runs already runs on, and once more beside it."
    ),
    done=_("Put in: %(count)d."),
    logged=_("Run now."),
    suits=lambda row: row.enabled,
    do=_run_now,
)
ENABLE = Deed(
    name="enable",
    permission="",
    button=_("Enable…"),
    yes=_("Yes, enable"),
    title=_("Enable"),
    explanation=_("It runs again from its next time on; what it missed does not run."),
    done=_("Enabled: %(count)d."),
    logged=_("Enabled."),
    suits=lambda row: not row.enabled,
    do=_able(True),
)
DISABLE = Deed(
    name="disable",
    permission="",
    button=_("Disable…"),
    yes=_("Yes, disable"),
    title=_("Disable"),
    explanation=_("Its queued job is cancelled, and it does not run until it is enabled again."),
    done=_("Disabled: %(count)d."),
    logged=_("Disabled."),
    suits=lambda row: row.enabled,
    do=_able(False),
)
SYNC = Deed(
    name="sync",
    permission="sync_loop",
    button=_("Sync…"),
    yes=_("Yes, sync all"),
    title=_("Sync all records with their jobs"),
    explanation=_(
        "All records are looked through, and the jobs of those that were changed past Django (by"
        " raw SQL, fixtures, other programs) are set right. The worker that leads does the same"
        " again and again by itself; many thousands take a while."
    ),
    done=_("Synced: %(count)d."),
    logged=_("Synced."),
    suits=lambda row: True,
    do=lambda row, answer: None,
)


def jobs_in_hand(records: Sequence[Any]) -> Iterator[tuple[Any, Job]]:
    """Yield the records with the jobs of the occurrences that they point at: one query."""
    by_key: dict[str, Any] = {}
    for record in records:
        try:
            occurrence = occurrence_of(record)
        except Exception:  # noqa: S112 - foreign code, the record's hooks: sync tells of it
            continue
        if occurrence is not None:
            by_key[hash_key(occurrence.key)] = record
    jobs = Job.objects.using(database()).filter(
        namespace=settings.NAMESPACE, key_hash__in=list(by_key)
    )
    for job in jobs.defer("payload", "target", "meta") if by_key else ():
        if job.key_hash in by_key:
            yield by_key[job.key_hash], job


def works_of(loop: Any, occurrences: Sequence[Job]) -> dict[UUID, Job]:
    """Return the jobs that a loop's occurrences have put in, by the occurrences' ids: one query."""
    keys = {hash_key(loop.prepare(job.run_at)): job.pk for job in occurrences}
    jobs = Job.objects.using(database()).filter(
        namespace=settings.NAMESPACE, key_hash__in=list(keys)
    )
    found = jobs.defer("payload", "target", "meta") if keys else ()
    return {keys[job.key_hash]: job for job in found if job.key_hash in keys}


def occurrences_of(record: Any) -> list[Job]:
    """Return the jobs of a record's latest occurrences, newest first."""
    jobs = Job.objects.using(database()).filter(
        target_kind=TARGET, target_id=str(record.pk), type=type_of(type(record))
    )
    return list(jobs.defer("payload", "target", "meta").order_by("-pk")[:MOST_OCCURRENCES])
