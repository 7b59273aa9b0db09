"""System checks report what is wrong before anything runs."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from django.core import checks as django_checks
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError
from django.test import override_settings

from django_durable_jobs import checks
from django_durable_jobs.registry import handlers, register_handler


@pytest.fixture(autouse=True)
def _own_handlers() -> Iterator[None]:
    with handlers.preserved():
        yield


class Connection(SimpleNamespace):
    """A connection to a database of some version, or to none."""

    vendor = "mysql"
    error: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("mysql_") and self.error is not None:
            raise self.error
        raise AttributeError(name)


class NoMigrations:
    def allow_migrate(self, alias: str, app: str, **hints: Any) -> bool:
        return app != "django_durable_jobs"


def sqlite(*version: int) -> Connection:
    return Connection(vendor="sqlite", Database=SimpleNamespace(sqlite_version_info=version))


def mysql(*version: int, mariadb: bool = False) -> Connection:
    return Connection(mysql_is_mariadb=mariadb, mysql_version=version)


def checked(monkeypatch: pytest.MonkeyPatch, connection: Any) -> list[django_checks.CheckMessage]:
    monkeypatch.setattr(checks, "connections", {"default": connection})
    return checks.check_databases(databases=["default"])


def test_problems_of_settings_are_errors() -> None:
    with override_settings(DURABLE_JOBS={"CONCURENCY": 3, "LEASE": 5}):
        unknown, lease = checks.check_settings()
    assert (unknown.id, lease.id) == ("durable_jobs.E002", "durable_jobs.E005")
    assert unknown.hint == "Did you mean 'CONCURRENCY'?"
    assert "accepted: at least two HEARTBEATs" in lease.msg
    assert unknown.is_serious()


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({}, []),
        ({"on_interrupt": "keep"}, []),
        ({"on_interrupt": "requeue", "max_attempts": 2}, []),
        ({"on_interrupt": "requeue"}, ["durable_jobs.E010"]),
    ],
)
def test_a_handler_that_repeats_needs_attempts(options: dict[str, Any], ids: list[str]) -> None:
    register_handler("checks.repeat", lambda: None, **options)
    found = [message for message in checks.check_handlers() if "checks.repeat" in message.msg]
    assert [message.id for message in found] == ids


@pytest.mark.parametrize(
    ("connection", "words"),
    [
        (sqlite(3, 35, 0), ""),
        (sqlite(3, 34, 1), "The database 'default' is SQLite 3.34.1; accepted: 3.35 or later."),
        (mysql(8, 0, 0), ""),
        (mysql(5, 7, 44), "is MySQL 5.7.44; accepted: 8.0 or later."),
        (mysql(10, 6, 0, mariadb=True), ""),
        (mysql(10, 5, 27, mariadb=True), "is MariaDB 10.5.27; accepted: 10.6 or later."),
        (Connection(vendor="postgresql", display_name="PostgreSQL"), ""),
    ],
)
def test_databases_that_are_too_old_are_refused(
    monkeypatch: pytest.MonkeyPatch, connection: Connection, words: str
) -> None:
    found = checked(monkeypatch, connection)
    assert [message.id for message in found] == (["durable_jobs.E020"] if words else [])
    assert all(words in message.msg for message in found)


@pytest.mark.parametrize(
    "error", [OperationalError("no server"), ImproperlyConfigured("no driver"), OSError()]
)
def test_a_database_out_of_reach_does_not_crash_the_check(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    assert checked(monkeypatch, Connection(error=error)) == []


def test_no_database_is_touched_unasked() -> None:
    assert checks.check_databases() == []


def test_databases_without_our_tables_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with override_settings(DATABASE_ROUTERS=[NoMigrations()]):
        assert checked(monkeypatch, sqlite(3, 1)) == []


def test_the_checks_are_registered() -> None:
    with override_settings(DURABLE_JOBS={"X": 1}):
        found = django_checks.run_checks(tags=["durable_jobs"])
    assert "durable_jobs.E002" in [message.id for message in found]


def test_the_database_of_this_suite_is_accepted(django_db_blocker: Any) -> None:
    with django_db_blocker.unblock():
        assert checks.check_databases(databases=["default"]) == []
