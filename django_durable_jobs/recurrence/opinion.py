"""A second opinion: what croniter makes of an expression, clocks aside."""

from __future__ import annotations

from datetime import datetime

from croniter import croniter

from .cron import Cron


def second_opinion(cron: Cron, after: datetime) -> datetime | None:
    """Return the first wall time behind ``after`` (naive) at which croniter would fire.

    It is asked in the one spelling that it reads as everybody does: plain lists of numbers. None
    where it has no opinion: it knows no day that both a # and the day of month allow, and raises
    errors of several kinds where it is at its end.
    """
    fields = cron.fields
    if fields.nth_dow and fields.any_day_field:
        return None
    try:
        rule = croniter(_plain(cron), after, ret_type=datetime, day_or=fields.any_day_field)
        found: datetime = rule.get_next()
    except Exception:  # foreign code: AssertionError and OverflowError among others
        return None
    return found


def _plain(cron: Cron) -> str:
    fields = cron.fields
    texts = [
        "*" if len(values) == size else ",".join(map(str, sorted(values)))
        for values, size in (
            (fields.minute, 60),
            (fields.hour, 24),
            (fields.dom, 31),
            (fields.month, 12),
            (fields.dow, 7),
        )
    ]
    if fields.last_dom:
        texts[2] = ",".join(filter(None, [texts[2], "L"])) if texts[2] != "*" else "*"
    nth = [f"L{day}" if week < 0 else f"{day}#{week}" for day, week in sorted(fields.nth_dow)]
    if texts[4] != "*":
        texts[4] = ",".join(filter(None, [texts[4], *nth]))
    if fields.any_day_field and "*" in (texts[2], texts[4]):
        texts[2] = texts[4] = "*"  # a full list is enough for every day
    return " ".join(texts)
