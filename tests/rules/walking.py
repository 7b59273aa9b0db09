"""The rule for changes of the clocks by walking: slow, plain, and without PEP 495's folds."""

from __future__ import annotations

import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from django_durable_jobs.recurrence import Cron

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
# Longer than any time that clocks were put back by since 1970, so that a walk which begins so much
# earlier knows the latest time they showed.
LEAD = timedelta(hours=4)


class Turn(NamedTuple):
    """One change of a zone's offset."""

    zone: str
    at: datetime
    before: timedelta
    after: timedelta

    @property
    def shift(self) -> timedelta:
        return self.after - self.before


class Walk:
    """The wall clocks of a zone at each whole minute of (after, until]."""

    def __init__(self, zone: ZoneInfo, after: datetime, until: datetime) -> None:
        # Each minute, and the wall times that its clocks passed for the first time: one, or all
        # that a jump left out, or none.
        self.minutes: list[tuple[datetime, datetime, list[datetime]]] = []
        moment = after - LEAD
        latest = _shown(moment, zone)
        while (moment := moment + MINUTE) <= until:
            shown = _shown(moment, zone)
            new = [shown - back * MINUTE for back in range((shown - latest) // MINUTE)]
            latest = max(latest, shown)
            if moment > after:
                self.minutes.append((moment, shown, new))

    def fires(self, cron: Cron) -> list[datetime]:
        """Return when the expression fires on the way."""
        return [
            moment
            for moment, shown, new in self.minutes
            if (matches(cron, shown) if cron.elapses else any(matches(cron, at) for at in new))
        ]


def matches(cron: Cron, wall: datetime) -> bool:
    """Tell whether a wall time matches an expression without `L` and `#`."""
    if wall.minute not in cron.minute or wall.hour not in cron.hour:
        return False
    by_number, by_weekday = wall.day in cron.dom, wall.isoweekday() % 7 in cron.dow
    dom, dow = cron.expression.split()[2], cron.expression.split()[4]
    either = not dom.startswith("*") and not dow.startswith("*")
    by_day = by_number or by_weekday if either else by_number and by_weekday
    return by_day and wall.month in cron.month


def zone_names() -> list[str]:
    # The two are no zones: the host's own, and none.
    return sorted(zoneinfo.available_timezones() - {"localtime", "Factory"})


def turns(name: str, after: datetime, until: datetime, step: timedelta) -> Iterator[Turn]:
    """Yield the changes of a zone's offset in (after, until]; not two within one step."""
    zone = ZoneInfo(name)
    low, before = after, _offset(after, zone)
    while low < until:
        high = low + step
        if (offset := _offset(high, zone)) != before:
            yield Turn(name, _first(low, high, before, zone), before, offset)
        low, before = high, offset


def _first(low: datetime, high: datetime, before: timedelta, zone: ZoneInfo) -> datetime:
    while high - low > SECOND:
        middle = (low + (high - low) / 2).replace(microsecond=0)
        low, high = (middle, high) if _offset(middle, zone) == before else (low, middle)
    return high


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta:
    offset = moment.astimezone(zone).utcoffset()
    assert offset is not None
    return offset


def _shown(moment: datetime, zone: ZoneInfo) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None)


def utc(text: str) -> datetime:
    """Read a moment in UTC: `2026-03-08 07:00`."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)
