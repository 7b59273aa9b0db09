"""Where the ticks of a schedule lie: by its declaration and the settings, or by its row."""

from __future__ import annotations

import hashlib
import logging
from datetime import datetime, timedelta

from ..catchup import Course
from ..conf import settings
from ..models import Schedule, TickGap
from ..recurrence import Cron, Every
from ..registry import Declaration
from ..registry.declaration import read_rule

logger = logging.getLogger(__name__)

_INSTANT = timedelta(microseconds=1)


def course_of(declaration: Declaration, anchor: datetime | None) -> Course:
    """Return the course of the schedule's ticks; ``anchor`` fixes the grid of an interval."""
    recurrence = declaration.recurrence
    if anchor is not None and isinstance(recurrence, Every):
        recurrence = recurrence.with_anchor(anchor)
    window, late = declaration.catch_up_window, 2 * settings.LEASE
    if window is None:
        window = settings.CATCH_UP_WINDOW
    if (kept := settings.TICK_RETENTION) > 0:
        # A tick whose claim may be pruned already could fire again.
        window, late = min(window, kept / 2), min(late, kept / 2)
    return Course(
        recurrence=recurrence,
        late=late,
        window=window,
        catch_up=declaration.catch_up,
        end=declaration.end,
    )


def course_of_row(row: Schedule) -> Course | None:
    """Return where the ticks of a schedule lie as its row has it, whatever the code says.

    None where its rule is none here any more: its time zone, say, was renamed.
    """
    recurrence, end = _read(row.rule)
    if recurrence is None:
        return None
    if row.anchor is not None and isinstance(recurrence, Every):
        recurrence = recurrence.with_anchor(row.anchor)
    return Course(recurrence=recurrence, late=0, end=end)


def recurrence_of_gap(gap: TickGap) -> Cron | Every | None:
    """Return the rule that missed ticks were missed under, whatever the schedule's is now.

    None where it is none here any more.
    """
    recurrence, _ = _read(gap.rule)
    if isinstance(recurrence, Every):
        return recurrence.with_anchor(gap.first - recurrence.interval)
    return recurrence


def is_tick_of(gap: TickGap, at: datetime) -> bool:
    """Tell whether a moment is one of the missed ticks."""
    recurrence = recurrence_of_gap(gap) if gap.first <= at <= gap.last else None
    return recurrence is not None and recurrence.last_fire(at - _INSTANT, at) == at


def _read(rule: str) -> tuple[Cron | Every | None, datetime | None]:
    try:
        return read_rule(rule)
    except ValueError as error:
        logger.warning("rule unknown error=%s", error)
        return None, None


def anchor_of(declaration: Declaration, now: datetime) -> datetime | None:
    """Return what the grid of a schedule that is declared now goes by; None: by the wall clock.

    An interval counts from now, rounded up to a second, since people read and type these times;
    and where it has a start, so that a tick lies right there.
    """
    recurrence = declaration.recurrence
    if not isinstance(recurrence, Every) or recurrence.baseline is not None:
        return None
    if declaration.start is not None:
        return declaration.start - recurrence.interval
    return now + timedelta(microseconds=-now.microsecond % 1_000_000)


def first_fire(declaration: Declaration, course: Course, now: datetime) -> datetime | None:
    """Return the first tick behind ``now``, and not before the schedule's start."""
    start = declaration.start
    return course.next_fire(now if start is None else max(now, start - _INSTANT))


def starts_at(declaration: Declaration, tick: datetime) -> datetime:
    """Return when the job of a tick is to run: at the tick, spread by the schedule's jitter.

    The same for whoever asks.
    """
    if not declaration.jitter:
        return tick
    digest = hashlib.sha256(f"{declaration.name}\n{tick.isoformat()}".encode()).digest()
    part = int.from_bytes(digest[:8], "big") / 2**64
    return tick + timedelta(seconds=part * declaration.jitter)
