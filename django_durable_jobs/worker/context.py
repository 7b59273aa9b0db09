"""What a handler that asks for it is given: the job, and ways to record and to stop."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, MutableMapping
from datetime import datetime
from functools import cached_property
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db.backends.base.base import BaseDatabaseWrapper

from ..claims import Claimed
from ..db import statements_for
from ..errors import (
    DurableJobsError,
    InvalidJob,
    JobStopped,
    JobTimedOut,
    ShutDown,
    StaleClaim,
)
from ..models import Execution, Job
from ..parameters import shown
from ..states import InterruptionReason
from ..strictjson import dumps, normalise, storable_text
from ..ticks import nominal_time
from .scribe import Scribe

RECORD_MAX_BYTES = 64 * 1_024  # metadata, receipt and result, each
PROGRESS_MESSAGE_MAX_CHARS = 256


class _JobLogger(logging.LoggerAdapter[logging.Logger]):
    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        extra = {**(self.extra or {}), **kwargs.get("extra", {})}
        return msg, {**kwargs, "extra": extra}


class JobContext:
    """One execution, as its handler sees it.

    Each ``record_…`` call replaces the whole value, is committed at once through the worker's own
    connection and returns the stored execution. A value that is not JSON raises InvalidJob and
    stores nothing; once the execution is no longer active the calls raise StaleClaim.
    """

    def __init__(self, claimed: Claimed, scribe: Scribe) -> None:
        self._claimed = claimed
        self._scribe = scribe
        # Why the handler should stop, once it should; set by the worker.
        self.stop_reason: InterruptionReason | None = None

    @cached_property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records tell which execution they come from."""
        claimed = self._claimed
        return _JobLogger(
            logging.getLogger("django_durable_jobs.job"),
            {
                "job_id": str(claimed.job.pk),
                "job_type": claimed.job.type,
                "claim_id": str(claimed.claim_id),
                "attempt": claimed.attempt,
            },
        )

    @property
    def job(self) -> Job:
        return self._claimed.job

    @property
    def claim_id(self) -> UUID:
        """The token of this attempt: an outside system may check it to refuse a late one."""
        return self._claimed.claim_id

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self._claimed.attempt

    @property
    def scheduled_at(self) -> datetime:
        """When the job was to run; of a schedule's job the time of its tick, without jitter."""
        job = self._claimed.job
        run_at: datetime = job.run_at
        return nominal_time(job) or run_at

    @property
    def execution(self) -> Execution:
        """The execution as it is stored now."""
        return self._write(lambda connection: self._stored(connection))

    @property
    def should_stop(self) -> bool:
        """True once the handler had better end.

        It has run past its time limit, somebody asked it to stop, its claim was lost, or the
        grace of a shutdown is over.
        """
        return self.stop_reason is not None

    def check_stop(self) -> None:
        """Raise JobTimedOut or JobStopped if the handler should stop."""
        if self.stop_reason is not None:
            timed_out = self.stop_reason == InterruptionReason.TIMED_OUT
            raise JobTimedOut if timed_out else JobStopped

    def stop(self, reason: InterruptionReason) -> None:
        """Let ``should_stop`` be true from now on; called by the worker.

        The first reason counts, except that an operator's wish counts most.
        """
        if self.stop_reason is None or reason == InterruptionReason.STOP_REQUESTED:
            self.stop_reason = reason

    def record_metadata(self, metadata: Any) -> Execution:
        """Store what describes this execution (JSON, 64 KiB at most)."""
        return self._record("metadata", metadata)

    def record_receipt(self, receipt: Any) -> Execution:
        """Store the proof of an effect, best before the effect (JSON, 64 KiB at most)."""
        return self._record("receipt", receipt)

    def progress(self, done: float, total: float, message: str = "") -> Execution:
        """Store how far the work has come: ``done`` of ``total``, in any unit.

        More done than in all, which was an estimate then, is stored as all of it: 5 of 1 as 5 of
        5. Raises InvalidJob for what is not a number of 0 or more.
        """
        done, total = _amount(done, "done"), _amount(total, "total")
        text = storable_text(message, PROGRESS_MESSAGE_MAX_CHARS)
        whole = {"done": done, "total": max(done, total), "message": text}
        return self._record("progress", whole)

    async def arecord_metadata(self, metadata: Any) -> Execution:
        return await self._apart(self.record_metadata, metadata)

    async def arecord_receipt(self, receipt: Any) -> Execution:
        return await self._apart(self.record_receipt, receipt)

    async def aprogress(self, done: float, total: float, message: str = "") -> Execution:
        return await self._apart(self.progress, done, total, message)

    async def _apart(self, function: Callable[..., Execution], *args: Any) -> Execution:
        # Usually not: it waits for the scribe and touches no connection of this thread.
        sensitive = self._scribe.thread_sensitive
        return await sync_to_async(function, thread_sensitive=sensitive)(*args)

    def _record(self, column: str, value: Any) -> Execution:
        text = dumps(normalise(value, column, max_bytes=RECORD_MAX_BYTES))

        def write(connection: BaseDatabaseWrapper) -> Execution:
            statements = statements_for(connection)
            if not statements.record(self.job.pk, self.claim_id, column, text):
                raise StaleClaim(job_id=self.job.pk)
            return self._stored(connection)

        return self._write(write)

    def _stored(self, connection: BaseDatabaseWrapper) -> Execution:
        executions = Execution.objects.using(connection.alias)
        return executions.get(job_id=self.job.pk, claim_id=self.claim_id)

    def _write(self, function: Callable[[BaseDatabaseWrapper], Execution]) -> Execution:
        if not self._scribe.can_write():
            raise DurableJobsError(
                "This cannot be recorded inside a transaction on SQLite, whose one write lock that"
                " transaction may hold: record before or after it.",
                code="record-in-transaction",
            )
        try:
            return self._scribe.write(function)
        except ShutDown as error:  # which ended every execution that was left
            raise StaleClaim(job_id=self.job.pk) from error


def _amount(given: object, name: str) -> int | float:
    if isinstance(given, (int, float)) and not isinstance(given, bool) and 0 <= given < math.inf:
        return given
    path = f"progress.{name}"
    problem = f"must be a number, 0 or more, not {shown(given)}"
    raise InvalidJob(f"{path}: {problem}.", field="progress", path=path)
