"""What becomes of one schedule whose time has come, by its plan and the runs before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from uuid import UUID

from ..catchup import DOWNTIME, Course, Gap, Plan
from ..models import Schedule
from ..registry import Declaration

# Why a single tick did not become a job.
OVERLAP = "overlap"
DEADLINE = "deadline"

_INSTANT = datetime.resolution


@dataclass(slots=True)
class Decision:
    """What becomes of a schedule: the ticks that fire, those that are skipped (and why), the
    stretches missed, and what it waits for from now on.

    ``lost`` counts ticks that somebody else had claimed, ``job`` is the last one put in: known
    once it is written.
    """

    row: Schedule
    declaration: Declaration
    course: Course
    next_fire: datetime | None
    waiting: datetime | None = None
    fire: Sequence[datetime] = ()
    skip: Sequence[datetime] = ()
    reason: str = OVERLAP
    gaps: Sequence[Gap] = ()
    lost: int = 0
    job: UUID | None = field(default=None)

    @property
    def misses(self) -> int:
        return len(self.skip) if self.reason == OVERLAP else 0

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to write: the tick waits for the run before it."""
        same = (self.next_fire, self.waiting) == (self.row.next_fire, self.row.waiting)
        return same and not (self.fire or self.skip or self.gaps)


def decide(
    row: Schedule,
    declaration: Declaration,
    course: Course,
    now: datetime,
    *,
    busy: bool,
    failing: datetime | None = None,
) -> Decision:
    """Decide what becomes of the ticks that are due.

    ``busy`` tells that a run before is in flight; ``failing`` is a tick that could not be fired so
    far: once its time is over it is skipped.
    """
    first = row.next_fire
    decision = Decision(row, declaration, course, first, row.waiting)
    if row.paused_at is not None:
        pauses = {"paused_at": row.paused_at, "resumed_at": row.resumed_at}
        plan = Plan() if first is None else course.fold(first, now, **pauses)
        return _planned(decision, plan)
    if first is None or first > now:
        plan = Plan(next_fire=first)
    else:
        plan = course.plan(first, now, resumed_at=row.resumed_at)
    if failing is not None and failing not in plan.fire and first is not None and first <= failing:
        return replace(
            decision,
            skip=(failing,),
            reason=DEADLINE,
            gaps=course.missed(first, failing - _INSTANT, DOWNTIME, resumed_at=row.resumed_at),
            next_fire=course.next_fire(failing),
        )
    return _fitted(_planned(decision, plan), now, busy=busy)


def _planned(decision: Decision, plan: Plan) -> Decision:
    return replace(decision, fire=plan.fire, gaps=plan.gaps, next_fire=plan.next_fire)


def _fitted(decision: Decision, now: datetime, *, busy: bool) -> Decision:
    """Fit the ticks that would fire to the run before them, as the schedule's ``overlap`` says."""
    ticks, declaration = list(decision.fire), decision.declaration
    if declaration.overlap == "allow":
        return decision
    if declaration.catch_up == "all" and decision.waiting is None and _missed(ticks, decision, now):
        # Caught up with one after the other: those behind it stay due.
        put_in = [] if busy else ticks[:1]
        ahead = ticks[len(put_in) :]
        return replace(decision, fire=put_in, next_fire=ahead[0] if ahead else decision.next_fire)
    if decision.waiting is not None:
        ticks.insert(0, decision.waiting)
    put_in, later = ([], ticks) if busy else (ticks[:1], ticks[1:])
    waits = declaration.overlap == "queue" and bool(later)
    return replace(
        decision,
        fire=put_in,
        waiting=later[0] if waits else None,
        skip=later[1:] if waits else later,
    )


def _missed(ticks: Sequence[datetime], decision: Decision, now: datetime) -> bool:
    late = timedelta(seconds=decision.course.late)
    return len(ticks) > 1 or any(tick <= now - late for tick in ticks)
