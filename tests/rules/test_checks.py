"""System checks report what is wrong before anything runs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.core import checks as django_checks
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError
from django.test import override_settings

from django_durable_jobs import checks
from django_durable_jobs.registry import handlers, register_handler, schedule, schedules


@pytest.fixture(autouse=True)
def _own_registries() -> Iterator[None]:
    with handlers.preserved(), schedules.preserved():
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


def send(invoice_id: int) -> None: ...


def schedule_problems(name: str) -> list[tuple[str, str]]:
    """Return id and text of what the check says of the schedule of this name."""
    found = checks.check_schedules()
    return [(str(each.id), each.msg) for each in found if f"schedule {name!r}" in each.msg]


@pytest.mark.parametrize(
    "options",
    [
        {"cron": "0 2 * * *", "timezone": "Europe/Vienna"},
        {"cron": "*/5 * * * *", "catch_up_window": timedelta(days=3.5)},
        {"every": 10, "start": datetime(2026, 1, 1, tzinfo=UTC)},
        {"every": timedelta(days=1), "baseline": "02:30"},
        {"cron": "0 2 * * *", "end": datetime(2001, 1, 1, tzinfo=UTC)},
    ],
)
def test_a_sensible_schedule_has_no_problem(options: dict[str, Any]) -> None:
    register_handler("invoice.send", send)
    schedule("checks.job", job="invoice.send", payload={"invoice_id": 7}, **options)
    schedule("checks.run", run=lambda: None, **options)
    assert schedule_problems("checks.job") + schedule_problems("checks.run") == []


def test_a_schedule_without_anything_to_run_is_an_error() -> None:
    decorate = schedule("checks.empty", every=60)
    ((id, words),) = schedule_problems("checks.empty")
    assert (id, words) == ("durable_jobs.E030", "The schedule 'checks.empty' has nothing to run.")
    decorate(lambda: None)
    assert schedule_problems("checks.empty") == []


def test_a_schedule_of_a_type_without_a_handler_is_an_error() -> None:
    schedule("checks.type", every=60, job="invoice.sent", payload={"invoice_id": 7})
    ((id, words),) = schedule_problems("checks.type")
    assert id == "durable_jobs.E031"
    assert "enqueues jobs of type 'invoice.sent', which no handler" in words
    register_handler("invoice.send", send, aliases=["invoice.sent"])
    assert schedule_problems("checks.type") == []


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ({}, "payload: send needs 'invoice_id'"),
        ({"invoice": 7}, "does not take 'invoice'"),
        ([7], "must be an object, not list"),
        ({"invoice_id": {7}}, "payload.invoice_id: set is not JSON"),
        ({"invoice_id": "x" * 2**18}, "more than the 262,144 bytes"),
    ],
)
def test_a_payload_that_no_tick_could_enqueue_is_an_error(payload: Any, words: str) -> None:
    register_handler("invoice.send", send)
    schedule("checks.payload", every=60, job="invoice.send", payload=payload)
    ((id, found),) = schedule_problems("checks.payload")
    assert id == "durable_jobs.E032"
    assert words in found


def test_meta_must_leave_room_for_what_a_tick_adds() -> None:
    register_handler("invoice.send", send)
    options: dict[str, Any] = {"every": 60, "job": "invoice.send", "payload": {"invoice_id": 7}}
    schedule("checks.full", meta={"x": "x" * 4_080}, **options)
    schedule("checks.room", meta={"x": "x" * 3_990}, **options)
    ((id, words),) = schedule_problems("checks.full")
    assert (id, "meta: too large" in words) == ("durable_jobs.E032", True)
    assert schedule_problems("checks.room") == []


@pytest.mark.parametrize(
    ("retention", "ids"),
    [(200, []), (199, ["durable_jobs.E033"]), (0, []), (-1, []), ("a week", [])],
)
def test_a_window_past_half_of_the_retention_of_ticks_is_an_error(
    retention: Any, ids: list[str]
) -> None:
    schedule("checks.window", every=60, run=lambda: None, catch_up_window=100)
    with override_settings(DURABLE_JOBS={"TICK_RETENTION": retention}):
        found = schedule_problems("checks.window")
    assert [id for id, _ in found] == ids
    assert all("accepted: at most half of TICK_RETENTION (99.5 s)" in words for _, words in found)


@pytest.mark.parametrize(
    ("end", "ids"),
    [
        (datetime(2026, 3, 1, 2, tzinfo=UTC), []),
        (datetime(2026, 3, 1, 1, 59, tzinfo=UTC), ["durable_jobs.W034"]),
    ],
)
def test_a_schedule_that_never_fires_is_warned_of(end: datetime, ids: list[str]) -> None:
    start = datetime(2026, 2, 2, tzinfo=UTC)
    when = {"cron": "0 2 1 * *", "timezone": "UTC"}
    schedule("checks.bounds", run=lambda: None, start=start, end=end, **when)
    assert [id for id, _ in schedule_problems("checks.bounds")] == ids


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        (
            "* 5 * * *",
            "cron * 5 * * * UTC: fires every minute of hour 5; did you mean `0 5 * * *`?",
        ),
        ("0 0 31 * *", "cron 0 0 31 * * UTC: day 31: skips "),
    ],
)
def test_a_likely_slip_is_told_and_fails_no_build(cron: str, words: str) -> None:
    schedule("checks.slip", cron=cron, timezone="UTC", run=lambda: None)
    (found,) = [each for each in checks.check_schedules() if "checks.slip" in each.msg]
    assert found.id == "durable_jobs.I035"
    assert words in found.msg
    assert found.level < django_checks.WARNING


def test_what_clocks_do_to_a_schedule_is_no_slip() -> None:
    schedule("checks.clocks", cron="30 2 * * *", timezone="Europe/Vienna", run=lambda: None)
    assert schedule_problems("checks.clocks") == []


def test_both_bounds_count_as_inside() -> None:
    moment = datetime(2026, 3, 1, 2, tzinfo=UTC)
    for options in ({"cron": "0 2 1 * *"}, {"every": 3600, "baseline": "02:00"}):
        options = {"timezone": "UTC", "start": moment, "end": moment, **options}
        schedule(f"checks.{len(options)}", run=lambda: None, **options)
        assert schedule_problems(f"checks.{len(options)}") == []


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


def own(monkeypatch: pytest.MonkeyPatch, connection: Any) -> list[django_checks.CheckMessage]:
    """Return what is said where jobs live in this database."""
    monkeypatch.setattr(checks, "connections", {"default": connection})
    return checks.check_connection()


@pytest.mark.parametrize(
    ("options", "in_memory", "ids"),
    [
        ({}, False, ["durable_jobs.W022"]),
        ({"transaction_mode": None, "timeout": 20}, False, ["durable_jobs.W022"]),
        ({"transaction_mode": "DEFERRED"}, False, ["durable_jobs.W022"]),
        ({"transaction_mode": "IMMEDIATE"}, False, []),
        ({"transaction_mode": "immediate"}, False, []),
        ({"transaction_mode": "EXCLUSIVE"}, False, []),
        ({}, True, []),
    ],
)
def test_sqlite_is_to_take_its_lock_when_a_transaction_begins(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], in_memory: bool, ids: list[str]
) -> None:
    connection = Connection(
        vendor="sqlite", settings_dict={"OPTIONS": options}, is_in_memory_db=lambda: in_memory
    )
    found = own(monkeypatch, connection)
    assert [message.id for message in found] == ids
    for message in found:
        assert message.hint is not None
        wanted = "DATABASES['default']['OPTIONS'] = {'transaction_mode': 'IMMEDIATE'}"
        assert wanted in message.hint
        assert not message.is_serious()


@pytest.mark.parametrize(("driver", "ids"), [("psycopg", []), ("psycopg2", ["durable_jobs.W021"])])
def test_an_old_driver_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, driver: str, ids: list[str]
) -> None:
    connection = Connection(vendor="postgresql", Database=SimpleNamespace(__name__=driver))
    found = own(monkeypatch, connection)
    assert [message.id for message in found] == ids
    assert all("psycopg[binary]" in str(message.hint) for message in found)


def test_a_wrong_alias_is_left_to_the_check_of_settings() -> None:
    with override_settings(DURABLE_JOBS={"DATABASE": "nosuch"}):
        assert checks.check_connection() == []


@pytest.mark.django_db
def test_the_database_of_this_suite_is_accepted() -> None:
    assert checks.check_databases(databases=["default"]) == []
    assert checks.check_connection() == []
