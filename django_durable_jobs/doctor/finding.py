"""What an examination comes to, and how its sentences name things."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias

from django.db.backends.base.base import BaseDatabaseWrapper

Severity: TypeAlias = Literal["ok", "warning", "problem"]

_MOST_NAMED = 5
_CHARS = 200


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: how it is found, and what to do about it.

    ``code`` does not change, and says where it was looked.
    """

    code: str
    severity: Severity
    message: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Patient:
    """A namespace on a connection, and what `status` tells of it."""

    connection: BaseDatabaseWrapper
    namespace: str
    told: dict[str, Any]

    @property
    def alias(self) -> str:
        return self.connection.alias

    @property
    def now(self) -> datetime:
        moment: datetime = self.told["at"]
        return moment


def unreadable(code: str, error: Exception) -> Finding:
    """Return the finding for what could not be looked at."""
    return Finding(code, "problem", f"It could not be looked at: {line(error)}")


def some(names: Sequence[str]) -> str:
    """Return the first names, and how many there are beside them."""
    told = ", ".join(names[:_MOST_NAMED])
    return told + f" and {len(names) - _MOST_NAMED:,} more" * (len(names) > _MOST_NAMED)


def many(number: int, one: str, *, limit: int | None = None) -> str:
    """Return `1 job`, `1,200 jobs`; `10,000+ jobs` where counting ended at that limit."""
    more = "+" * (limit is not None and number >= limit)
    return f"{number:,}{more} {one}{'s' * (number != 1)}"


def line(error: BaseException) -> str:
    """Return an error on one line, cut."""
    return short(f"{type(error).__name__}: {error}")


def short(text: str) -> str:
    """Return a text on one line, cut."""
    text = " ".join(text.split())
    return text if len(text) <= _CHARS else f"{text[: _CHARS - 1]}…"


def ago(then: datetime, now: datetime) -> str:
    """Return `90 s`, `12 min` or `5 h`."""
    return span((now - then).total_seconds())


def span(seconds: float) -> str:
    """Return `90 s`, `12 min`, `5 h` or `3 days`."""
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"


def at(worker: dict[str, Any]) -> str:
    """Return where a worker runs, as the admin names it."""
    return f"{worker['host']}:{worker['pid']}"


def by(name: str) -> str:
    """Return ` by ann`, nothing for nobody."""
    return f" by {name}" if name else ""
