"""Steering schedules from outside: pause, resume, fire now."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from uuid import UUID
from zoneinfo import ZoneInfo

from asgiref.sync import sync_to_async
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet

from ..catchup import PAUSED, Course
from ..conf import settings
from ..db import NewTick, current_clock, now_expression, statements_for, transaction
from ..errors import AlreadyRunning, InvalidRecurrence, InvalidSchedule, UnknownSchedule
from ..ids import uuid7
from ..jobspec import namespace_name
from ..models import Job, Schedule, TickClaim, TickGap
from ..namespaces import announce, database, retried, words
from ..parameters import did_you_mean, shown
from ..registry import schedules
from ..registry.declaration import NAME_MAX_CHARS
from ..states import LIVE, TickOutcome
from .courses import course_of, course_of_row, is_tick_of
from .deciding import Decision
from .firing import put_in, write
from .ledger import note_gaps

# How far back the tick before a moment is looked for: a rule may fire in leap years only.
_FAR = timedelta(days=3_000)
_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)


@retried
def pause_schedule(
    name: str,
    *,
    by: str = "",
    reason: str = "",
    namespace: str | None = None,
    using: str | None = None,
) -> bool:
    """Let the schedule fire no more until ``resume_schedule``; what it has put in goes on.

    It stays paused through restarts and deploys. One that is paused already stays as it was
    paused first: returns whether it was this call that paused it. Raises UnknownSchedule, and
    InvalidJob where one of these is no text.
    """
    alias = database(using)
    paused_by, paused_reason = words(by, "by", 150), words(reason, "reason", 4_096)
    with transaction(alias) as connection:
        row = _row(connection, name, namespace)
        if row.paused_at is None:
            _rows(connection, row).update(
                paused_at=now_expression(connection),
                paused_by=paused_by,
                paused_reason=paused_reason,
            )
        return row.paused_at is None


@retried
def resume_schedule(name: str, *, namespace: str | None = None, using: str | None = None) -> bool:
    """Let the schedule fire again, from its next tick on: what fell into the pause never fires.

    Nor does what had been missed before it. Returns whether it was paused. Raises UnknownSchedule.
    """
    alias = database(using)
    with transaction(alias) as connection:
        row = _row(connection, name, namespace)
        if row.paused_at is not None:
            if row.waiting is not None:  # its turn never comes: that is to be told as well
                skip = NewTick(row.name, row.waiting, None, TickOutcome.SKIPPED, PAUSED)
                statements_for(connection).claim_ticks(row.namespace, None, [skip])
            _rows(connection, row).update(
                next_fire=_after_pause(connection, row, row.paused_at),
                paused_at=None,
                paused_by="",
                paused_reason="",
                failures_in_row=0,
                waiting=None,
                resumed_at=now_expression(connection),
            )
            announce(row.namespace, alias)
        return row.paused_at is not None


@retried
def fire_now(
    name: str,
    *,
    force: bool = False,
    tick: datetime | None = None,
    namespace: str | None = None,
    using: str | None = None,
) -> Job:
    """Put the schedule's job in now, whether it is paused or not; return the job.

    A fire by hand counts as one, leaves a ``TickClaim`` with outcome "manual" and does not shift
    the next tick. ``tick`` (aware) makes up for a tick that was missed: one whose claim says
    "skipped", or one of a ``TickGap``, by the rule that the schedule had then.

    Raises UnknownSchedule, AlreadyRunning while an earlier run is in flight (unless ``force``d),
    and InvalidSchedule for a ``tick`` that was not missed.
    """
    alias = database(using)
    with transaction(alias) as connection:
        row = _row(connection, name, namespace)
        declaration = schedules.get(name)
        if declaration is None:
            raise UnknownSchedule(
                f"The schedule {shown(name)} is not declared in this process: its code is gone,"
                " or was not imported."
            )
        now = current_clock().now(connection)
        course = course_of(declaration, row.anchor)
        at = now if tick is None else _missed(connection, row, course, tick)
        if not force and (job := _in_flight(connection, row)):
            raise AlreadyRunning(
                f"A run of the schedule {shown(name)} is in flight (job {job}); to run another"
                " beside it, force it.",
            )
        id = uuid7()
        if tick is None:
            _claim(connection, row, at, id)
        else:
            _make_up(connection, row, at, id)
        decision = Decision(row, declaration, course, row.next_fire, row.waiting, fire=(at,))
        decision.job = put_in(connection, row.namespace, {id: (decision, at)})[id]
        write(connection, [decision])
        return Job.objects.using(alias).get(pk=decision.job)


def _after_pause(
    connection: BaseDatabaseWrapper, row: Schedule, paused_at: datetime
) -> datetime | None:
    """Write down what was missed before the pause, and return the next tick behind that."""
    first: datetime | None = row.next_fire
    course = course_of_row(row)
    if course is None or first is None or first > paused_at:
        return first
    plan = course.fold(first, paused_at, paused_at=paused_at, resumed_at=row.resumed_at)
    note_gaps(connection, row.namespace, [(row, course, gap) for gap in plan.gaps])
    return plan.next_fire


def _row(connection: BaseDatabaseWrapper, name: str, namespace: str | None) -> Schedule:
    """Return the schedule's row, locked."""
    name = words(name, "name", NAME_MAX_CHARS)
    space = settings.NAMESPACE if namespace is None else namespace_name(namespace)
    rows = Schedule.objects.using(connection.alias).filter(namespace=space)
    row = rows.filter(name=name).select_for_update().first()
    if row is not None:
        return row
    if schedules.get(name) is not None:
        raise UnknownSchedule(
            f"The schedule {shown(name)} is declared in code, but no worker of the namespace"
            f" {space!r} has taken it yet: start `manage.py runscheduler`."
        )
    near = did_you_mean(name, list(rows.values_list("name", flat=True)[:1_000]))
    raise UnknownSchedule(f"There is no schedule {shown(name)} in the namespace {space!r}{near}.")


def _rows(connection: BaseDatabaseWrapper, row: Schedule) -> QuerySet[Schedule]:
    return Schedule.objects.using(connection.alias).filter(pk=row.pk)


def _in_flight(connection: BaseDatabaseWrapper, row: Schedule) -> UUID | None:
    """Return the job of a run of the schedule that is not over, if there is one."""
    alias = connection.alias
    ticks = TickClaim.objects.using(alias).filter(namespace=row.namespace, open=True)
    ticks = ticks.filter(name=row.name, job__state__in=LIVE)
    job = ticks.values_list("job_id", flat=True).first()
    if job is None and row.last_job_id is not None:  # an operator may have requeued it
        last = Job.objects.using(alias).filter(pk=row.last_job_id, state__in=LIVE)
        return last.values_list("pk", flat=True).first()
    return job


def _claim(connection: BaseDatabaseWrapper, row: Schedule, at: datetime, job: UUID) -> None:
    tick = NewTick(row.name, at, job, TickOutcome.MANUAL)
    if not statements_for(connection).claim_ticks(row.namespace, None, [tick]):
        raise AlreadyRunning(f"The schedule {row.name!r} was fired at this very moment.")


def _missed(
    connection: BaseDatabaseWrapper,
    row: Schedule,
    course: Course,
    tick: object,
) -> datetime:
    """Return the tick, in UTC, if it was missed and is not made up for."""
    if not isinstance(tick, datetime) or tick.tzinfo is None:
        raise InvalidSchedule(f"tick: {shown(tick)} is no aware datetime.")
    at = tick.astimezone(UTC)
    claims = TickClaim.objects.using(connection.alias).filter(
        namespace=row.namespace, name=row.name, scheduled_at=at
    )
    claim = claims.first()
    if claim is not None:
        if claim.outcome == TickOutcome.SKIPPED:
            return at
        how = "fired" if claim.outcome == TickOutcome.FIRED else "was run by hand"
        raise InvalidSchedule(
            f"tick: {at.isoformat()} was not missed, it {how} (job {claim.job_id})."
        )
    gaps = TickGap.objects.using(connection.alias).filter(namespace=row.namespace, name=row.name)
    if any(is_tick_of(gap, at) for gap in gaps.filter(first__lte=at, last__gte=at)):
        return at
    local = tick.astimezone(ZoneInfo(row.timezone)).isoformat(" ")
    if course.recurrence.last_fire(at - at.resolution, at) == at:
        raise InvalidSchedule(f"tick: {row.name!r} missed no tick at {local}.")
    beside = _beside(course, at, ZoneInfo(row.timezone))
    raise InvalidSchedule(f"tick: {local} is no tick of {row.name!r} ({row.when}){beside}.")


def _beside(course: Course, at: datetime, zone: ZoneInfo) -> str:
    """Name the ticks before and behind a moment, if there are any near it."""
    ticks = [course.recurrence.last_fire(max(at, _EARLIEST + _FAR) - _FAR, at)]
    with suppress(InvalidRecurrence):  # there is none any more
        ticks.append(course.next_fire(at))
    told = [tick.astimezone(zone).isoformat(" ") for tick in ticks if tick is not None]
    return f"; beside it are {' and '.join(told)}" if told else ""


def _make_up(connection: BaseDatabaseWrapper, row: Schedule, at: datetime, job: UUID) -> None:
    """Turn the claim of a skipped tick into one by hand, or make one inside its gap."""
    ticks = TickClaim.objects.using(connection.alias).filter(
        namespace=row.namespace, name=row.name, scheduled_at=at, outcome=TickOutcome.SKIPPED
    )
    if not ticks.update(
        outcome=TickOutcome.MANUAL,
        job=job,
        open=True,
        claimed_at=now_expression(connection),
        claimed_by=None,
    ):
        _claim(connection, row, at, job)


apause_schedule = sync_to_async(pause_schedule)
aresume_schedule = sync_to_async(resume_schedule)
afire_now = sync_to_async(fire_now)
