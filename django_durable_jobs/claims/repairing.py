"""Repair: a job is queued if and only if it has a queue entry, whatever was edited by hand."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from django.db.backends.base.base import BaseDatabaseWrapper

from ..db import FIRST, statements_for, transaction
from ..models import QueueEntry
from .holding import NEVER, free_known, live_types
from .telling import tell_ended

# How many rows of each table one call looks at, and how many it mends in one transaction.
_STRETCH = 5_000
_BATCH = 200


@dataclass(frozen=True, slots=True)
class Repair:
    """What one call of ``repair`` mended, and behind which keys the next one is to go on."""

    made: int = 0  # entries for queued jobs that had none
    dropped: int = 0  # entries without a queued job
    freed: int = 0  # jobs put off for want of a handler that a live worker has
    ended: int = 0  # claimed or running jobs that no execution holds: interrupted
    job_after: uuid.UUID | None = None
    entry_after: uuid.UUID | None = None

    @property
    def through(self) -> bool:
        """Whether both tables were looked through to their ends."""
        return self.job_after is None and self.entry_after is None


def repair(
    connection: BaseDatabaseWrapper,
    namespace: str,
    *,
    last: Repair | None = None,
    stretch: int = _STRETCH,
) -> Repair:
    """Look at the next stretch of jobs and of queue entries, and mend what does not match.

    A missing entry is made, one without a queued job deleted, a claimed or running job that no
    execution holds interrupted; also jobs that were put off for
    want of a handler are freed if a live worker has it. Goes on behind ``last``, from the start
    if that came to the end. Nothing finds these rows by an index (no index may name a state, see
    docs/decisions/queue-entries.md), so one call reads a bounded stretch: cheap enough for every
    minute, and a loop until ``through`` looks at everything. Call it outside of transactions.
    """
    statements = statements_for(connection)
    last = last or Repair()
    # One table at its end waits for the other: they start again together.
    jobs_from = FIRST if last.through else last.job_after
    entries_from = FIRST if last.through else last.entry_after
    made = ended = dropped = 0
    job_after = entry_after = None
    if jobs_from is not None:
        missing, job_after = statements.jobs_without_entry(namespace, jobs_from, stretch)
        for at in range(0, len(missing), _BATCH):
            with transaction(connection.alias):
                made += statements.make_entries(missing[at : at + _BATCH])
        nobodys, _ = statements.jobs_without_execution(namespace, jobs_from, stretch)
        for at in range(0, len(nobodys), _BATCH):
            with transaction(connection.alias):
                interrupted = statements.end_jobs(nobodys[at : at + _BATCH])
                tell_ended(connection, interrupted)
            ended += len(interrupted)
    if entries_from is not None:
        orphans, entry_after = statements.entries_without_job(namespace, entries_from, stretch)
        for at in range(0, len(orphans), _BATCH):
            with transaction(connection.alias):
                dropped += statements.drop_entries(orphans[at : at + _BATCH])
    freed = _free(connection, namespace)
    return Repair(made, dropped, freed, ended, job_after, entry_after)


def _free(connection: BaseDatabaseWrapper, namespace: str) -> int:
    known = live_types(connection, namespace)
    waiting = QueueEntry.objects.using(connection.alias).filter(
        namespace=namespace, due=False, claimable_at__gte=NEVER, type__in=known
    )
    if not known or not waiting.exists():
        return 0
    with transaction(connection.alias):
        return free_known(connection, namespace, known)
