"""The ticker: fires the due ticks of a namespace, for the worker that leads it."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Min, Q, QuerySet

from .audit import FAILURE, audit
from .catchup import Course
from .db import current_clock, is_trouble
from .models import Job, Schedule, TickClaim
from .registry import Declaration
from .states import LIVE
from .strictjson import describe_exception
from .ticks import (
    Decision,
    LeadershipLost,
    course_of,
    decide,
    declare,
    fire,
    leading,
    note_ends,
    retire,
    tick_key,
)

logger = logging.getLogger(__name__)

# How many schedules one transaction fires.
AT_ONCE = 500
# How often the ticker looks whether runs have ended, and whether a tick that waits may go, in
# seconds.
RUNS_INTERVAL = 1.0
# How often missed ticks of a paused schedule are counted, in seconds.
PAUSE_INTERVAL = 60.0
# A tick that could not be fired is tried again after so many seconds, later after more.
RETRY_FIRST, RETRY_LONGEST = 1.0, 30.0
_REASON_MAX_CHARS = 1_024


@dataclass(slots=True)
class _Failing:
    """What could not be written of a schedule so far, and when to try again (monotonic seconds)."""

    tick: datetime | None  # the first that was to fire, if any
    pause: float = RETRY_FIRST
    again_at: float = 0.0


class Ticker:
    """Turns ticks that are due into jobs; all it writes is fenced by the leader's epoch.

    Its methods raise LeadershipLost once another worker leads. Use it on one thread.
    """

    def __init__(
        self, namespace: str, using: str, worker: UUID, declarations: Iterable[Declaration]
    ) -> None:
        self._namespace = namespace
        self._using = using
        self._worker = worker
        self._declarations: Mapping[str, Declaration] = {each.name: each for each in declarations}
        self._queues = any(each.overlap == "queue" for each in self._declarations.values())
        self._courses: dict[str, tuple[datetime | None, Course]] = {}
        self._failing: dict[str, _Failing] = {}
        self._runs_open = True  # until it is known otherwise
        # How many there are, from the first, that this round has seen already.
        self._passed_due = self._passed_waiting = 0

    def declare(self, epoch: int) -> None:
        """Store what the code declares."""
        with leading(self._using, self._namespace, epoch) as connection:
            declare(connection, self._namespace, self._declarations)

    def retire(self, epoch: int) -> None:
        """Mark the schedules that are gone from the code."""
        with leading(self._using, self._namespace, epoch) as connection:
            retire(connection, self._namespace, self._declarations)

    def turn(self, epoch: int) -> float | None:
        """Note which runs have ended and fire what is due, a batch of it at most.

        Returns in how many seconds there is more to do; None: not by itself.
        """
        more = self._runs_open and self._note_ends(epoch)
        now = current_clock().now(connections[self._using])
        due = self._due(now)
        waiting = self._waiting() if self._queues else []
        rows = list({row.pk: row for row in (*waiting, *due)}.values())
        rows = [row for row in rows if row.name in self._declarations]
        decided = [each for each in self._decide(rows, now) if not each.is_idle]
        self._write(epoch, decided)
        # More was missed than one plan counts, or more schedules are due than one batch holds.
        behind = {each.row.pk for each in decided if each.next_fire and each.next_fire <= now}
        full = AT_ONCE in (len(due), len(waiting))
        self._pass_over(due, waiting, decided, behind, full=full)
        if more or behind or full:
            return 0.0
        return self._look_in(now, held=bool(self._failing) or len(decided) < len(rows))

    def _pass_over(
        self,
        due: Sequence[Schedule],
        waiting: Sequence[Schedule],
        decided: Sequence[Decision],
        behind: Collection[int],
        *,
        full: bool,
    ) -> None:
        """Leave what this turn has seen, and what is still there, for the next round.

        However many schedules wait for a run or for another try, the others get their turn.
        """
        if not full:
            self._passed_due = self._passed_waiting = 0
            return
        fired = {each.row.pk for each in decided if each.row.pk not in behind}
        freed = {each.row.pk for each in decided if each.waiting is None}
        self._passed_due += sum(row.pk not in fired for row in due)
        self._passed_waiting += sum(row.pk not in freed for row in waiting)

    def next_fire(self, after: datetime) -> datetime | None:
        """Return the first tick behind ``after``, of any schedule that is not paused."""
        ahead = self._schedules().filter(next_fire__gt=after, paused_at__isnull=True)
        first: datetime | None = ahead.aggregate(first=Min("next_fire"))["first"]
        return first

    def _note_ends(self, epoch: int) -> bool:
        with leading(self._using, self._namespace, epoch) as connection:
            _, more = note_ends(connection, self._namespace)
            open_runs = TickClaim.objects.using(self._using).filter(
                namespace=self._namespace, open=True
            )
            self._runs_open = open_runs.exists()
        return more

    def _schedules(self) -> QuerySet[Schedule]:
        return Schedule.objects.using(self._using).filter(namespace=self._namespace)

    def _due(self, now: datetime) -> list[Schedule]:
        """Return the schedules whose time has come, longest first."""
        long_ago = now - timedelta(seconds=PAUSE_INTERVAL)
        due = self._schedules().filter(
            Q(next_fire__lte=now, paused_at__isnull=True) | Q(next_fire__lte=long_ago)
        )
        first = self._passed_due
        return list(due.order_by("next_fire", "pk")[first : first + AT_ONCE])

    def _waiting(self) -> list[Schedule]:
        """Return schedules with a tick that waits for the run before it."""
        waiting = self._schedules().filter(waiting__isnull=False, paused_at__isnull=True)
        first = self._passed_waiting
        return list(waiting.order_by("pk")[first : first + AT_ONCE])

    def _decide(self, rows: Sequence[Schedule], now: datetime) -> list[Decision]:
        busy = self._busy(rows)
        decisions = []
        for row in rows:
            failing = self._failing.get(row.name)
            if failing is not None and time.monotonic() < failing.again_at:
                continue
            decisions.append(
                decide(
                    row,
                    self._declarations[row.name],
                    self._course(row),
                    now,
                    busy=row.name in busy,
                    failing=failing.tick if failing else None,
                )
            )
        return decisions

    def _course(self, row: Schedule) -> Course:
        known = self._courses.get(row.name)
        if known is None or known[0] != row.anchor:
            known = row.anchor, course_of(self._declarations[row.name], row.anchor)
            self._courses[row.name] = known
        return known[1]

    def _busy(self, rows: Sequence[Schedule]) -> set[str]:
        """Return the names of those schedules a run of which is in flight."""
        asked = [row for row in rows if self._declarations[row.name].overlap != "allow"]
        if not asked:
            return set()
        ticks = TickClaim.objects.using(self._using).filter(namespace=self._namespace, open=True)
        ticks = ticks.filter(name__in=[row.name for row in asked], job__state__in=LIVE)
        busy = set(ticks.values_list("name", flat=True))
        # Its run is noted as over, and an operator has requeued the job since.
        last = {row.last_job_id: row.name for row in asked if row.last_job_id}
        jobs = Job.objects.using(self._using).filter(pk__in=last, state__in=LIVE)
        return busy | {last[pk] for pk in jobs.values_list("pk", flat=True)}

    def _write(self, epoch: int, decisions: Sequence[Decision]) -> None:
        """Write what was decided: together, and one by one where something in it is refused."""
        if not decisions:
            return
        try:
            self._fire(epoch, decisions)
        except LeadershipLost:
            raise
        except Exception as error:
            if is_trouble(error):
                raise
            for each in decisions:
                self._write_one(epoch, each)

    def _write_one(self, epoch: int, decision: Decision) -> None:
        decision.lost, decision.job = 0, None  # of the attempt that was rolled back
        try:
            self._fire(epoch, [decision])
        except LeadershipLost:
            raise
        except Exception as error:
            if is_trouble(error):
                raise
            self._failed(epoch, decision, error)

    def _fire(self, epoch: int, decisions: Sequence[Decision]) -> None:
        with leading(self._using, self._namespace, epoch) as connection:
            self._runs_open |= bool(fire(connection, self._namespace, self._worker, decisions))
        for each in decisions:
            self._failing.pop(each.row.name, None)

    def _failed(self, epoch: int, decision: Decision, error: Exception) -> None:
        """Take note of a tick that could not be fired: it is tried again while there is time."""
        name = decision.row.name
        tick = decision.fire[0] if decision.fire else None
        failing = self._failing.get(name)
        if failing is None or failing.tick != tick:
            failing = self._failing[name] = _Failing(tick)
        failing.again_at = time.monotonic() + failing.pause
        failing.pause = min(failing.pause * 2, RETRY_LONGEST)
        at = tick or decision.row.next_fire or current_clock().now(connections[self._using])
        reason = describe_exception(error, _REASON_MAX_CHARS)
        logger.error("tick failed schedule=%s tick=%s error=%s", name, at.isoformat(), reason)
        told = f"The tick of {at.isoformat()} cannot be put in: {reason}"
        with leading(self._using, self._namespace, epoch):
            self._schedules().filter(pk=decision.row.pk).update(last_error=told)
        audit(
            "scheduler.tick.error",
            outcome=FAILURE,
            # Not the error's text: that may quote the payload.
            reason=getattr(error, "code", "") or type(error).__name__,
            metadata={"name": name, "tick_key": tick_key(name, at)},
        )

    def _look_in(self, now: datetime, *, held: bool) -> float | None:
        """Return in how many seconds there is something to do."""
        pauses = [RUNS_INTERVAL] if held or self._runs_open else []
        if (moment := self.next_fire(now)) is not None:
            connection: BaseDatabaseWrapper = connections[self._using]
            seconds = (moment - current_clock().now(connection)).total_seconds()
            pauses.append(max(0.0, seconds))
        return min(pauses, default=None)
