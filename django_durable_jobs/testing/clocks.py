"""The time in tests: a clock that stands still, and one that keeps up with Python's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime, timedelta

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone

from ..db import DatabaseClock, ManualClock, current_clock, use_clock


class TestClock(ManualClock):
    """A clock that stands still until it is moved.

    ``value`` is its time, aware in UTC.
    """

    __test__ = False  # not for pytest to collect

    def __init__(
        self, start: datetime, follower: Callable[[datetime], object] | None = None
    ) -> None:
        self._follower = follower
        self.move_to(start)

    def advance(self, by: float | timedelta) -> None:
        """Move on by seconds or a timedelta."""
        self.move_to(self.value + (by if isinstance(by, timedelta) else timedelta(seconds=by)))

    def move_to(self, now: datetime) -> None:
        """Let it be ``now``; a naive time is taken in the current time zone."""
        super().move_to(aware(now))
        if self._follower is not None:
            self._follower(self.value)


@contextmanager
def clock(
    start: datetime | None = None, *, follower: Callable[[datetime], object] | None = None
) -> Iterator[TestClock]:
    """Have jobs go by a clock that stands still at ``start`` (None: now, as Python tells it).

    What the database is asked for goes by it too: when a job is due, its times, leases. What
    Python tells (``timezone.now()``) does not: ``follower`` is called with each new time, and may
    be the ``move_to`` of time-machine or freezegun.
    """
    clock = TestClock(datetime.now(UTC) if start is None else start, follower)
    with use_clock(clock):
        yield clock


class LaterClock(DatabaseClock):
    """Tell the database's time, or Python's where that is ahead: what was due "now" there is due.

    SQLite's clock has milliseconds only, a server's may be a little behind, and a tool that
    freezes Python's time does not reach it.
    """

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._ahead = 0.0
        behind = (datetime.now(UTC) - super().now(connection)).total_seconds()
        self._ahead = max(behind, 0.0) + 0.001

    def sql(self, connection: BaseDatabaseWrapper, *, plus: float = 0.0) -> str:
        return super().sql(connection, plus=plus + self._ahead)


def ticking(using: str) -> AbstractContextManager[object]:
    """Go by the clock that a test has put in place, else by one that keeps up with Python's."""
    given = current_clock()
    return use_clock(LaterClock(connections[using])) if _is_usual(given) else nullcontext()


@contextmanager
def standing(using: str) -> Iterator[ManualClock]:
    """Yield the clock that a test has put in place, else one for the length of this block."""
    given = current_clock()
    if isinstance(given, ManualClock):
        yield given
        return
    with ticking(using):
        own = TestClock(current_clock().now(connections[using]))
    with use_clock(own):
        yield own


def aware(value: datetime) -> datetime:
    """Return the time; a naive one is taken in the current time zone."""
    return timezone.make_aware(value) if timezone.is_naive(value) else value


def _is_usual(clock: object) -> bool:
    return type(clock) is DatabaseClock
