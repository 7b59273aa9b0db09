"""A leader without a thread: ticks at times that a test chooses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection

from django_durable_jobs.db import (
    ManualClock,
    current_clock,
    statements_for,
    transaction,
    use_clock,
)
from django_durable_jobs.ids import uuid7
from django_durable_jobs.models import Execution, Job, Schedule, TickClaim, TickGap
from django_durable_jobs.registry import handlers, schedules
from django_durable_jobs.states import State
from django_durable_jobs.ticker import Ticker

START = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)  # a Monday


def at(*clock: int, day: int = 4) -> datetime:
    """Return a moment of the day on which everything begins: hour, minute, second."""
    hour, minute, second = (*clock, 0, 0)[:3]
    return datetime(2026, 5, day, hour, minute, second, tzinfo=UTC)


class Clockwork:
    """Leads the namespace by a clock that stands still until it is moved."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.worker = uuid7()
        self.epoch = self.lead()
        self.ticker: Ticker | None = None

    def lead(self) -> int:
        """Take over from whoever leads, as if their lease had run out."""
        with transaction("default") as inside:
            statements = statements_for(inside)
            lead = statements.leader("default")
            if lead is not None and lead.worker is not None:
                statements.give_up_lead("default", lead.epoch)
            epoch = statements.take_lead("default", self.worker, lease=30)
        assert epoch is not None
        return epoch

    def start(self) -> None:
        """Take the schedules as they are declared now, as a worker that begins to lead does."""
        self.ticker = Ticker("default", "default", self.worker, schedules.all())
        self.ticker.declare(self.epoch)

    def turn(self) -> float | None:
        """Do all that is to be done now; return what the last turn said."""
        if self.ticker is None:
            self.start()
        assert self.ticker is not None
        for _ in range(500):
            seconds = self.ticker.turn(self.epoch)
            if seconds != 0.0:
                return seconds
        raise AssertionError("the ticker spins")

    def go(self, moment: datetime | float) -> float | None:
        """Move to a moment, or some seconds on, and do what is to be done."""
        if isinstance(moment, datetime):
            self.clock.move_to(moment)
        else:
            self.clock.advance(moment)
        return self.turn()

    def walk(self, until: datetime, *, step: float) -> None:
        """Do what is to be done every ``step`` seconds until a moment."""
        while self.clock.value < until:
            self.go(min(self.clock.value + timedelta(seconds=step), until))


@contextmanager
def clockwork(start: datetime = START) -> Iterator[Clockwork]:
    """Lead by a clock of the test's; forget afterwards what was declared."""
    clock = ManualClock(start)
    with use_clock(clock), schedules.preserved(), handlers.preserved():
        yield Clockwork(clock)


def row(name: str) -> Schedule:
    return Schedule.objects.get(name=name)


def fired(name: str, outcome: str = "fired") -> list[datetime]:
    """Return the nominal times of a schedule's ticks with this outcome."""
    ticks = TickClaim.objects.filter(name=name, outcome=outcome).order_by("scheduled_at")
    return list(ticks.values_list("scheduled_at", flat=True))


def missed(name: str) -> list[tuple[datetime, datetime, int, str]]:
    """Return the stretches that a schedule missed: first, last, count and reason."""
    gaps = TickGap.objects.filter(name=name).order_by("first")
    return list(gaps.values_list("first", "last", "count", "reason"))


def jobs(name: str) -> list[Job]:
    """Return the jobs of a schedule's ticks, oldest tick first."""
    ticks = TickClaim.objects.filter(name=name, job__isnull=False).order_by("scheduled_at")
    return [tick.job for tick in ticks.select_related("job")]


def end(job: Job, state: str = State.COMPLETED, **values: Any) -> None:
    """Let a job have run for two seconds and come to this."""
    now = current_clock().now(connection)
    claim = uuid7()
    ends = {"completed": "completed_at", "failed": "failed_at", "interrupted": "interrupted_at"}
    Execution.objects.create(
        job=job,
        namespace=job.namespace,
        owner_id=job.owner_id,
        attempt=1,
        claim_id=claim,
        worker_id=uuid7(),
        state=state,
        lease_expires_at=now,
        claimed_at=now - timedelta(seconds=2),
        started_at=now - timedelta(seconds=2),
        updated_at=now,
        **{ends[state]: now},
        **values,
    )
    job.queue_entry.delete()
    Job.objects.filter(pk=job.pk).update(state=state, claim_id=claim, finished_at=now)
