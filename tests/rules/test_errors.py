"""Errors explain themselves, are standard library errors too, and survive a trip."""

from __future__ import annotations

import copy
import pickle
from uuid import UUID

import pytest

from django_durable_jobs import errors
from django_durable_jobs.errors import (
    DuplicateJob,
    DurableJobsError,
    InvalidJob,
    InvalidRecurrence,
    JobDoesNotExist,
    JobStopped,
    JobTimedOut,
    NotQueued,
    UnknownSchedule,
)

JOB_ID = UUID("12345678-1234-5678-1234-567812345678")

# Written out: codes are for ever.
CODES = {
    "AlreadyRunning": "already-running",
    "AlreadyStarted": "already-started",
    "DuplicateHandler": "duplicate-handler",
    "DuplicateJob": "duplicate-job",
    "DuplicateSchedule": "duplicate-schedule",
    "DurableJobsError": "durable-jobs-error",
    "IdempotencyConflict": "idempotency-conflict",
    "InvalidJob": "invalid-job",
    "InvalidRecurrence": "invalid-recurrence",
    "InvalidSchedule": "invalid-schedule",
    "JobDoesNotExist": "job-does-not-exist",
    "NotQueued": "not-queued",
    "OccurrenceRefused": "occurrence-refused",
    "ShutDown": "shut-down",
    "WrongState": "wrong-state",
    "TransactionLeftOpen": "transaction-left-open",
    "StaleClaim": "stale-claim",
    "UnknownSchedule": "unknown-schedule",
}


def family() -> list[type[DurableJobsError]]:
    exported = [getattr(errors, name) for name in errors.__all__]
    return [error for error in exported if issubclass(error, DurableJobsError)]


def test_codes_are_stable() -> None:
    assert {error.__name__: error.code for error in family()} == CODES


@pytest.mark.parametrize("error", family())
def test_the_docstring_is_the_default_message(error: type[DurableJobsError]) -> None:
    assert str(error()) == error.__doc__
    assert str(error("Something else.")) == "Something else."


@pytest.mark.parametrize(
    ("error", "standard"),
    [
        (InvalidJob, ValueError),
        (InvalidRecurrence, ValueError),
        (errors.InvalidSchedule, ValueError),
        (UnknownSchedule, LookupError),
        (JobDoesNotExist, LookupError),
    ],
)
def test_an_error_is_a_standard_library_error_where_one_fits(
    error: type[Exception], standard: type[Exception]
) -> None:
    assert issubclass(error, standard)


def test_a_code_can_be_narrowed_for_one_instance_only() -> None:
    assert InvalidRecurrence("no", code="invalid-cron").code == "invalid-cron"
    assert InvalidRecurrence("no").code == "invalid-recurrence"


def test_errors_about_a_job_name_it() -> None:
    assert str(DuplicateJob(job_id=JOB_ID)).endswith(f"(job {JOB_ID})")
    error = NotQueued(job_id=JOB_ID, state="running")
    assert str(error).endswith(f"(job {JOB_ID} is running)")
    assert (error.job_id, error.state) == (JOB_ID, "running")


@pytest.mark.parametrize(
    "error",
    [
        *(error() for error in family()),
        InvalidJob("no", field="payload", path="payload.a"),
        InvalidRecurrence("no", code="invalid-cron"),
        NotQueued(job_id=JOB_ID, state="running"),
        DuplicateJob("no", job_id=JOB_ID),
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    "trip", [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))]
)
def test_an_error_survives_copy_and_pickle(error: DurableJobsError, trip: object) -> None:
    assert callable(trip)
    back = trip(error)
    assert type(back) is type(error)
    assert (str(back), back.code, vars(back)) == (str(error), error.code, vars(error))


@pytest.mark.parametrize("error", [JobStopped, JobTimedOut])
def test_what_is_raised_into_handlers_passes_their_except_exception(
    error: type[BaseException],
) -> None:
    assert issubclass(error, BaseException)
    assert not issubclass(error, Exception)
    assert str(error()) == error.__doc__
    assert str(error("Asked by an operator.")) == "Asked by an operator."
