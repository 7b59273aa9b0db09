"""Whatever becomes of schedules and those who lead: each tick has one fate, and it is told.

DDJ_SCHEDULE_EXAMPLES is how many walks are tried.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from django.db.transaction import atomic
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from django_durable_jobs.catchup import Course
from django_durable_jobs.db import ManualClock, statements_for, transaction, use_clock
from django_durable_jobs.errors import AlreadyRunning, UnknownSchedule
from django_durable_jobs.ids import uuid7
from django_durable_jobs.models import Job, Schedule, TickClaim, TickGap
from django_durable_jobs.registry import Declaration, handlers, schedule, schedules
from django_durable_jobs.states import State
from django_durable_jobs.ticker import Ticker
from django_durable_jobs.ticks import (
    LeadershipLost,
    course_of,
    fire_now,
    pause_schedule,
    resume_schedule,
)
from tests.clockwork import end

EXAMPLES = int(os.environ.get("DDJ_SCHEDULE_EXAMPLES", "0"))

# Zones, each with an instant at which its clocks change.
TURNS = [
    ("Europe/Vienna", datetime(2026, 3, 29, 1, tzinfo=UTC)),
    ("Europe/Vienna", datetime(2026, 10, 25, 1, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 3, 8, 7, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 11, 1, 6, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)),
]
RULES: list[dict[str, Any]] = [
    {"cron": "30 2 * * *"},
    {"cron": "*/30 1,2 * * *"},
    {"cron": "*/15 * * * *"},
    {"cron": "0 * * * *"},
    {"every": 1_000},
    {"every": 3_600},
    {"every": 1_800, "baseline": "02:30"},
]
NAMES = ("a", "b")
OPTIONS = st.fixed_dictionaries(
    {
        "rule": st.sampled_from(RULES),
        "overlap": st.sampled_from(["skip", "queue", "allow"]),
        "catch_up": st.sampled_from(["none", "last", "all"]),
        "catch_up_window": st.sampled_from([600, 7_200]),
        "start": st.sampled_from([None, None, -60, 45]),
        "end": st.sampled_from([None, None, 200, 1_000]),
    }
)
names = st.sampled_from(NAMES)
workers = st.sampled_from([0, 1])


@dataclass
class Period:
    """A stretch in which one declaration of a schedule was in force, by the model."""

    declaration: Declaration
    course: Course
    since: datetime
    until: datetime | None = None

    def ticks(self, now: datetime, next_fire: datetime | None) -> Iterator[datetime]:
        """Return the ticks that something must have become of by ``now``.

        All of those of a period that is over; else those before the next tick to be looked at.
        """
        recurrence, start, end = (
            self.course.recurrence,
            self.declaration.start,
            self.declaration.end,
        )
        tick = recurrence.next_fire(self.since)
        while tick <= now and (end is None or tick <= end):
            if next_fire is not None and tick >= next_fire:
                return
            if start is None or tick >= start:
                yield tick
            tick = recurrence.next_fire(tick)


class Schedules(RuleBasedStateMachine):
    """Two workers that hand the lead to each other, each with a release of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.periods: dict[str, list[Period]] = {name: [] for name in NAMES}
        self.pauses: dict[str, list[tuple[datetime, datetime | None]]] = {n: [] for n in NAMES}

    @initialize(
        turn=st.sampled_from(TURNS),
        before=st.integers(0, 600),
        a=OPTIONS,
        b=OPTIONS,
    )
    def begin(
        self, turn: tuple[str, datetime], before: int, a: dict[str, Any], b: dict[str, Any]
    ) -> None:
        self.zone, moment = turn
        self.clock = ManualClock(moment - timedelta(minutes=before))
        self.contexts = [
            use_clock(self.clock),
            schedules.preserved(),
            handlers.preserved(),
            atomic(),
        ]
        for context in self.contexts:
            context.__enter__()
        self.ids = [uuid7(), uuid7()]
        release = {"a": self.declared("a", a), "b": self.declared("b", b)}
        self.releases = [release, {**release}]
        self.tickers: list[Ticker] = [self.ticker(0), self.ticker(1)]
        self.epochs: list[int | None] = [None, None]
        self.leader = 0
        self.take_lead(0)

    def teardown(self) -> None:
        if hasattr(self, "contexts"):
            connection.set_rollback(True)
            for context in reversed(self.contexts):
                context.__exit__(None, None, None)

    def ticker(self, worker: int) -> Ticker:
        return Ticker("default", "default", self.ids[worker], self.releases[worker].values())

    @property
    def now(self) -> datetime:
        return self.clock.value

    # What happens

    @rule(worker=workers, name=names, options=OPTIONS)
    def edit(self, worker: int, name: str, options: dict[str, Any]) -> None:
        """Change a worker's code, and deploy it."""
        self.releases[worker][name] = self.declared(name, options)
        self.take_lead(worker)

    def declared(self, name: str, options: dict[str, Any]) -> Declaration:
        bounds = {
            which: self.now + timedelta(minutes=minutes)
            for which in ("start", "end")
            if (minutes := options[which]) is not None
        }
        with schedules.preserved():
            for each in schedules.all():
                schedules.remove(each)
            given = options | {"start": None, "end": None} | bounds
            rule = given.pop("rule")
            return schedule(name, job="x", timezone=self.zone, **rule, **given)

    @rule(worker=workers, name=names)
    def remove(self, worker: int, name: str) -> None:
        if self.releases[worker].pop(name, None):
            self.take_lead(worker)

    @rule(worker=workers)
    def hand_over(self, worker: int) -> None:
        self.take_lead(worker)

    @rule(times=st.sampled_from([1, 2, 3, 6]), late=st.sampled_from([0, 0.001, 59]))
    def go_on(self, times: int, late: float) -> None:
        """Let time pass with a leader there, who wakes at each tick, or somewhat later."""
        for _ in range(times):
            due = Schedule.objects.filter(paused_at__isnull=True, next_fire__gt=self.now)
            first = due.order_by("next_fire").first()
            if first is not None:
                self.clock.move_to(first.next_fire + timedelta(seconds=late))
            self.turn()

    @rule(minutes=st.sampled_from([1, 20, 120, 700]))
    def outage(self, minutes: int) -> None:
        self.clock.advance(minutes * 60)

    @rule()
    def turn(self) -> None:
        epoch = self.epochs[self.leader]
        assert epoch is not None
        for _ in range(300):
            if self.tickers[self.leader].turn(epoch) != 0.0:
                return
        raise AssertionError("the ticker spins")

    @rule()
    def the_old_leader_goes_on(self) -> None:
        """As one does that was stopped, or whose lease ran out unseen."""
        old = 1 - self.leader
        epoch = self.epochs[old]
        if epoch is None:
            return
        before = self.rows()
        with suppress(LeadershipLost):
            self.tickers[old].turn(epoch)
        assert self.rows() == before

    @rule(name=names)
    def pause_or_resume(self, name: str) -> None:
        pauses = self.pauses[name]
        if pauses and pauses[-1][1] is None:
            resume_schedule(name)
            pauses[-1] = (pauses[-1][0], self.now)
        else:
            pause_schedule(name)
            pauses.append((self.now, None))

    @rule(name=names, after=st.sampled_from([0, 5, 400]))
    def pause_over_a_tick(self, name: str, after: float) -> None:
        """Pause, and resume while the tick in between is late only, or missed."""
        row = Schedule.objects.get(name=name)
        if row.paused_at is None:
            self.pause_or_resume(name)
            if row.next_fire is not None:
                self.clock.move_to(max(self.now, row.next_fire) + timedelta(seconds=after))
            self.pause_or_resume(name)
            self.turn()

    @rule(name=names, force=st.booleans())
    def fire_by_hand(self, name: str, force: bool) -> None:
        try:
            fire_now(name, force=force)
        except (AlreadyRunning, UnknownSchedule):
            return
        self.clock.advance(0.001)

    @rule(data=st.data())
    @precondition(lambda self: TickGap.objects.exists())
    def make_up_for_a_missed_tick(self, data: st.DataObject) -> None:
        gap = data.draw(st.sampled_from(list(TickGap.objects.order_by("pk"))))
        skipped = TickClaim.objects.filter(name=gap.name, outcome="skipped").first()
        tick = skipped.scheduled_at if skipped else gap.last
        claims = TickClaim.objects.filter(name=gap.name, scheduled_at=tick)
        if claims.filter(job__isnull=False).exists() or schedules.get(gap.name) is None:
            return
        fire_now(gap.name, tick=tick, force=True)  # of whichever rule it had then

    @rule(times=st.sampled_from([2, 5]))
    def go_on_with_quick_runs(self, times: int) -> None:
        for _ in range(times):
            self.runs_end(State.COMPLETED, all=True)
            self.go_on(1, 0.0)

    @rule(state=st.sampled_from([State.COMPLETED, State.FAILED]), all=st.booleans())
    def runs_end(self, state: str, all: bool) -> None:
        jobs = list(Job.objects.filter(state=State.QUEUED).order_by("run_at", "id"))
        for job in jobs if all else jobs[:1]:
            end(job, state)

    # The model

    def take_lead(self, worker: int) -> None:
        """Have a worker lead with its release as it is now; the other one is an old leader."""
        with transaction("default") as inside:
            statements = statements_for(inside)
            lead = statements.leader("default")
            if lead is not None and lead.worker is not None:
                statements.give_up_lead("default", lead.epoch)
            epoch = statements.take_lead("default", self.ids[worker], lease=1e6)
        assert epoch is not None
        release = self.releases[worker]
        for each in schedules.all():
            schedules.remove(each)
        for each in release.values():
            schedules.add(each)
        self.tickers[worker] = self.ticker(worker)
        self.tickers[worker].declare(epoch)
        self.epochs[worker] = epoch
        self.leader = worker
        rows = {row.name: row for row in Schedule.objects.all()}
        for name in NAMES:
            declared = release.get(name)
            period = self.current(name)
            if period and declared and declared.rule == period.declaration.rule:
                continue
            if period:
                period.until = self.now
            if declared:
                made = Period(declared, course_of(declared, rows[name].anchor), self.now)
                self.periods[name].append(made)

    def current(self, name: str) -> Period | None:
        periods = self.periods[name]
        return periods[-1] if periods and periods[-1].until is None else None

    def rows(self) -> list[Any]:
        return [list(model.objects.order_by("pk").values_list()) for model in (Schedule, TickClaim)]

    @invariant()
    def each_tick_has_one_fate_and_no_more(self) -> None:
        if not hasattr(self, "contexts"):
            return
        rows = {row.name: row for row in Schedule.objects.all()}
        claims: dict[str, list[TickClaim]] = {name: [] for name in NAMES}
        for claim in TickClaim.objects.order_by("scheduled_at"):
            claims[claim.name].append(claim)
        gaps: dict[str, list[TickGap]] = {name: [] for name in NAMES}
        for gap in TickGap.objects.all():
            gaps[gap.name].append(gap)
        for name, row in rows.items():
            self.check(row, claims[name], gaps[name])
        jobs: list[UUID | None] = [
            each.job_id for ticks in claims.values() for each in ticks if each.job_id
        ]
        assert len(jobs) == len(set(jobs))
        assert set(jobs) == set(Job.objects.values_list("pk", flat=True))

    def check(self, row: Schedule, claims: list[TickClaim], gaps: list[TickGap]) -> None:
        name = row.name
        fired = [claim for claim in claims if claim.outcome == "fired"]
        by_hand = {claim.scheduled_at for claim in claims if claim.outcome == "manual"}
        for claim in fired:
            assert claim.scheduled_at <= claim.claimed_at, "early"
            assert claim.job_id is not None
            for paused, resumed in self.pauses[name]:
                inside = paused < claim.scheduled_at and (
                    resumed is None or claim.scheduled_at <= resumed
                )
                assert not inside, "fired inside a pause"
                assert not (paused < claim.claimed_at < (resumed or claim.claimed_at)), "paused"
        skipped = [claim for claim in claims if claim.outcome == "skipped"]
        assert all(claim.job_id is None and claim.reason for claim in skipped)
        assert row.fires == len(fired) + len(by_hand)
        told = Counter(claim.scheduled_at for claim in fired + skipped)
        for period in self.periods[name]:
            until = period.until or self.now
            wanted = set(period.ticks(until, None if period.until else row.next_fire))
            found = Counter({at: n for at, n in told.items() if period.since < at <= until})
            for gap in gaps:
                if period.since < gap.first <= until:
                    found.update(self.expanded(period, gap))
            for at in by_hand & wanted:
                found[at] = found[at] or 1
            if period.until is None and row.waiting and row.waiting not in by_hand:
                assert not found[row.waiting]
                found[row.waiting] += 1
            assert set(found.values()) <= {1}, f"{name}: twice"
            assert set(+found) == wanted, (
                f"{name}: too many {sorted(set(+found) - wanted)},"
                f" too few {sorted(wanted - set(+found))}"
            )
        first = min((period.since for period in self.periods[name]), default=self.now)
        assert all(at > first for at in told)

    def expanded(self, period: Period, gap: TickGap) -> list[datetime]:
        ticks = [gap.first]
        while ticks[-1] < gap.last:
            ticks.append(period.course.recurrence.next_fire(ticks[-1]))
        assert (ticks[-1], len(ticks)) == (gap.last, gap.count)
        return ticks


@pytest.mark.django_db
@pytest.mark.slow
@pytest.mark.timeout(600 + 5 * EXAMPLES)  # it shrinks what it finds, which takes long
def test_any_order_of_edits_pauses_outages_and_leaders_leaves_one_fate_a_tick() -> None:
    run_state_machine_as_test(
        Schedules,
        settings=settings(
            max_examples=EXAMPLES or (15 if connection.vendor == "sqlite" else 5),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
