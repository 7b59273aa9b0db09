"""Read the five fields of a cron expression, strictly: what is not listed here is refused.

The grammar is that of Vixie cron with names, `L` (last day of the month), `fri#2` (second Friday)
and `L5` (last Friday). Refusals name the field and say what is accepted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Never

from ..errors import InvalidRecurrence

__all__ = ["LONGEST", "Fields", "parse", "quoted"]

LONGEST = 256
_BLANKS = " \t\n\r\f\v"

SHORTHANDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

LAST = -1  # stands for the number of the week in the month: `L5` is (5, LAST)


def _numbered(names: str, start: int) -> dict[str, int]:
    return {name: number for number, name in enumerate(names.split(), start)}


@dataclass(frozen=True, slots=True)
class _Field:
    """Say what one field may hold; `top` is the largest number, `high` where `*` and steps end."""

    name: str
    low: int
    high: int
    top: int
    names: Mapping[str, int]
    special: str = ""

    @property
    def accepted(self) -> str:
        names = f" (or {next(iter(self.names))} to {list(self.names)[-1]})" if self.names else ""
        return (
            f"numbers {self.low} to {self.top}{names}, ranges a-b, steps */n, a/n or a-b/n"
            f"{self.special}, and lists of these by commas"
        )

    def refuse(self, text: str, why: str) -> Never:
        message = f"Cron field {self.name}: {quoted(text)} {why}; accepted: {self.accepted}."
        raise InvalidRecurrence(message, code="invalid-cron")


_MONTHS = _numbered("jan feb mar apr may jun jul aug sep oct nov dec", 1)
_WEEKDAYS = _numbered("sun mon tue wed thu fri sat", 0)

MINUTE = _Field("minute", 0, 59, 59, {})
HOUR = _Field("hour", 0, 23, 23, {})
DOM = _Field("day of month", 1, 31, 31, {}, ", L (the last day)")
MONTH = _Field("month", 1, 12, 12, _MONTHS)
DOW = _Field("day of week", 0, 6, 7, _WEEKDAYS, ", fri#2 (the second Friday), L5 (the last)")


@dataclass(frozen=True, slots=True)
class Fields:
    """Hold what an expression says: its fields as sets, and which of them begin with `*`.

    `nth_dow` has the pairs (day of week, week 1 to 5, or -1 for the last); `last_dom` tells of `L`.
    """

    expression: str
    minute: frozenset[int]
    hour: frozenset[int]
    dom: frozenset[int]
    month: frozenset[int]
    dow: frozenset[int]
    last_dom: bool
    nth_dow: frozenset[tuple[int, int]]
    stars: tuple[bool, ...]

    @property
    def any_day_field(self) -> bool:
        """Tell whether either day field is enough: neither begins with `*` (Vixie cron's rule)."""
        return not (self.stars[2] or self.stars[4])

    def days(self, first_weekday: int, length: int) -> tuple[int, ...]:
        """Return the days that match in a month of so many days; its first is this day of week."""
        return tuple(
            day
            for day in range(1, length + 1)
            if self._has_day(day, (first_weekday + day - 1) % 7, length)
        )

    def _has_day(self, day: int, weekday: int, length: int) -> bool:
        by_number = day in self.dom or (self.last_dom and day == length)
        by_weekday = (
            weekday in self.dow
            or (weekday, (day + 6) // 7) in self.nth_dow
            or (day + 7 > length and (weekday, LAST) in self.nth_dow)
        )
        if self.any_day_field:
            return by_number or by_weekday
        return by_number and by_weekday


def parse(expression: object) -> Fields:
    """Return what the expression says. Raises InvalidRecurrence, code invalid-cron."""
    if not isinstance(expression, str):
        raise InvalidRecurrence(
            f"A cron expression is text, not {type(expression).__name__}.", code="invalid-cron"
        )
    text = expression.strip(_BLANKS)
    if len(text) > LONGEST:
        raise InvalidRecurrence(
            f"The cron expression has {len(text)} characters; accepted: at most {LONGEST}.",
            code="invalid-cron",
        )
    if text.isascii():  # other scripts have letters whose small forms are ASCII
        text = SHORTHANDS.get(text.lower(), text)
    if text.startswith("@"):
        raise InvalidRecurrence(
            f"The cron expression {quoted(text)} is not understood; accepted: the words "
            f"{', '.join(SHORTHANDS)}, or the five fields minute, hour, day of month, month, day"
            " of week.",
            code="invalid-cron",
        )
    parts = [part for part in re.split(f"[{_BLANKS}]+", text) if part]
    if len(parts) != 5:
        raise InvalidRecurrence(
            f"The cron expression {quoted(text)} has {len(parts)} fields; accepted: the five "
            f"minute, hour, day of month, month, day of week, or one of {', '.join(SHORTHANDS)}.",
            code="invalid-cron",
        )
    parts = [_normal(part) for part in parts]
    minute, hour, dom, month, dow = (part.split(",") for part in parts)
    return Fields(
        expression=" ".join(parts),
        minute=_values(MINUTE, minute),
        hour=_values(HOUR, hour),
        dom=_values(DOM, [term for term in dom if term != "L"]),
        month=_values(MONTH, month),
        dow=frozenset(day % 7 for day in _values(DOW, [t for t in dow if not _is_nth(t)])),
        last_dom="L" in dom,
        nth_dow=frozenset(_nth(term) for term in dow if _is_nth(term)),
        stars=tuple(part.startswith("*") for part in parts),
    )


def quoted(text: str) -> str:
    """Return the text as a message may show it: short, in ASCII, what cannot be printed escaped."""
    return ascii(text if len(text) <= 40 else f"{text[:37]}...")


def _normal(part: str) -> str:
    """Return the field in small letters, but for the L of `L` and `L5`."""
    terms = part.lower().split(",")
    return ",".join(f"L{term[1:]}" if term.startswith("l") else term for term in terms)


def _is_nth(term: str) -> bool:
    return "#" in term or term.startswith("L")


def _nth(term: str) -> tuple[int, int]:
    """Return what `fri#2` or `L5` means: the day of the week, and which one of the month."""
    day, hash_sign, week = term.partition("#")
    if hash_sign:
        if week not in ("1", "2", "3", "4", "5"):
            DOW.refuse(term, "has no week 1 to 5 after the #")
        return _value(DOW, day, term) % 7, int(week)
    if term == "L":
        DOW.refuse(term, "names no day (the last Saturday is L6)")
    return _value(DOW, term[1:], term) % 7, LAST


def _values(field: _Field, terms: list[str]) -> frozenset[int]:
    return frozenset(value for term in terms for value in _term(field, term))


def _term(field: _Field, term: str) -> range:
    """Return the numbers that one term of a list stands for."""
    if not term:
        field.refuse(term, "is an empty term")
    body, slash, step_text = term.partition("/")
    step = _step(field, step_text, term) if slash else 1
    first, dash, last = body.partition("-")
    if body == "*":
        low, high = field.low, field.high
    elif dash:
        low, high = _value(field, first, term), _value(field, last, term)
        if last == "sun" and low > 0:  # Sunday may end a range
            high = 7
        if low > high:
            field.refuse(term, f"is a range that runs backwards, from {low} to {high}")
    else:
        low = _value(field, body, term)
        # `n/s` runs to the end of the field, as Vixie cron and its readers have it.
        high = max(low, field.high) if slash else low
    return range(low, high + 1, step)


def _step(field: _Field, text: str, term: str) -> int:
    size = field.high - field.low + 1
    if not re.fullmatch("[0-9]+", text) or int(text) == 0:
        field.refuse(term, f"has no step after the slash (a whole number, 1 to {size})")
    step = int(text)
    if step > size:
        field.refuse(term, f"has a step that is larger than the field (1 to {size})")
    return step


def _value(field: _Field, text: str, term: str) -> int:
    if text in field.names:
        return field.names[text]
    if not re.fullmatch("[0-9]+", text):
        hint = " (write * instead)" if term == "?" else ""
        field.refuse(term, f"is not understood{hint}")
    value = int(text)
    if not field.low <= value <= field.top:
        field.refuse(term, f"is out of range, {field.low} to {field.top}")
    return value
