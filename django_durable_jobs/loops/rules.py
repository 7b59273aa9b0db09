"""What is to become of a record and of its jobs: a decision over what is stored, no query.

After the seed's syncRecord; tests/seed has a test for each branch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from ..errors import InvalidJob, InvalidRecurrence
from ..jobspec import JobSpec
from ..models import LoopRecord
from ..models.loop import KEPT_BY_SYNC, whole_milliseconds
from ..recurrence import Every
from ..states import ACTIVE, State
from ..strictjson import describe_exception
from .occurrences import LOCAL_USER, Occurrence, job_of, occurrence_of, rule_digest, target_of

# Why the machinery cancels an occurrence.
DELETED = "record_deleted"
DISABLED = "record_disabled_or_unscheduled"
CHANGED = "record_schedule_changed"
OWNERLESS = "record_requires_owner"

# How an occurrence's job came to an end without anybody's having said that it shall not run.
_DONE = (State.COMPLETED, State.FAILED, State.INTERRUPTED)


@dataclass(frozen=True, slots=True)
class Known:
    """A job of an occurrence as it is stored."""

    id: UUID
    state: str
    owner_id: str
    target: str  # which record's it is


@dataclass(slots=True)
class Verdict:
    """What is to be written: columns of the record, and of its jobs at most three things."""

    changes: dict[str, Any] = field(default_factory=dict)
    cancel: list[tuple[UUID, str]] = field(default_factory=list)
    refresh: tuple[UUID, dict[str, Any]] | None = None  # a queued job, and what it becomes
    put_in: dict[str, Any] | None = None

    @property
    def is_idle(self) -> bool:
        return not (self.changes or self.cancel or self.refresh or self.put_in)


def owner_of(record: LoopRecord, *, multi_user: bool) -> str:
    """Return whose job an occurrence is, "" where it must have an owner and has none."""
    return record.get_owner_id() if multi_user else LOCAL_USER


def synced_digest(synced: str) -> str:
    """Return the digest of the occurrence that had a job when a record was synced, or ""."""
    return synced.partition(":")[2]


def next_run(record: LoopRecord, moment: datetime) -> datetime | None:
    """Return the record's next time behind ``moment``, None for a one-shot.

    An interval goes on from the time that the record points at, so that its grid stays.
    """
    recurrence = record.get_recurrence()
    if recurrence is None:
        return None
    if isinstance(recurrence, Every) and recurrence.baseline is None:
        recurrence = recurrence.with_anchor(record.next_run_at or moment)
    return whole_milliseconds(recurrence.next_fire(moment))


def decide(
    record: LoopRecord,
    jobs: Mapping[str, Known],
    now: datetime,
    *,
    late: float,
    multi_user: bool,
    saved: bool = False,
) -> Verdict:
    """Say what is to become of a record and of its jobs.

    ``jobs`` are those of the occurrence that it points at and of the one synced last, by digest.
    A time that nobody's job is for is missed once it is ``late`` seconds ago.
    With ``saved`` something of the record may have changed that its queued job holds a copy of.
    The record is changed in memory to what it is to be.
    """
    before = {name: getattr(record, name) for name in _WRITTEN}
    verdict = Verdict()
    try:
        if record.next_run_at is not None:
            record.next_run_at = whole_milliseconds(record.next_run_at)
        record.get_recurrence()  # one that is none gets no job, whatever time is stored
        _part_from_twin(record, jobs)
        old = synced_digest(record.synced)
        if record.synced:
            _bump(record, old, jobs.get(old), now, multi_user=multi_user)
        if record.next_run_at is None and record.enabled:
            record.next_run_at = next_run(record, now)
        _part_from_twin(record, jobs)  # which was edited in the same way before
        kept = _settle(record, jobs, now, late)
        _fit(verdict, record, jobs, old, kept, multi_user=multi_user, saved=saved)
        record.last_error = ""
    except (InvalidRecurrence, InvalidJob) as error:
        _undo(record, before, error)
        verdict = _refused(record, jobs, error)
    except Exception as error:  # foreign code: the record's hooks
        _undo(record, before, error)
        verdict = Verdict()
    verdict.changes = {
        name: getattr(record, name) for name in _WRITTEN if getattr(record, name) != before[name]
    }
    return verdict


_WRITTEN = KEPT_BY_SYNC
_ERROR_MAX_CHARS = 1_024


def _undo(record: LoopRecord, before: Mapping[str, Any], error: Exception) -> None:
    for name, value in before.items():
        setattr(record, name, value)
    record.last_error = describe_exception(error, _ERROR_MAX_CHARS)


def _refused(
    record: LoopRecord, jobs: Mapping[str, Known], error: InvalidRecurrence | InvalidJob
) -> Verdict:
    """Cancel what waits of a record that was made one which can have no job."""
    reason = OWNERLESS if getattr(error, "field", "") == "owner_id" else CHANGED
    mine, old = target_of(record), synced_digest(record.synced)
    own = [job.id for job in jobs.values() if job.target == mine and job.state == State.QUEUED]
    # What has begun, or an operator has cancelled, is not to come again when the record is mended.
    stays = old in jobs and jobs[old].id not in own
    record.synced = f"{rule_digest(record)}:{old if stays else ''}"
    return Verdict(cancel=[(id, reason) for id in own])


def _part_from_twin(record: LoopRecord, jobs: Mapping[str, Known]) -> None:
    """Give the record an identity of its own where it has another's, copied past ``save``."""
    occurrence, mine = occurrence_of(record), target_of(record)
    for digest in (synced_digest(record.synced), occurrence.digest if occurrence else ""):
        job = jobs.get(digest)
        if job is not None and job.target != mine:
            record.begin_anew()
            return


def _bump(
    record: LoopRecord, old: str, job: Known | None, now: datetime, *, multi_user: bool
) -> None:
    """Begin a new epoch where the schedule was edited, by whatever way, or comes alive again."""
    current = occurrence_of(record)
    moved = bool(old) and (current is None or current.digest != old)
    if not str(record.synced).startswith(f"{rule_digest(record)}:"):
        single = not moved and record.get_recurrence() is None
        if single and job is not None and job.state in (*ACTIVE, *_DONE):
            return  # it has begun: this time is the only one, and is not to come again
        record.schedule_epoch += 1
        if not moved and not single:
            record.next_run_at = None  # the old schedule's: an interval counts from now
            record.next_run_at = next_run(record, now)
        return
    wanted = record.enabled and current and owner_of(record, multi_user=multi_user)
    if current is not None and (moved or (not old and wanted)):
        record.schedule_epoch += 1


def _settle(
    record: LoopRecord, jobs: Mapping[str, Known], now: datetime, late: float
) -> Known | None:
    """Have the record point at an occurrence that is still to come; return its job, if any."""
    occurrence = occurrence_of(record)
    if occurrence is None:
        return None
    job = jobs.get(occurrence.digest)
    if job is not None and job.state in _DONE:
        # The process died before it advanced the record. Also where that was disabled meanwhile:
        # what has begun is not to begin again when it is enabled.
        _advance(record, occurrence, now)
        return None
    cancelled = job is not None and job.state == State.CANCELLED
    if cancelled and record.enabled and occurrence.due <= now:
        _advance(record, occurrence, now)
        return None
    if job is None and record.enabled and occurrence.due < now - timedelta(seconds=late):
        # Missed, and nobody's; a single run is late instead.
        record.next_run_at = next_run(record, now) or record.next_run_at
    return job


def _advance(record: LoopRecord, occurrence: Occurrence, now: datetime) -> None:
    record.last_occurrence_at = occurrence.due
    record.next_run_at = next_run(record, max(now, occurrence.due))


def _fit(
    verdict: Verdict,
    record: LoopRecord,
    jobs: Mapping[str, Known],
    old: str,
    kept: Known | None,
    *,
    multi_user: bool,
    saved: bool,
) -> None:
    """Fit the jobs to the record: which are cancelled, changed, put in."""
    occurrence, rule = occurrence_of(record), rule_digest(record)
    owner = owner_of(record, multi_user=multi_user)
    digest = occurrence.digest if occurrence is not None else ""
    reason = ""
    if not record.enabled or occurrence is None:
        reason = DISABLED
    elif not owner:
        reason = OWNERLESS
    record.needs_owner = multi_user and not owner
    if old != digest:
        _drop(verdict, jobs, old, reason or CHANGED)
    if reason:
        _drop(verdict, jobs, digest, reason)
        # One that runs goes on: it is not to come twice when the record comes alive meanwhile.
        record.synced = f"{rule}:{digest if kept and kept.state in ACTIVE else ''}"
        return
    record.synced = f"{rule}:{digest}"
    assert occurrence is not None
    if kept is None:
        verdict.put_in = _checked(job_of(record, occurrence, owner))
    elif kept.state == State.QUEUED and (saved or kept.owner_id != owner):
        verdict.refresh = kept.id, _checked(job_of(record, occurrence, owner))


def _checked(job: dict[str, Any]) -> dict[str, Any]:
    """Return the job where it can be one: what the record's hooks said is in it. InvalidJob."""
    JobSpec(namespace="default", **job)
    return job


def _drop(verdict: Verdict, jobs: Mapping[str, Known], digest: str, reason: str) -> None:
    job = jobs.get(digest)
    if job is not None and job.state == State.QUEUED:
        verdict.cancel.append((job.id, reason))
