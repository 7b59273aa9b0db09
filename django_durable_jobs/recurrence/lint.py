"""Find likely slips in a recurrence rule, and preview its fires with marks at clock changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from functools import lru_cache
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from .base import Recurrence
from .cron import Cron
from .every import Every
from .grammar import Fields
from .opinion import second_opinion
from .words import months, numbers
from .zones import as_utc, first_instant, turns

__all__ = ["PreviewLine", "Slip", "lint", "preview_lines"]

Mark = Literal["", "gap", "overlap"]

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
YEAR = timedelta(days=366)
LONGEST_MONTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


@dataclass(frozen=True, slots=True)
class Slip:
    """A likely slip: a stable `code` for programs, and a sentence for people, translated."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class PreviewLine:
    """One coming fire: in the rule's zone, in UTC, and a mark where the clocks change.

    `gap`: the clocks have just jumped over what it would have fired at, and over the hour before
    it where it follows elapsed time. `overlap`: they show its local time twice.
    """

    local: datetime
    utc: datetime
    mark: Mark


class _Turn(NamedTuple):
    """A change of the clocks: the instant, and the wall times before and after it."""

    at: datetime
    left: datetime
    reached: datetime


def lint(recurrence: Recurrence, after: datetime) -> list[Slip]:
    """Return what in the rule is likely not meant; clock changes are those of the next 366 days."""
    moment = as_utc(after, "after")
    if isinstance(recurrence, Cron):
        return [
            *_every_minute(recurrence.fields),
            *_both_day_fields(recurrence.fields),
            *_missing_days(recurrence.fields),
            *_uneven_steps(recurrence.fields),
            *_another_reading(recurrence, moment),
            *_clock_changes(recurrence, moment),
        ]
    if isinstance(recurrence, Every) and recurrence.baseline is not None:
        return [*_short_last_step(recurrence), *_clock_changes(recurrence, moment)]
    return []


def preview_lines(recurrence: Recurrence, n: int, after: datetime) -> list[PreviewLine]:
    """Return the first `n` fires strictly after this moment, each with its mark."""
    lines = []
    before = as_utc(after, "after")
    for fire in recurrence.preview(n, before):
        lines.append(
            PreviewLine(fire.astimezone(recurrence.zone), fire, _mark(recurrence, before, fire))
        )
        before = fire
    return lines


def _mark(recurrence: Recurrence, before: datetime, fire: datetime) -> Mark:
    zone = recurrence.zone
    wall = _wall(fire, zone)
    if zone.utcoffset(wall) != zone.utcoffset(wall.replace(fold=1)):
        return "overlap"
    for turn in _turns(zone, max(before, fire - HOUR), fire):
        if turn.reached < turn.left:
            continue
        if recurrence.elapses or _lost(recurrence, turn) is not None:
            return "gap"
    return ""


def _turns(zone: ZoneInfo, after: datetime, until: datetime) -> Iterator[_Turn]:
    for at in turns(zone, after, until):
        # The offset from before the change tells what the clocks would have shown.
        yield _Turn(at, _wall(at - SECOND, zone) + SECOND, _wall(at, zone))


@lru_cache(maxsize=64)
def _turns_of_year(zone: ZoneInfo, after: datetime) -> tuple[_Turn, ...]:
    """Return the changes in the 366 days after, kept: a project has many rules in few zones."""
    return tuple(_turns(zone, after, after + YEAR))


def _wall(moment: datetime, zone: ZoneInfo) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def _lost(recurrence: Recurrence, turn: _Turn) -> datetime | None:
    """Return the first time that would fire and that this gap leaves out, None for none."""
    return _first_between(recurrence, turn.left, turn.reached)


def _first_between(recurrence: Recurrence, low: datetime, high: datetime) -> datetime | None:
    """Return the first wall time of the rule in [low, high), of a baseline rule the baseline."""
    if isinstance(recurrence, Cron):
        try:
            wall = recurrence.next_wall(low - datetime.resolution)
        except OverflowError:
            return None
    elif isinstance(recurrence, Every) and recurrence.baseline is not None:
        wall = datetime.combine(low, time.fromisoformat(recurrence.baseline))
        wall += DAY if wall < low else timedelta()
    else:
        return None
    return wall if wall < high else None


def _clock_changes(recurrence: Recurrence, after: datetime) -> Iterator[Slip]:
    """Tell of times that the clocks leave out or show twice within a year."""
    if isinstance(recurrence, Cron) and recurrence.fields.stars[1]:
        return
    by_minute = isinstance(recurrence, Cron) and recurrence.elapses
    zone = recurrence.zone
    midnight = after.replace(hour=0, minute=0, second=0, microsecond=0)
    for turn in _turns_of_year(zone, midnight):
        if turn.at <= after:
            continue
        gap = turn.reached > turn.left
        wall = _first_between(recurrence, *sorted((turn.left, turn.reached)))
        if wall is None:
            continue
        values = {
            "date": f"{wall:%Y-%m-%d}",
            "time": f"{wall:%H:%M}",
            "zone": zone.key,
        }
        if gap and by_minute:
            text = _("on %(date)s %(time)s does not exist in %(zone)s: does not fire then")
        elif gap:
            text = _("on %(date)s %(time)s does not exist in %(zone)s: fires at %(fires)s")
            values["fires"] = f"{_wall(first_instant(wall, zone), zone):%H:%M}"
        elif by_minute:
            text = _("on %(date)s %(time)s comes twice in %(zone)s: fires both times")
        else:
            text = _("on %(date)s %(time)s comes twice in %(zone)s: fires the first time only")
        yield Slip("gap" if gap else "overlap", text % values)


def _every_minute(fields: Fields) -> Iterator[Slip]:
    """Tell of `* 5 * * *`, which is seldom meant, and of `* * 1 * *`."""
    minute, hour, *rest = fields.expression.split()
    if minute not in ("*", "*/1", "0-59"):
        return
    if hour not in ("*", "*/1", "0-23"):
        text = ngettext(
            "fires every minute of hour %(hours)s; did you mean `%(instead)s`?",
            "fires every minute of hours %(hours)s; did you mean `%(instead)s`?",
            len(fields.hour),
        )
        instead = " ".join(["0", hour, *rest])
    elif rest[0] != "*" or rest[2] != "*":
        text = _("fires every minute of its days; did you mean `%(instead)s`?")
        instead = " ".join(["0", "0", *rest])
    else:
        return
    yield Slip("every-minute", text % {"hours": numbers(fields.hour), "instead": instead})


def _another_reading(cron: Cron, after: datetime) -> Iterator[Slip]:
    """Tell where croniter, clocks aside, would fire at another time than we: one of us errs."""
    wall = _wall(after, cron.zone)
    ours, theirs = cron.next_wall(wall), second_opinion(cron, wall)
    if theirs not in (None, ours):
        text = _("croniter reads it otherwise: first at %(theirs)s, not at %(ours)s")
        yield Slip("another-reading", text % {"theirs": theirs, "ours": ours})


def _both_day_fields(fields: Fields) -> Iterator[Slip]:
    """Tell how day of month and day of week go together where both say something."""
    _minute, _hour, dom, _month, dow = fields.expression.split()
    if "*" in (dom, dow):
        return
    if not fields.any_day_field:
        text = _("a day must match both `%(dom)s` and `%(dow)s`, since one of them begins with *")
        yield Slip("both-days", text % {"dom": dom, "dow": dow})
    elif len(fields.dom) == 31 or len(fields.dow) == 7:
        text = _("fires every day: either day field is enough, and `%(full)s` is every day")
        yield Slip("either-day", text % {"full": dom if len(fields.dom) == 31 else dow})
    else:
        text = _("fires on days that match either of `%(dom)s` and `%(dow)s`, not only both")
        yield Slip("either-day", text % {"dom": dom, "dow": dow})


def _missing_days(fields: Fields) -> Iterator[Slip]:
    """Tell of days 29 to 31 that were given by themselves, and that some months do not have."""
    if fields.stars[2]:
        return
    for day in sorted(fields.dom & {29, 30, 31}):
        # In a run, such as 1-31, a day too many is no slip.
        if day - 1 in fields.dom or fields.last_dom:
            continue
        short = {month for month in fields.month if LONGEST_MONTHS[month - 1] < day}
        if short:
            text = _("day %(day)d: skips %(months)s; `L` is the last day of every month")
            yield Slip("missing-day", text % {"day": day, "months": months(short)})
        elif 2 in fields.month:
            text = _("day 29: skips February except in leap years; `L` is the last day of it")
            if fields.month == {2} and fields.dom == {29}:
                text = _("29 February comes in leap years only")
            yield Slip("missing-day", text)


def _uneven_steps(fields: Fields) -> Iterator[Slip]:
    """Tell of steps such as `*/7` in the minutes, after whose last one a shorter one follows."""
    terms = fields.expression.split()
    for term, values, size, what in (
        (terms[0], fields.minute, 60, _("minutes")),
        (terms[1], fields.hour, 24, _("hours")),
        (terms[3], fields.month, 12, _("months")),
    ):
        body, slash, step = term.partition("/")
        if not slash or body != "*" or "," in step or size % int(step) == 0:
            continue
        text = _("`%(term)s` does not divide %(size)d %(what)s: after %(last)d comes %(first)d")
        told = {"term": term, "size": size, "what": what, "last": max(values), "first": min(values)}
        yield Slip("uneven-step", text % told)


def _short_last_step(every: Every) -> Iterator[Slip]:
    if DAY % every.interval:
        text = _("the interval does not divide a day: the step before each %(baseline)s is shorter")
        yield Slip("uneven-step", text % {"baseline": every.baseline})
