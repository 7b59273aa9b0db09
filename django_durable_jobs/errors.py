"""The family of errors that public calls raise.

One root, `DurableJobsError`; each error is a standard library error as well where one fits, so
that callers may catch either. The docstring of a class is its default message. `code` is stable
and meant for programs; messages are meant for people and may change.
"""

from __future__ import annotations

import inspect
from uuid import UUID

__all__ = [
    "AlreadyRunning",
    "AlreadyStarted",
    "DuplicateHandler",
    "DuplicateJob",
    "DuplicateSchedule",
    "DurableJobsError",
    "IdempotencyConflict",
    "InvalidJob",
    "InvalidRecurrence",
    "InvalidSchedule",
    "JobDoesNotExist",
    "JobStopped",
    "JobTimedOut",
    "NotQueued",
    "OccurrenceRefused",
    "ShutDown",
    "StaleClaim",
    "TransactionLeftOpen",
    "UnknownSchedule",
    "WrongState",
]


def _default_message(error_class: type[BaseException]) -> str:
    """Return the docstring of the class; its name under `python -OO`, which strips docstrings."""
    return inspect.getdoc(error_class) or error_class.__name__


class DurableJobsError(Exception):
    """Something went wrong in django_durable_jobs."""

    code: str = "durable-jobs-error"

    # Every argument of every class of the family is optional, and the message alone stands in
    # `args`: so an error can be copied and sent between processes, which rebuilds it from its
    # class and args and then sets its attributes.
    def __init__(self, message: str | None = None, *, code: str | None = None) -> None:
        super().__init__(_default_message(type(self)) if message is None else message)
        if code is not None:
            self.code = code


class InvalidJob(DurableJobsError, ValueError):
    """The job is not valid."""

    code = "invalid-job"

    def __init__(
        self,
        message: str | None = None,
        *,
        field: str = "",
        path: str = "",
        code: str | None = None,
    ) -> None:
        """Take the name of the `field`, and the `path` of the value where the field is JSON.

        The path begins with the field: `payload.items[3].price`.
        """
        super().__init__(message, code=code)
        self.field = field
        self.path = path


class _JobError(DurableJobsError):
    """The call does not fit the job."""

    def __init__(
        self,
        message: str | None = None,
        *,
        job_id: UUID | str | None = None,
        code: str | None = None,
    ) -> None:
        if message is None and job_id is not None:
            message = f"{_default_message(type(self))} (job {job_id})"
        super().__init__(message, code=code)
        self.job_id = job_id


class IdempotencyConflict(_JobError):
    """The idempotency key was already used with different job data."""

    code = "idempotency-conflict"


class DuplicateJob(_JobError):
    """A job with this id exists already."""

    code = "duplicate-job"


class JobDoesNotExist(_JobError, LookupError):
    """There is no job with this id."""

    code = "job-does-not-exist"


class WrongState(_JobError):
    """The job is in a state from which this cannot be done."""

    code = "wrong-state"

    def __init__(
        self,
        message: str | None = None,
        *,
        job_id: UUID | str | None = None,
        state: str = "",
        code: str | None = None,
    ) -> None:
        """Take the `state` that the job was found in."""
        if message is None and state:
            message = f"{_default_message(type(self))} (job {job_id} is {state})"
        super().__init__(message, job_id=job_id, code=code)
        self.state = state


class NotQueued(WrongState):
    """Only queued jobs can be cancelled or replaced."""

    code = "not-queued"


class StaleClaim(_JobError):
    """The execution is no longer active: its claim was lost or settled, nothing was written."""

    code = "stale-claim"


class TransactionLeftOpen(DurableJobsError):
    """The handler returned inside a transaction that it had begun: what it wrote is rolled back."""

    code = "transaction-left-open"


class DuplicateHandler(DurableJobsError):
    """Another handler is registered for this type already."""

    code = "duplicate-handler"


class InvalidRecurrence(DurableJobsError, ValueError):
    """The recurrence is not valid."""

    # Raised with one of: invalid-cron, invalid-timezone, cron-no-fire, invalid-baseline,
    # invalid-interval.
    code = "invalid-recurrence"


class InvalidSchedule(DurableJobsError, ValueError):
    """The schedule is not valid."""

    code = "invalid-schedule"


class DuplicateSchedule(DurableJobsError):
    """A schedule with this name exists already."""

    code = "duplicate-schedule"


class UnknownSchedule(DurableJobsError, LookupError):
    """There is no schedule with this name."""

    code = "unknown-schedule"


class OccurrenceRefused(DurableJobsError):
    """The occurrence of the loop record cannot run."""

    # Raised with one of: record_deleted, occurrence_stale, owner_changed, owner_not_authorized,
    # not_reserved, advance_failed.
    code = "occurrence-refused"


class AlreadyRunning(DurableJobsError):
    """A run of the schedule is in flight."""

    code = "already-running"


class AlreadyStarted(DurableJobsError):
    """The worker has already started: declare handlers and schedules before it does."""

    code = "already-started"


class ShutDown(DurableJobsError):
    """The scheduler is shut down: make a new one to start again."""

    code = "shut-down"


# The two below are raised into running handlers. They are outside the family and no `Exception`,
# so that a handler's own `except Exception` does not swallow them, as with KeyboardInterrupt.


class JobStopped(BaseException):
    """The job was asked to stop."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(_default_message(type(self)) if message is None else message)


class JobTimedOut(BaseException):
    """The job ran past its time limit."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(_default_message(type(self)) if message is None else message)
