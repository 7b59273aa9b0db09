"""The database's clock, as text inside statements and as a value; replaceable in tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Protocol

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.expressions import RawSQL

from ..fields import UTCDateTimeField, time_from_database, to_utc


class Clock(Protocol):
    """What tells the machinery the time."""

    def sql(self, connection: BaseDatabaseWrapper, *, plus: float = 0.0) -> str:
        """Return SQL for the present instant in UTC, ``plus`` seconds later.

        The text has its percent signs doubled: run it with parameters.
        """

    def now(self, connection: BaseDatabaseWrapper) -> datetime:
        """Return the present instant, aware in UTC."""


class DatabaseClock:
    """Ask the database, so that hosts whose clocks are hours apart agree."""

    def sql(self, connection: BaseDatabaseWrapper, *, plus: float = 0.0) -> str:
        if connection.vendor == "postgresql":
            # Statement time: now() stands still for as long as a transaction is open.
            base = "STATEMENT_TIMESTAMP()"
            return base if not plus else f"({base} + INTERVAL '{plus:.6f} seconds')"
        if connection.vendor == "mysql":
            # NOW() follows the session's time zone.
            base = "UTC_TIMESTAMP(6)"
            return base if not plus else f"({base} + INTERVAL {plus * 1e6:.0f} MICROSECOND)"
        return f"(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now', '{plus:+.3f} seconds') || '000')"

    def now(self, connection: BaseDatabaseWrapper) -> datetime:
        sql = self.sql(connection)
        if connection.vendor == "postgresql":
            sql += " AT TIME ZONE 'UTC'"
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {sql}", [])
            value = time_from_database(cursor.fetchone()[0])
        assert value is not None
        return value


class ManualClock:
    """A clock that stands still until it is told otherwise."""

    def __init__(self, now: datetime) -> None:
        self.value = to_utc(now)

    def advance(self, seconds: float) -> None:
        """Move ``seconds`` on (or back)."""
        self.move_to(self.value + timedelta(seconds=seconds))

    def move_to(self, now: datetime) -> None:
        """Let it be ``now``."""
        self.value = to_utc(now)

    def sql(self, connection: BaseDatabaseWrapper, *, plus: float = 0.0) -> str:
        value = self.value + timedelta(seconds=plus)
        text = value.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
        if connection.vendor == "postgresql":
            return f"TIMESTAMPTZ '{text}+00'"
        return f"CAST('{text}' AS DATETIME(6))" if connection.vendor == "mysql" else f"'{text}'"

    def now(self, connection: BaseDatabaseWrapper) -> datetime:
        return self.value


def now_expression(connection: BaseDatabaseWrapper) -> RawSQL:
    """Return the present instant as an expression, for the ORM's updates."""
    return RawSQL(_current.sql(connection), [], output_field=UTCDateTimeField())  # noqa: S611


_current: Clock = DatabaseClock()


def current_clock() -> Clock:
    """Return the clock that this process goes by."""
    return _current


@contextmanager
def use_clock(clock: Clock) -> Iterator[None]:
    """Let the whole process, every thread of it, go by ``clock`` inside the block."""
    global _current
    previous, _current = _current, clock
    try:
        yield
    finally:
        _current = previous
