"""Which errors pass when a transaction is tried again: judged by code, never by class."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.db.utils import DataError, IntegrityError, InternalError, OperationalError

from django_durable_jobs.db import is_duplicate, is_transient, retrying
from django_durable_jobs.db.retrying import TRIES
from django_durable_jobs.models import Job, Worker
from tests.factories import make_job, make_worker


class WithState(Exception):
    """An error as psycopg raises it."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


def with_code(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("trouble")
    error.sqlite_errorcode = code  # type: ignore[misc]
    return error


def wrapped(outer: type[Exception], inner: Exception) -> Exception:
    """Wrap an error as Django does."""
    error = outer(*inner.args)
    error.__cause__ = inner
    return error


# what happened: the error, whether it is transient, whether it says that a key was there
TABLE: dict[str, tuple[Exception, bool, bool]] = {
    "PostgreSQL deadlock": (wrapped(OperationalError, WithState("40P01")), True, False),
    "PostgreSQL serialization": (
        wrapped(OperationalError, WithState("40001")),
        True,
        False,
    ),
    "PostgreSQL lock timeout": (wrapped(OperationalError, WithState("55P03")), True, False),
    "PostgreSQL deadlock, other class": (
        wrapped(InternalError, WithState("40P01")),
        True,
        False,
    ),
    "PostgreSQL unique violation": (wrapped(IntegrityError, WithState("23505")), False, True),
    "PostgreSQL check violation": (wrapped(IntegrityError, WithState("23514")), False, False),
    "PostgreSQL bad JSON": (wrapped(DataError, WithState("22P02")), False, False),
    "PostgreSQL disk full": (wrapped(OperationalError, WithState("53100")), False, False),
    "PostgreSQL shut down": (wrapped(OperationalError, WithState("57P01")), False, False),
    "PostgreSQL read only": (wrapped(InternalError, WithState("25006")), False, False),
    "PostgreSQL without a code": (OperationalError("the connection is lost"), False, False),
    "MySQL deadlock": (wrapped(OperationalError, Exception(1213, "Deadlock")), True, False),
    "MySQL lock timeout": (
        wrapped(OperationalError, Exception(1205, "Lock wait")),
        True,
        False,
    ),
    "MariaDB snapshot": (
        wrapped(OperationalError, Exception(1020, "changed")),
        True,
        False,
    ),
    "MySQL NOWAIT": (wrapped(OperationalError, Exception(3572, "NOWAIT")), True, False),
    "MySQL duplicate": (wrapped(IntegrityError, Exception(1062, "Duplicate")), False, True),
    "MariaDB bad JSON": (wrapped(IntegrityError, Exception(4025, "CONSTRAINT")), False, False),
    "MySQL gone away": (wrapped(OperationalError, Exception(2006, "gone")), False, False),
    "SQLite busy": (wrapped(OperationalError, with_code(5)), True, False),
    "SQLite busy snapshot": (wrapped(OperationalError, with_code(5 | 2 << 8)), True, False),
    "SQLite locked": (wrapped(OperationalError, with_code(6)), True, False),
    "SQLite unique": (wrapped(IntegrityError, with_code(2067)), False, True),
    "SQLite primary key": (wrapped(IntegrityError, with_code(1555)), False, True),
    "SQLite check": (wrapped(IntegrityError, with_code(275)), False, False),
    "SQLite disk full": (wrapped(OperationalError, with_code(13)), False, False),
    "somebody's own": (ValueError(1213), False, False),
}


@pytest.mark.parametrize("what", TABLE)
def test_errors_are_classified_by_their_codes(what: str) -> None:
    error, transient, duplicate = TABLE[what]
    assert is_transient(error) is transient
    assert is_duplicate(error) is duplicate


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("what", ["primary key", "unique", "check", "json"])
def test_what_this_database_really_raises_is_classified_so_too(what: str) -> None:
    job = make_job()
    attempts: dict[str, Any] = {
        "primary key": lambda: make_worker(id=make_worker().pk),
        "unique": lambda: make_job(idempotency_key=job.idempotency_key),
        "check": lambda: Job.objects.filter(pk=job.pk).update(state="nonsense"),
        "json": store_what_is_no_json,
    }
    with pytest.raises(DatabaseError) as caught, transaction.atomic():
        attempts[what]()
    assert is_duplicate(caught.value) is (what in ("primary key", "unique"))
    assert not is_transient(caught.value)
    assert Worker.objects.count() <= 1


def store_what_is_no_json() -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE django_durable_jobs_job SET payload = %s", ["{no json"])


def deadlocked(times: int) -> Any:
    calls = []

    def run() -> int:
        calls.append(1)
        if len(calls) <= times:
            raise TABLE["PostgreSQL deadlock"][0]
        return len(calls)

    return run


def test_a_transaction_is_tried_five_times_with_growing_pauses() -> None:
    pauses: list[float] = []
    assert retrying(deadlocked(TRIES - 1), sleep=pauses.append, jitter=lambda: 1.0) == TRIES
    assert pauses == [0.02, 0.04, 0.08, 0.16]


def test_the_last_error_is_raised() -> None:
    with pytest.raises(OperationalError):
        retrying(deadlocked(TRIES), sleep=lambda _: None)


def test_pauses_differ_between_those_who_met() -> None:
    pauses: list[float] = []
    retrying(deadlocked(1), sleep=pauses.append, jitter=lambda: 0.0)
    assert pauses == [0.01]


@pytest.mark.parametrize("error", [ValueError("no"), TABLE["PostgreSQL unique violation"][0]])
def test_any_other_error_is_raised_at_once(error: Exception) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        retrying(fail, sleep=lambda _: pytest.fail("waited for what cannot pass"))
