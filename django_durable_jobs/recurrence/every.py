"""Intervals: a grid from an anchor, or a chain from a time of each local day."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from typing import Any, Self
from zoneinfo import ZoneInfo

from ..errors import InvalidRecurrence
from .base import Recurrence, never
from .grammar import quoted
from .words import describe_every, every_in_words, seconds
from .zones import as_utc, first_instant, name_of_zone, zone_named

__all__ = ["Every", "next_baseline_fire"]

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)
HUNDRED_YEARS = timedelta(days=36_525)


@dataclass(frozen=True, slots=True, repr=False)
class Every(Recurrence):
    """An interval of real elapsed time: a timedelta or seconds, 1 second to 100 years.

    Without a baseline it fires at the anchor plus one, two, three … intervals; without an anchor
    either, one interval after whatever moment is asked about.

    With a `baseline`, a time of day ("02:30", "2:30" or a `time` of whole minutes) in the zone,
    a chain starts there anew each local day and goes on up to, not including, the next day's
    baseline. A baseline inside a gap of the clocks is the first instant after it, one that shows
    twice the first. The interval is a day at most then, and a day means: at the baseline.

    `timezone` is an IANA name or a ZoneInfo, kept by its name; None is the project's TIME_ZONE,
    looked up when it is used. `anchor` is an aware datetime. Raises InvalidRecurrence with the
    code invalid-interval, invalid-baseline or invalid-timezone.
    """

    interval: timedelta
    baseline: str | None = None
    timezone: str | None = None
    anchor: datetime | None = None
    _zone: ZoneInfo | None = field(init=False, compare=False)
    _at: time = field(init=False, compare=False)

    def __init__(
        self,
        interval: timedelta | float,
        baseline: str | time | None = None,
        timezone: str | ZoneInfo | None = None,
        anchor: datetime | None = None,
    ) -> None:
        every = _interval(interval)
        timezone = name_of_zone(timezone)
        at = None if baseline is None else _time_of_day(baseline)
        if at is not None and every > DAY:
            raise InvalidRecurrence(
                f"The interval is {seconds(every)} s; accepted with a baseline: a day at most.",
                code="invalid-interval",
            )
        if at is not None and anchor is not None:
            raise InvalidRecurrence(
                "Both baseline and anchor are given; accepted: one of them.",
                code="invalid-baseline",
            )
        keep = object.__setattr__
        keep(self, "interval", every)
        keep(self, "baseline", None if at is None else f"{at:%H:%M}")
        keep(self, "timezone", timezone)
        keep(self, "anchor", None if anchor is None else as_utc(anchor, "anchor"))
        keep(self, "_zone", None if timezone is None else zone_named(timezone))
        keep(self, "_at", at or time())

    def __repr__(self) -> str:
        given = [f", {name}={value!r}" for name, value in self._given() if value is not None]
        return f"Every({self.interval!r}{''.join(given)})"

    def _given(self) -> list[tuple[str, object]]:
        return [(name, getattr(self, name)) for name in ("baseline", "timezone", "anchor")]

    def __reduce__(self) -> tuple[Any, ...]:
        return Every, (self.interval, self.baseline, self.timezone, self.anchor)

    def with_anchor(self, moment: datetime) -> Self:
        """Return the same rule on the grid of this moment; a baseline needs none and stays."""
        if self.baseline is not None:
            return self
        return type(self)(self.interval, None, self.timezone, moment)

    @property
    def shortest_step(self) -> timedelta:
        # Before each baseline there is what an interval that does not divide a day leaves of it.
        rest = timedelta() if self.baseline is None else DAY % self.interval
        return rest or self.interval

    def describe(self) -> str:
        return describe_every(self.interval, self.baseline, self.zone.key)

    def in_words(self) -> str:
        return every_in_words(self.interval, self.baseline)

    def next_fire(self, after: datetime) -> datetime:
        moment = as_utc(after, "after")
        try:
            if self.baseline is None:
                start = moment if self.anchor is None else self.anchor
                return start + max((moment - start) // self.interval + 1, 1) * self.interval
            day, start = self._chain(moment)
            following = self._start(day + DAY)
            if self.interval == DAY:
                return following
            return min(following, start + ((moment - start) // self.interval + 1) * self.interval)
        except OverflowError:
            raise never(repr(self)) from None

    def last_fire(self, after: datetime, until: datetime) -> datetime | None:
        after, until = as_utc(after, "after"), as_utc(until, "until")
        if until <= after:
            return None
        if self.baseline is None:
            start = after if self.anchor is None else self.anchor
            steps = (until - start) // self.interval
            if steps < 1:
                return None
        else:
            start = self._chain(until)[1]
            steps = 0 if self.interval == DAY else (until - start) // self.interval
        fire = start + steps * self.interval
        return fire if fire > after else None

    def count(self, after: datetime, until: datetime, limit: int) -> tuple[int, datetime | None]:
        after, until = as_utc(after, "after"), as_utc(until, "until")
        if until <= after:
            return 0, None
        if self.baseline is not None:
            return self._count_chains(after, until, limit)
        start = after if self.anchor is None else self.anchor
        first = max((after - start) // self.interval + 1, 1)
        number = min((until - start) // self.interval - first + 1, limit)
        if number < 1:
            return 0, None
        return number, start + (first + number - 1) * self.interval

    def _count_chains(
        self, after: datetime, until: datetime, limit: int
    ) -> tuple[int, datetime | None]:
        """Count day by day, with arithmetic inside the day."""
        number, last = 0, None
        day, start = self._chain(after)
        first = (after - start) // self.interval + 1
        while number < limit and start <= until:
            following = self._start(day + DAY)
            steps = -((start - following) // self.interval)  # rounded up
            if self.interval == DAY:
                steps = min(steps, 1)
            new = min(steps, (until - start) // self.interval + 1) - first
            if new > 0:
                new = min(new, limit - number)
                number += new
                last = start + (first + new - 1) * self.interval
            day, start, first = day + DAY, following, 0
        return number, last

    def _chain(self, moment: datetime) -> tuple[date, datetime]:
        """Return the local day whose chain the moment is in, and where that chain starts."""
        # Clocks that go back past midnight show a day again, so the search begins a day later.
        try:
            day = moment.astimezone(self.zone).date() + DAY
            while (start := self._start(day)) > moment:
                day -= DAY
        except OverflowError:
            raise never(repr(self)) from None
        return day, start

    def _start(self, day: date) -> datetime:
        return first_instant(datetime.combine(day, self._at), self.zone)


def next_baseline_fire(time_of_day: str | time, timezone: str | None, after: datetime) -> datetime:
    """Return the first instant strictly after `after` at which a local day reaches its baseline.

    `time_of_day` is "HH:MM", "H:MM" or a `time` of whole minutes, `timezone` an IANA name or None
    for the project's. Inside a gap of the clocks it is the first instant after the gap, of two the
    first. Raises InvalidRecurrence, code invalid-baseline or invalid-timezone.
    """
    return Every(DAY, _time_of_day(time_of_day), timezone).next_fire(after)


def _interval(value: object) -> timedelta:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        # An int may be too large for a timedelta, and NaN is none.
        in_range = 1 <= value <= HUNDRED_YEARS.total_seconds()
        interval = timedelta(seconds=value) if in_range else timedelta()
    elif isinstance(value, timedelta):
        interval = value
    else:
        kind = type(value).__name__
        raise InvalidRecurrence(
            f"The interval is of type {kind}; accepted: a timedelta or seconds.",
            code="invalid-interval",
        )
    if not SECOND <= interval <= HUNDRED_YEARS:
        raise InvalidRecurrence(
            "The interval is out of range; accepted: 1 second to 100 years.",
            code="invalid-interval",
        )
    return interval


def _time_of_day(value: object) -> time:
    told = quoted(value) if isinstance(value, str) else f"of type {type(value).__name__}"
    if isinstance(value, time):
        if value.tzinfo is None and value == value.replace(second=0, microsecond=0):
            return value.replace(fold=0)
        told = "a time with a zone or with seconds"
    elif isinstance(value, str) and re.fullmatch("[0-9]{1,2}:[0-9]{2}", value):
        hour, minute = map(int, value.split(":"))
        if hour < 24 and minute < 60:
            return time(hour, minute)
    raise InvalidRecurrence(
        f"The baseline is {told}; accepted: a time of day HH:MM, from 00:00 to 23:59.",
        code="invalid-baseline",
    )
