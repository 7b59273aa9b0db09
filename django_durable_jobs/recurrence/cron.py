"""Cron expressions: which wall times match, and the instants at which they fire.

Matching steps over days, never over minutes. For changes of the clocks the rule is Debian cron's
(SPEC 5): an expression with a fixed minute and hour fires once a matching time, at the end of the
gap that swallowed it and at the first of two; one whose minute or hour begins with `*` follows
real elapsed time: it fires at every instant whose wall time matches.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

from ..errors import InvalidRecurrence
from .base import Recurrence, never
from .grammar import Fields, parse, quoted
from .words import cron_in_words, describe_cron
from .zones import (
    as_utc,
    first_instant,
    instants,
    local_zone,
    name_of_zone,
    offset_at,
    turn_near,
    zone_named,
)

__all__ = ["Cron"]

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
MICROSECOND = timedelta(microseconds=1)
# Of common and of leap years.
LENGTHS = [
    (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31),
    (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31),
]


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Cron(Recurrence):
    """A cron expression of five fields, or a shorthand such as `@daily`, in a time zone.

    Lists, ranges, steps and names; Sunday is 0 and 7; `n/s` is from n to the end of the field in
    steps of s; `L` is the last day of the month, `fri#2` its second Friday, `L5` its last. Where
    neither day field begins with `*`, a day matches by either of them, else by both (Vixie cron).
    `timezone` is an IANA name or a ZoneInfo, kept by its name; None is the project's TIME_ZONE,
    looked up when it is used.

    `expression` is normalised: one blank between the fields, small letters, shorthands written
    out. `minute`, `hour`, `dom`, `month` and `dow` are sets of numbers, Sunday as 0; `fields` has
    `L`, `fri#2` and `L5` as well.

    Raises InvalidRecurrence with the code invalid-cron or invalid-timezone, or cron-no-fire for a
    date that never comes.
    """

    expression: str
    timezone: str | None
    fields: Fields = field(compare=False)
    _zone: ZoneInfo | None = field(compare=False)
    # The next larger minute and hour that match, by minute and hour; -1 for none.
    _minutes: tuple[int, ...] = field(compare=False)
    _hours: tuple[int, ...] = field(compare=False)
    _first_of_day: tuple[int, int] = field(compare=False)
    # The matching days of a month by its first day of week and its length, filled as needed.
    _days: dict[tuple[int, int], tuple[int, ...]] = field(compare=False)

    def __init__(self, expression: str, timezone: str | ZoneInfo | None = None) -> None:
        fields, timezone = parse(expression), name_of_zone(timezone)
        keep = object.__setattr__
        keep(self, "expression", fields.expression)
        keep(self, "fields", fields)
        keep(self, "timezone", timezone)
        keep(self, "_zone", None if timezone is None else zone_named(timezone))
        keep(self, "_minutes", _following(fields.minute, 60))
        keep(self, "_hours", _following(fields.hour, 24))
        keep(self, "_first_of_day", (min(fields.hour), min(fields.minute)))
        keep(self, "_days", {})
        if not self._ever_comes():
            raise InvalidRecurrence(
                f"Cron field day of month: {quoted(fields.expression)} names dates that never "
                "come; accepted: at least one day that one of its months has.",
                code="cron-no-fire",
            )

    def __repr__(self) -> str:
        zone = "" if self.timezone is None else f", timezone={self.timezone!r}"
        return f"Cron({self.expression!r}{zone})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Cron, (self.expression, self.timezone)

    @property
    def minute(self) -> frozenset[int]:
        return self.fields.minute

    @property
    def hour(self) -> frozenset[int]:
        return self.fields.hour

    @property
    def dom(self) -> frozenset[int]:
        return self.fields.dom

    @property
    def month(self) -> frozenset[int]:
        return self.fields.month

    @property
    def dow(self) -> frozenset[int]:
        return self.fields.dow

    @property
    def elapses(self) -> bool:
        """Tell whether its minute or hour begins with `*`."""
        return self.fields.stars[0] or self.fields.stars[1]

    def describe(self) -> str:
        return describe_cron(self.expression, self.zone.key)

    def in_words(self) -> str:
        return cron_in_words(self.fields)

    def next_fire(self, after: datetime) -> datetime:
        moment = as_utc(after, "after")
        zone = local_zone(self._zone)
        try:
            if self.fields.stars[0] or self.fields.stars[1]:
                return self._next_elapsed(moment, zone)
            wall = moment.astimezone(zone).replace(tzinfo=None)
            while True:
                wall = self.next_wall(wall)
                fire = first_instant(wall, zone)
                if fire > moment:
                    return fire
        except OverflowError:
            raise never(repr(self)) from None

    def _next_elapsed(self, after: datetime, zone: ZoneInfo) -> datetime:
        local = after.astimezone(zone)
        wall = local.replace(tzinfo=None, fold=0)
        shown = instants(wall, zone)
        if len(shown) == 2 and local.fold == 0:
            # The clocks will go back over this time: what shows again comes before what is new.
            turn = turn_near(wall, zone)
            shown = instants(self.next_wall(wall), zone)
            if shown and shown[0] < turn:
                return shown[0]
            wall = turn.astimezone(zone).replace(tzinfo=None) - MICROSECOND
        while True:
            wall = self.next_wall(wall)
            shown = instants(wall, zone)
            for fire in shown:
                if fire > after:
                    return fire
            if not shown:
                reached = turn_near(wall, zone).astimezone(zone).replace(tzinfo=None)
                wall = max(wall, reached - MICROSECOND)

    def next_wall(self, wall: datetime) -> datetime:
        """Return the first wall time after this one that matches; both are naive.

        Raises OverflowError past the year 9999.
        """
        year, month, day, hour = wall.year, wall.month, wall.day, wall.hour
        if month in self.fields.month and day in self._days_of(year, month):
            if hour in self.fields.hour:
                minute = self._minutes[wall.minute]
                if minute >= 0:
                    return datetime(year, month, day, hour, minute)
            hour = self._hours[hour]
            if hour >= 0:
                return datetime(year, month, day, hour, self._first_of_day[1])
        while True:
            if month in self.fields.month:
                days = self._days_of(year, month)
                index = bisect_right(days, day)
                if index < len(days):
                    return datetime(year, month, days[index], *self._first_of_day)
            day = 0
            month += 1
            if month == 13:
                month = 1
                year += 1
                if year > 9999:
                    raise OverflowError

    def _days_of(self, year: int, month: int) -> tuple[int, ...]:
        leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        key = (date(year, month, 1).isoweekday() % 7, LENGTHS[leap][month - 1])
        days = self._days.get(key)
        if days is None:
            days = self._days[key] = self.fields.days(*key)
        return days

    def _ever_comes(self) -> bool:
        """Tell whether some month has a matching day.

        Each month begins on each day of the week in some year, a leap February too: forty years
        later at most. So this decides without a search.
        """
        lengths = {LENGTHS[leap][month - 1] for leap in (0, 1) for month in self.fields.month}
        return any(self.fields.days(first, length) for length in lengths for first in range(7))

    @property
    def shortest_step(self) -> timedelta:
        times = sorted(60 * hour + minute for hour in self.hour for minute in self.minute)
        within = [later - earlier for earlier, later in pairwise(times)]
        # Over midnight, from the last time of a day to the first of the next that matches.
        over = 1_440 * self._fewest_days() + times[0] - times[-1]
        return timedelta(minutes=min([*within, over]))

    def _fewest_days(self) -> int:
        """Return how many days lie between two matching days at least.

        In 28 years each month begins on each day of the week, a leap February too.
        """
        fewest, before = 366 * 8, None
        for year in range(2001, 2029):
            for month in sorted(self.month):
                for day in self._days_of(year, month):
                    number = date(year, month, day).toordinal()
                    if before is not None:
                        fewest = min(fewest, number - before)
                    before = number
                    if fewest == 1:
                        return 1
        return fewest

    def last_fire(self, after: datetime, until: datetime) -> datetime | None:
        after, until = as_utc(after, "after"), as_utc(until, "until")
        # Look back in growing strides for a moment that has a fire between itself and `until`,
        # then halve the stretch in which the newest of these fires may be.
        low, high, stride = until, until, HOUR
        while low > after:
            high = low
            low = after if low - after <= stride else low - stride
            if (fire := self._next_until(low, until)) is not None:
                break
            stride *= 4
        else:
            return None
        newest = fire
        while high - newest > SECOND:
            middle = newest + (high - newest) / 2
            if (fire := self._next_until(middle, until)) is None:
                high = middle
            else:
                newest = fire
        return newest  # no two fires are as near to each other as a second

    def _next_until(self, after: datetime, until: datetime) -> datetime | None:
        try:
            fire = self.next_fire(after)
        except InvalidRecurrence:
            return None
        return fire if fire <= until else None

    def count(self, after: datetime, until: datetime, limit: int) -> tuple[int, datetime | None]:
        after, until = as_utc(after, "after"), as_utc(until, "until")
        zone = self.zone
        a_day = len(self.fields.minute) * len(self.fields.hour)
        day = after.astimezone(zone).date()
        number, last = 0, None
        while number < limit and (fire := self._next_until(after, until)) is not None:
            before, number, after, last = after, number + 1, fire, fire
            if 1 < a_day <= limit - number + 1 and day != (day := fire.astimezone(zone).date()):
                # The rest of a day without a change of the clocks is counted in one step.
                newest = self._last_of_even_day(day, before, zone)
                if newest is not None and newest <= until:
                    number, after, last = number + a_day - 1, newest, newest
        return number, last

    def _last_of_even_day(self, day: date, before: datetime, zone: ZoneInfo) -> datetime | None:
        """Return the last fire of a local day that has one.

        None where the day had begun at `before`, or clocks change in it.
        """
        midnight = first_instant(datetime.combine(day, time()), zone)
        if midnight <= before or offset_at(midnight - SECOND, zone) != offset_at(
            midnight + DAY, zone
        ):
            return None
        return midnight + timedelta(hours=max(self.fields.hour), minutes=max(self.fields.minute))


def _following(values: frozenset[int], size: int) -> tuple[int, ...]:
    """Return for each number below `size` the next larger one that matches, -1 for none."""
    following = [-1] * size
    for number in range(size - 1, 0, -1):
        following[number - 1] = number if number in values else following[number]
    return tuple(following)
