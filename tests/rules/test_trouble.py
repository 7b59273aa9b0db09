"""What a worker logs of trouble with its database, and how long it pauses after it."""

from __future__ import annotations

import logging
import sqlite3
import tempfile
from contextlib import closing
from uuid import UUID

import pytest
from django.db import InterfaceError, NotSupportedError, OperationalError, ProgrammingError

from django_durable_jobs.worker.trouble import Backoff, Trouble, is_refusal

WORKER = UUID(int=1)


class Watch:
    """A monotonic clock that stands still until it is told otherwise."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def trouble(watch: Watch) -> Trouble:
    return Trouble(WORKER, now=watch)


def test_an_outage_is_told_of_once_a_minute_however_often_it_is_noticed(
    trouble: Trouble, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(1_500):  # two and a half minutes
        trouble.failed("turn", OperationalError("no connection"))
        watch.now += 0.1
    assert len(caplog.records) == 3
    assert "no connection" in caplog.text


def test_all_threads_together_write_a_line_a_second_whatever_their_errors_say(
    trouble: Trouble, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(100):
        trouble.failed("turn", OperationalError(f"port {number}"))
        trouble.failed("heartbeat", OperationalError(f"no connection {number}"))
        watch.now += 0.1
    assert len(caplog.records) == 10
    assert all("\n" not in record.getMessage() for record in caplog.records)


def test_the_end_of_trouble_is_told_where_its_beginning_was(
    trouble: Trouble, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    trouble.failed("turn", OperationalError("gone"))
    trouble.failed("heartbeat", OperationalError("gone"))  # in the same second: not told
    watch.now += 12.5
    trouble.over("turn")
    trouble.over("heartbeat")
    trouble.over("turn")
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert told[1] == f"turn works again worker={WORKER} after=12.5s"


def test_a_new_outage_with_the_same_error_is_told_of(
    trouble: Trouble, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        trouble.failed("turn", OperationalError("gone"))
        watch.now += 5
        trouble.over("turn")
    failures = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(failures) == 2


def test_a_fault_of_ours_comes_with_its_traceback_and_an_outage_in_one_line(
    trouble: Trouble, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    trouble.failed("turn", OperationalError("is the server\n\trunning?"))
    watch.now += 5
    for error in (ProgrammingError("no such column"), KeyError("x")):
        trouble.failed("turn", error)
        watch.now += 5
    traced = [record.exc_info is not None and bool(record.exc_info) for record in caplog.records]
    assert traced == [False, True, True]
    assert caplog.records[0].getMessage().endswith("is the server running?")


def test_pauses_grow_to_two_seconds_and_start_anew_after_a_success() -> None:
    backoff = Backoff(jitter=lambda: 1.0)
    pauses = [backoff.next() for _ in range(8)]
    assert pauses[0] == 0.1
    assert pauses == sorted(pauses)
    assert pauses[-1] == 2.0
    backoff.reset()
    assert backoff.next() == 0.1


def test_workers_that_failed_together_do_not_try_again_together() -> None:
    low, high = Backoff(jitter=lambda: 0.0), Backoff(jitter=lambda: 1.0)
    assert 2 * low.next() == high.next()


def from_sqlite(path: str) -> Exception:
    """Return what Django raises where SQLite cannot open this file, or finds it locked."""
    try:
        if path:
            sqlite3.connect(path).close()
        with (
            tempfile.NamedTemporaryFile() as file,
            closing(sqlite3.connect(file.name, isolation_level=None)) as holder,
            closing(sqlite3.connect(file.name, timeout=0)) as other,
        ):
            holder.execute("BEGIN EXCLUSIVE")
            other.execute("SELECT * FROM sqlite_master")
    except sqlite3.OperationalError as cause:
        error = OperationalError(*cause.args)
        error.__cause__ = cause
        return error
    raise AssertionError("SQLite did as it was asked")


def from_postgres(text: str) -> Exception:
    return OperationalError(f'connection to server at "db", port 5432 failed: FATAL:  {text}')


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (from_postgres('password authentication failed for user "shop"'), True),
        (from_postgres('database "shop" does not exist'), True),
        (from_postgres('role "shop" does not exist'), True),
        (from_postgres('no pg_hba.conf entry for host "10.0.0.7", user "shop"'), True),
        (from_postgres("the database system is starting up"), False),
        (from_postgres("sorry, too many clients already"), False),
        (OperationalError("connection failed: Connection refused"), False),
        (OperationalError("failed to resolve host 'db': Name or service not known"), False),
        (OperationalError(1045, "Access denied for user 'shop'"), True),
        (OperationalError(1049, "Unknown database 'shop'"), True),
        (OperationalError(2002, "Can't connect to server on 'db'"), False),
        (OperationalError(1040, "Too many connections"), False),
        (from_sqlite("/nosuch/folder/db.sqlite3"), True),
        (from_sqlite(""), False),
        (InterfaceError("connection already closed"), False),
        # An error of the settings', or a database that is too old for Django.
        (ProgrammingError("invalid connection option"), True),
        (NotSupportedError("PostgreSQL 14 or later is required"), True),
    ],
    ids=str,
)
def test_a_refusal_that_no_waiting_mends_is_told_from_a_database_that_is_away(
    error: Exception, refused: bool
) -> None:
    assert is_refusal(error) is refused
