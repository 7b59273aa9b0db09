"""What `Cron` and `Every` have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from ..errors import InvalidRecurrence
from .zones import local_zone

__all__ = ["Recurrence", "never"]


class Recurrence(ABC):
    """A rule that says when something fires: `Cron` or `Every`. Immutable, equal by value.

    Moments given may be in any time zone and must be aware; moments returned are in UTC.
    """

    __slots__ = ()

    timezone: str | None
    _zone: ZoneInfo | None

    @abstractmethod
    def next_fire(self, after: datetime) -> datetime:
        """Return the first fire strictly after this moment.

        Raises InvalidRecurrence, code cron-no-fire, where there is none before the year 9999, and
        TypeError or ValueError where `after` is no aware datetime.
        """

    @abstractmethod
    def last_fire(self, after: datetime, until: datetime) -> datetime | None:
        """Return the newest fire in (after, until], None where there is none.

        It takes about as long for a hundred years as for an hour.
        """

    @abstractmethod
    def count(self, after: datetime, until: datetime, limit: int) -> tuple[int, datetime | None]:
        """Return how many fires (after, until] has, counted up to `limit`, and the last counted."""

    @property
    @abstractmethod
    def shortest_step(self) -> timedelta:
        """Return the shortest time from one fire to the next, changes of the clocks aside."""

    @property
    def elapses(self) -> bool:
        """Tell whether it follows real elapsed time when the clocks change."""
        return True

    @abstractmethod
    def describe(self) -> str:
        """Return the rule in a line, translated: `every 300 s from 02:30 UTC`."""

    @abstractmethod
    def in_words(self) -> str:
        """Return the rule as a sentence has it, translated: `at 02:00, on Monday to Friday`."""

    def preview(self, n: int, after: datetime) -> list[datetime]:
        """Return the first `n` fires strictly after this moment."""
        fires: list[datetime] = []
        for _ in range(n):
            after = self.next_fire(after)
            fires.append(after)
        return fires

    @property
    def zone(self) -> ZoneInfo:
        """Return the time zone that wall times are in; the project's TIME_ZONE as it is now."""
        return local_zone(self._zone)


def never(what: str) -> InvalidRecurrence:
    """Return the error that says that a rule has no further fire."""
    return InvalidRecurrence(f"{what} has no fire before the year 9999.", code="cron-no-fire")
