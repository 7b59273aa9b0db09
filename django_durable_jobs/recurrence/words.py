"""Recurrence rules in words, translated: in one line for lists, in a sentence for people."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import timedelta

from django.utils.dates import MONTHS, WEEKDAYS
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from .grammar import LAST, Fields

__all__ = [
    "cron_in_words",
    "describe_cron",
    "describe_every",
    "every_in_words",
    "joined",
    "months",
    "numbers",
    "seconds",
    "weekday",
]

_SECOND = timedelta(seconds=1)


def describe_cron(expression: str, timezone: str) -> str:
    """Return `cron 0 2 * * * Europe/Vienna`."""
    return _("cron %(expression)s %(timezone)s") % {
        "expression": expression,
        "timezone": timezone,
    }


def describe_every(interval: timedelta, baseline: str | None, timezone: str) -> str:
    """Return `every 300 s from 02:30 UTC`."""
    values = {"seconds": seconds(interval), "baseline": baseline, "timezone": timezone}
    if baseline is None:
        return _("every %(seconds)s s") % values
    return _("every %(seconds)s s from %(baseline)s %(timezone)s") % values


def cron_in_words(fields: Fields) -> str:
    """Return `at 02:00, on Monday to Friday`."""
    months_part = _("in %(months)s") % {"months": months(fields.month)}
    parts = [_times(fields), _days(fields), "" if len(fields.month) == 12 else months_part]
    return ", ".join(part for part in parts if part)


def every_in_words(interval: timedelta, baseline: str | None) -> str:
    """Return `every 5 minutes, from 02:30 each day`."""
    number = interval // timedelta(seconds=1)
    if interval % timedelta(minutes=1):
        words = ngettext(
            "every second", "every %(seconds)s seconds", 1 if interval == _SECOND else 2
        )
        told = words % {"seconds": seconds(interval)}
    elif number % 3600:
        number //= 60
        told = ngettext("every minute", "every %(number)d minutes", number)
    elif number % 86_400:
        number //= 3600
        told = ngettext("every hour", "every %(number)d hours", number)
    else:
        number //= 86_400
        told = ngettext("every day", "every %(number)d days", number)
    told %= {"number": number}
    if baseline is None:
        return told
    return _("%(interval)s, from %(baseline)s each day") % {"interval": told, "baseline": baseline}


def _times(fields: Fields) -> str:
    minutes, hours = fields.minute, fields.hour
    if len(minutes) * len(hours) <= 4:
        times = [f"{hour:02}:{minute:02}" for hour in sorted(hours) for minute in sorted(minutes)]
        return _("at %(times)s") % {"times": joined(times)}
    minute_step = _step(minutes, 60)
    if minute_step:
        words = ngettext("every minute", "every %(number)d minutes", minute_step)
        told = words % {"number": minute_step}
    else:
        words = ngettext("at minute %(minutes)s", "at minutes %(minutes)s", len(minutes))
        told = words % {"minutes": numbers(minutes)}
    if len(hours) == 24:
        return told if minute_step else _("%(times)s of every hour") % {"times": told}
    words = ngettext("%(times)s of hour %(hours)s", "%(times)s of hours %(hours)s", len(hours))
    return words % {"times": told, "hours": numbers(hours)}


def _days(fields: Fields) -> str:
    by_number = _by_number(fields)
    by_weekday = _by_weekday(fields)
    if fields.any_day_field:
        return _("%(one)s or %(other)s") % {"one": by_number, "other": by_weekday}
    if by_number and by_weekday:
        return _("%(one)s if it is also %(other)s") % {"one": by_number, "other": by_weekday}
    return by_number or by_weekday or pgettext("on which days", "every day")


def _by_number(fields: Fields) -> str:
    if len(fields.dom) == 31 and fields.stars[2]:
        return ""
    last = [_("the last day of the month")] if fields.last_dom else []
    if not fields.dom:
        return _("on the last day of the month")
    words = ngettext("on day %(days)s", "on days %(days)s", len(fields.dom))
    return words % {"days": joined([*_runs(fields.dom), *last])}


def _by_weekday(fields: Fields) -> str:
    if len(fields.dow) == 7 and fields.stars[4]:
        return ""
    ordinals = {
        1: _("the first %(day)s"),
        2: _("the second %(day)s"),
        3: _("the third %(day)s"),
        4: _("the fourth %(day)s"),
        5: _("the fifth %(day)s"),
        LAST: _("the last %(day)s"),
    }
    # The week begins on Monday here, so that `5-7` is one run.
    plain = _runs({(day - 1) % 7 for day in fields.dow}, lambda day: str(WEEKDAYS[day]))
    nth = [ordinals[week] % {"day": weekday(day)} for day, week in sorted(fields.nth_dow)]
    return _("on %(days)s") % {"days": joined([*plain, *nth])}


def weekday(day: int) -> str:
    """Return the name of a day of the week, Sunday being 0."""
    return str(WEEKDAYS[(day - 1) % 7])


def months(values: Collection[int]) -> str:
    """Return `March, June and July`."""
    return joined(_runs(values, lambda month: str(MONTHS[month])))


def numbers(values: Collection[int]) -> str:
    """Return `1, 4 and 9 to 17`."""
    return joined(_runs(values))


def joined(parts: Iterable[str]) -> str:
    """Return `a, b and c`."""
    *most, last = parts
    if not most:
        return last
    return _("%(most)s and %(last)s") % {"most": ", ".join(most), "last": last}


def _runs(values: Collection[int], name: Callable[[int], str] = str) -> list[str]:
    """Return the values in order, three and more in a row as `4 to 9`."""
    told: list[str] = []
    ordered = sorted(values)
    while ordered:
        length = 1
        while length < len(ordered) and ordered[length] == ordered[0] + length:
            length += 1
        run, ordered = ordered[:length], ordered[length:]
        if length < 3:
            told += map(name, run)
        else:
            told.append(_("%(first)s to %(last)s") % {"first": name(run[0]), "last": name(run[-1])})
    return told


def seconds(interval: timedelta) -> str:
    """Return the seconds as digits: 300, 1.5."""
    whole, rest = divmod(interval, timedelta(seconds=1))
    fraction = f".{rest.microseconds:06}".rstrip("0") if rest else ""
    return f"{whole}{fraction}"


def _step(values: Collection[int], size: int) -> int:
    """Return the step if the values are 0, step, 2 * step … and it divides the size, else 0."""
    step = size // len(values)
    even = step < size and size % step == 0 and set(values) == set(range(0, size, step))
    return step if even else 0
