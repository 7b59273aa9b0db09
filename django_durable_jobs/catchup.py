"""Catching up: which of a schedule's due ticks fire, and which were missed.

Arithmetic over a recurrence and an instant: no database, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal, Protocol

CatchUp = Literal["none", "last", "all"]

# How many ticks catch_up="all" fires at most, the newest.
MOST_CAUGHT_UP = 100
# How many missed ticks one plan counts: a minute's schedule that stood for a week has as many.
MOST_COUNTED = 10_000

# Why the ticks of a gap did not fire.
DOWNTIME = "downtime"
PAUSED = "paused"
EDITED = "edited"  # another rule took the place of theirs before they could
GONE = "gone"  # from the code, likewise

_INSTANT = timedelta(microseconds=1)


class Recurrence(Protocol):
    """What is asked of a recurrence: see ``recurrence.Cron`` and ``recurrence.Every``."""

    def next_fire(self, after: datetime) -> datetime: ...
    def last_fire(self, after: datetime, until: datetime) -> datetime | None: ...
    def count(self, after: datetime, until: datetime, limit: int) -> tuple[int, datetime | None]:
        """Return how many ticks there are behind ``after`` as far as ``until``, and the last."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch of ticks missed in one piece, both ends counted."""

    first: datetime
    last: datetime
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of the ticks that are due: these fire, oldest first, those were missed.

    ``next_fire`` is the next tick to be looked at, None where there is none any more; it is due
    as well where more was missed than one plan counts.
    """

    fire: tuple[datetime, ...] = ()
    gaps: tuple[Gap, ...] = ()
    next_fire: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The ticks of one schedule: where they lie, and how long one may still fire late.

    A tick younger than ``late`` seconds is late and fires; what is older is up to ``catch_up``:
    "none", "last" (the newest) or "all" (the newest hundred), of those younger than ``window``
    seconds. ``end`` is the last moment at which a tick may lie.
    """

    recurrence: Recurrence
    late: float
    window: float = 0.0
    catch_up: CatchUp = "none"
    end: datetime | None = None

    def next_fire(self, after: datetime) -> datetime | None:
        """Return the first tick behind ``after``; None where the schedule is over by then."""
        if self.end is not None and after >= self.end:
            return None
        tick = self.recurrence.next_fire(after)
        return None if self.end is not None and tick > self.end else tick

    def plan(self, first: datetime, now: datetime, *, resumed_at: datetime | None = None) -> Plan:
        """Say what becomes of the ticks from ``first`` to ``now``.

        What lies before ``resumed_at`` fell into a pause, and never fires.
        """
        plan = _Draft(self, first - _INSTANT, self._until(now))
        if resumed_at is not None and not plan.miss(min(resumed_at, plan.until), PAUSED):
            return plan.begun()
        newest = self.recurrence.last_fire(plan.after, plan.until)
        if newest is not None:
            ticks = self._caught(newest, plan.after, now)
            if not plan.miss(ticks[0] - _INSTANT if ticks else newest, DOWNTIME):
                return plan.begun()
            plan.fire = tuple(ticks)
        return plan.done(now)

    def fold(
        self,
        first: datetime,
        now: datetime,
        *,
        paused_at: datetime,
        resumed_at: datetime | None = None,
    ) -> Plan:
        """Say what becomes of the due ticks of a schedule that is paused: they are missed.

        Those before ``paused_at`` were so for want of a leader, unless they fell into the pause
        before, which ended at ``resumed_at``.
        """
        plan = _Draft(self, first - _INSTANT, self._until(now))
        whole = plan.miss_all(DOWNTIME, paused_at, resumed_at)
        return plan.done(now) if whole else plan.begun()

    def missed(
        self,
        first: datetime,
        until: datetime,
        reason: str,
        *,
        paused_at: datetime | None = None,
        resumed_at: datetime | None = None,
    ) -> tuple[Gap, ...]:
        """Return all ticks from ``first`` to ``until`` as missed, however many there are.

        For ``reason``, where they did not fall into a pause.
        """
        plan = _Draft(self, first - _INSTANT, self._until(until))
        while not plan.miss_all(reason, paused_at, resumed_at):
            pass
        return tuple(plan.gaps)

    def fires_until(self, tick: datetime) -> datetime:
        """Return until when a tick may fire: later it is too late for it."""
        return tick + timedelta(seconds=self._patience)

    @property
    def _patience(self) -> float:
        return self.late if self.catch_up == "none" else max(self.late, self.window)

    def _until(self, now: datetime) -> datetime:
        return now if self.end is None else min(now, self.end)

    def _caught(self, newest: datetime, after: datetime, now: datetime) -> list[datetime]:
        """Return those of the due ticks that fire, oldest first."""
        oldest = max(now - timedelta(seconds=self._patience), after)
        if newest <= oldest:
            return []
        ticks = [newest]
        while self.catch_up == "all" and len(ticks) < MOST_CAUGHT_UP:
            earlier = self.recurrence.last_fire(oldest, ticks[-1] - _INSTANT)
            if earlier is None:
                break
            ticks.append(earlier)
        return ticks[::-1]


@dataclass(slots=True)
class _Draft:
    """A plan being made: the ticks behind ``after``, as far as ``until``, are not spoken for."""

    course: Course
    after: datetime
    until: datetime
    fire: tuple[datetime, ...] = ()
    gaps: list[Gap] = field(default_factory=list)

    def miss_all(
        self, reason: str, paused_at: datetime | None, resumed_at: datetime | None
    ) -> bool:
        """Count all of them as missed, for a pause or for ``reason``; False as ``miss`` does."""
        stretches = [(resumed_at, PAUSED), (paused_at or self.until, reason), (self.until, PAUSED)]
        return all(
            self.miss(min(end, self.until), why) for end, why in stretches if end is not None
        )

    def miss(self, until: datetime, reason: str) -> bool:
        """Count the ticks as far as ``until`` as missed; False where they are too many for once."""
        recurrence = self.course.recurrence
        count, last = recurrence.count(self.after, until, MOST_COUNTED)
        if last is not None:
            self.gaps.append(Gap(recurrence.next_fire(self.after), last, count, reason))
        self.after = max(self.after, until)
        if count < MOST_COUNTED or last is None:
            return True
        self.after = last
        return recurrence.last_fire(last, until) is None

    def done(self, now: datetime) -> Plan:
        return Plan(self.fire, tuple(self.gaps), self.course.next_fire(now))

    def begun(self) -> Plan:
        """Return the plan as far as it came: what is due behind it is left for the next."""
        return Plan((), tuple(self.gaps), self.course.next_fire(self.after))
