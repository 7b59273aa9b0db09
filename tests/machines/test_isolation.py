"""Connections lent to a handler: kept when they come back as they went, else thrown away."""

from __future__ import annotations

import pytest
from django.db import connection
from django.db.transaction import atomic

from django_durable_jobs.worker.isolation import clean_connections

pytestmark = pytest.mark.django_db(transaction=True)


def _read() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def test_a_connection_that_a_handler_opened_and_only_read_with_is_kept() -> None:
    connection.close()

    with clean_connections():
        _read()
    session = connection.connection

    assert session is not None
    with clean_connections():
        _read()
    assert connection.connection is session


def test_a_connection_on_which_a_setting_was_changed_is_thrown_away() -> None:
    _read()
    statement = {
        "postgresql": "SET statement_timeout = '5s'",
        "mysql": "SET SESSION sort_buffer_size = 262144",
        "sqlite": "PRAGMA cache_size = 1000",
    }[connection.vendor]

    with clean_connections(), connection.cursor() as cursor:
        cursor.execute(statement)

    assert connection.connection is None


def test_a_connection_left_in_a_transaction_begun_by_raw_sql_is_thrown_away() -> None:
    with clean_connections() as lent, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT COUNT(*) FROM django_durable_jobs_job")

    assert connection.connection is None
    # MySQL's driver does not say what is open; that the connection goes is what counts.
    assert lent.left_open or connection.vendor == "mysql"


def test_a_connection_on_which_transactions_began_and_ended_is_kept() -> None:
    with clean_connections():
        _read()
    session = connection.connection

    with clean_connections() as lent, atomic():
        _read()

    assert connection.connection is session
    assert not lent.left_open


def test_a_connection_that_has_been_idle_for_long_is_opened_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with clean_connections():
        _read()
    session = connection.connection
    monkeypatch.setattr("django_durable_jobs.worker.isolation.IDLE_SECONDS", -1.0)

    with clean_connections():
        _read()

    assert connection.connection is not session
