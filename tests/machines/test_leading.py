"""Leading: who leads a namespace, what the leader does, and what ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import OperationalError, connection, connections

from django_durable_jobs import enqueue, register_handler
from django_durable_jobs.db import (
    ManualClock,
    current_clock,
    statements_for,
    transaction,
    use_clock,
)
from django_durable_jobs.ids import uuid7
from django_durable_jobs.loops import Reconciler
from django_durable_jobs.models import Job, Leader, Schedule, TickClaim, TickGap, Worker
from django_durable_jobs.registry import Declaration, handlers, schedule, schedules
from django_durable_jobs.retention import Pruner
from django_durable_jobs.states import State
from django_durable_jobs.ticker import Ticker
from django_durable_jobs.ticks import TickPruner, fire_now, pause_schedule, resume_schedule
from django_durable_jobs.worker import Scheduler, skips
from django_durable_jobs.worker.leading import LOOK_INTERVAL, Leading
from django_durable_jobs.worker.skips import Skips
from django_durable_jobs.worker.trouble import Backoff, Trouble
from tests.hearing import Ear
from tests.processes.harness import until
from tests.racing import meanwhile

pytestmark = pytest.mark.django_db(transaction=True)

Make = Callable[..., Scheduler]
Keys = Callable[..., None]


@pytest.fixture(autouse=True)
def own_schedules() -> Iterator[None]:
    """Forget after the test, and after its workers have ended, what it has declared."""
    with schedules.preserved(), handlers.preserved():
        yield


def every_second(name: str = "s", **options: Any) -> Declaration:
    return schedule(name, every=1, run=lambda: None, **{"overlap": "allow", **options})


def leads(scheduler: Scheduler) -> bool:
    return bool(scheduler.status()["is_leader"])


def led_by(scheduler: Scheduler) -> Leader:
    """Return the leader's row once it is this worker that leads."""
    until(lambda: leads(scheduler), "its lead", seconds=20)
    lead = Leader.objects.get()
    assert lead.worker == scheduler.id
    return lead


def beats(scheduler: Scheduler, count: int) -> None:
    """Wait for so many heartbeats of the worker."""
    row, seen = Worker.objects.filter(pk=scheduler.id), set()

    def another() -> bool:
        seen.update(row.values_list("heartbeat_at", flat=True))
        return len(seen) > count

    until(another, f"{count} heartbeats")


def ticks(worker: UUID | None = None) -> int:
    claims = TickClaim.objects.all()
    return (claims if worker is None else claims.filter(claimed_by=worker)).count()


def one_more_tick(worker: UUID) -> None:
    """Wait for another tick of this worker's."""
    before = ticks(worker)
    until(lambda: ticks(worker) > before, "another tick")


def take_over(*, lease: float) -> tuple[UUID, int]:
    """Take the lead away from whoever has it, as if the lease had run out unrenewed."""
    other = uuid7()
    with transaction("default") as inside:
        statements = statements_for(inside)
        Leader.objects.update(expires_at=datetime(2001, 1, 1, tzinfo=UTC))
        epoch = statements.take_lead("default", other, lease=lease)
    assert epoch is not None
    return other, epoch


# Becoming leader


def test_a_worker_leads_at_once_where_nobody_does(make: Make, keys: Keys) -> None:
    keys(HEARTBEAT=100, LEASE=300)  # no look is made at a heartbeat
    every_second()
    scheduler = make()
    assert not leads(scheduler)
    with Ear() as ear:
        scheduler.start()
        lead = led_by(scheduler)
        until(lambda: "leader.acquired" in ear.actions, "word of it")
    assert lead.epoch == 1
    until(lambda: Schedule.objects.filter(name="s", fires__gt=0).exists(), "a tick")


def of_the_lead(ear: Ear) -> set[tuple[str, str]]:
    return {(each.action, each.reason) for each in ear.events if each.action.startswith("leader.")}


def test_the_next_leads_when_the_leader_has_stopped_in_order(make: Make, keys: Keys) -> None:
    keys(HEARTBEAT=100, LEASE=300)
    first, second = make(), make()
    first.start()
    led_by(first)
    second.start()
    with Ear() as ear:
        first.shutdown()
        assert led_by(second).epoch == 2
        until(lambda: len(of_the_lead(ear)) == 2, "word of both")  # each tells for itself
    assert of_the_lead(ear) == {("leader.lost", "stopped"), ("leader.acquired", "")}
    assert not leads(first)


def test_one_that_is_gone_leads_until_its_lease_ends_and_no_longer(make: Make, keys: Keys) -> None:
    keys(HEARTBEAT=0.5, LEASE=2)
    gone = uuid7()
    with transaction("default") as inside:
        statements_for(inside).take_lead("default", gone, lease=2)
    ends = Leader.objects.get().expires_at
    scheduler = make()
    scheduler.start()
    lead = led_by(scheduler)
    assert lead.epoch == 2
    assert lead.acquired_at is not None
    assert ends is not None
    assert lead.acquired_at >= ends


def candidate(**options: Any) -> Leading:
    values: dict[str, Any] = {"lease": 30.0, "interval": 10.0, "put": None}
    worker = uuid7()
    return Leading(
        worker, "default", "default", [], **(values | {"trouble": Trouble(worker)} | options)
    )


def test_a_candidate_looks_again_every_second_and_right_at_the_end_of_the_lease() -> None:
    """So that a new one leads a second after a lease has ended, at the latest."""
    with use_clock(clock := ManualClock(datetime(2026, 5, 4, 12, tzinfo=UTC))):
        with transaction("default") as inside:
            statements_for(inside).take_lead("default", uuid7(), lease=30)
        one = candidate()
        looked = []
        while one.epoch is None:
            assert clock.value < datetime(2026, 5, 4, 12, 1, tzinfo=UTC)
            looked.append(one.look(connection))
            if one.epoch is None:
                clock.advance(looked[-1])
        assert set(looked[:29]) == {LOOK_INTERVAL}
        assert (clock.value - datetime(2026, 5, 4, 12, tzinfo=UTC)).total_seconds() <= 30.05
        one.stop()
        one.join()
    lead = Leader.objects.get()
    assert (lead.epoch, lead.worker) == (2, None)


def test_of_many_candidates_one_leads() -> None:
    with transaction("default") as inside:
        statements_for(inside).take_lead("default", uuid7(), lease=0.001)
    candidates = [candidate() for _ in range(6)]
    looks = [meanwhile(lambda one=one: one.look(connection)) for one in candidates]
    for look in looks:
        assert isinstance(look(), float)
    assert Leader.objects.get().epoch == 2
    assert [one.epoch for one in candidates if one.epoch is not None] == [2]
    for one in candidates:
        one.stop()
        one.join()


@pytest.mark.parametrize("declared", [True, False])
def test_one_without_schedules_neither_leads_nor_declares(
    make: Make, keys: Keys, declared: bool
) -> None:
    keys(HEARTBEAT=0.1, LEASE=1)
    if declared:
        every_second()
    scheduler = make(schedules=False)
    scheduler.start()
    beats(scheduler, 5)
    assert not leads(scheduler)
    assert (Leader.objects.count(), Schedule.objects.count(), ticks()) == (0, 0, 0)
    every_second("another")  # nobody has taken the schedules, so that more can be declared


# Staying leader


def test_a_leader_whose_row_was_taken_writes_nothing_more_and_may_lead_again(
    make: Make, keys: Keys
) -> None:
    keys(HEARTBEAT=0.2, LEASE=2)
    every_second()
    scheduler = make()
    scheduler.start()
    led_by(scheduler)
    one_more_tick(scheduler.id)
    with Ear() as ear:
        _, epoch = take_over(lease=4)
        # Whatever it had begun to write was committed before.
        written = ticks()
        until(lambda: not leads(scheduler), "its end as the leader")
        until(lambda: "leader.lost" in ear.actions, "word of it")
    lost = next(event for event in ear.events if event.action == "leader.lost")
    assert (lost.outcome, lost.reason) == ("failure", "lost")
    until(lambda: Leader.objects.get().worker == scheduler.id, "its second lead")
    again = Leader.objects.get()
    assert again.epoch == epoch + 1
    assert TickClaim.objects.filter(claimed_at__lt=again.acquired_at).count() == written
    one_more_tick(scheduler.id)
    claimed = list(TickClaim.objects.values_list("scheduled_at", flat=True))
    assert len(claimed) == len(set(claimed))


@pytest.mark.parametrize("closes", [True, False])
def test_trouble_with_the_database_does_not_end_a_leader(
    make: Make, keys: Keys, monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    keys(HEARTBEAT=0.2, LEASE=30)
    every_second()
    turn = Ticker.turn
    refused: list[str] = []

    def refuse(self: Ticker, epoch: int) -> float | None:
        if len(refused) == 3:
            return turn(self, epoch)
        refused.append("turn")
        if not closes:
            own = _own(self)
            close = own.close

            def refuse_to_close() -> None:
                own.close = close
                raise OperationalError("cannot close")

            own.close = refuse_to_close
        raise OperationalError("no connection")

    scheduler = make()
    scheduler.start()
    led_by(scheduler)
    one_more_tick(scheduler.id)
    monkeypatch.setattr(Ticker, "turn", refuse)
    until(lambda: len(refused) == 3, "the failures")
    one_more_tick(scheduler.id)
    assert leads(scheduler)
    assert Leader.objects.get().epoch == 1


def _own(ticker: Ticker) -> Any:
    """Return the connection of the leader's thread, called on it."""
    return connections[ticker._using]


def test_a_connection_that_breaks_under_a_leader_costs_no_tick(
    make: Make, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys(HEARTBEAT=0.2, LEASE=30)
    every_second()
    turn = Ticker.turn
    broken: list[str] = []

    def cut(self: Ticker, epoch: int) -> float | None:
        if not broken:
            broken.append("cut")
            _own(self).connection.close()  # the driver's, behind Django's back
        return turn(self, epoch)

    scheduler = make()
    scheduler.start()
    led_by(scheduler)
    one_more_tick(scheduler.id)
    monkeypatch.setattr(Ticker, "turn", cut)
    until(lambda: broken, "the cut")
    one_more_tick(scheduler.id)
    assert Leader.objects.get().epoch == 1
    kept = Schedule.objects.get()
    claimed = list(
        TickClaim.objects.order_by("scheduled_at").values_list("scheduled_at", flat=True)
    )
    assert kept.anchor is not None
    grid = [kept.anchor + timedelta(seconds=n + 1) for n in range(len(claimed))]
    assert (claimed, TickGap.objects.count()) == (grid, 0)


def test_a_leader_that_cannot_renew_for_a_lease_leads_no_longer(
    make: Make, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys(HEARTBEAT=0.2, LEASE=1)
    scheduler = make()
    scheduler.start()
    led_by(scheduler)
    away = threading.Event()
    away.set()
    renew = Leading._renew

    def fail(self: Leading, epoch: int) -> None:
        if away.is_set():
            raise OperationalError("no connection")
        renew(self, epoch)

    with Ear() as ear:
        monkeypatch.setattr(Leading, "_renew", fail)
        until(lambda: "leader.lost" in ear.actions, "its end as the leader")
        away.clear()
        until(lambda: leads(scheduler), "its next lead")
    assert Leader.objects.get().epoch == 2


def test_whatever_a_thread_dies_of_somebody_leads_again(
    make: Make, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys(HEARTBEAT=0.2, LEASE=1)
    scheduler = make()
    scheduler.start()
    led_by(scheduler)
    lead = Leading._lead
    ended: list[str] = []

    def end(self: Leading, own: Any, epoch: int) -> None:
        if ended:
            return lead(self, own, epoch)
        ended.append("end")
        raise RuntimeError("as asked")

    monkeypatch.setattr(Leading, "_lead", end)
    take_over(lease=0.5)
    until(lambda: ended and leads(scheduler), "its lead after the one that failed")
    assert Leader.objects.get().epoch >= 3


def test_a_chore_that_fails_holds_up_neither_ticks_nor_the_other_chores(
    make: Make, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys(HEARTBEAT=0.2, LEASE=30)
    tried: set[type[object]] = set()
    paused: list[object] = []

    def fail(self: object, connection: Any) -> bool:
        tried.add(type(self))
        raise OperationalError("as asked")

    def pause(self: Backoff) -> float:
        paused.append(self)
        return 0.01

    for chore in (Reconciler, Pruner, TickPruner):
        monkeypatch.setattr(chore, "step", fail)
    monkeypatch.setattr(Backoff, "next", pause)
    every_second()
    scheduler = make()
    scheduler.start()
    led_by(scheduler)
    for _ in range(2):
        one_more_tick(scheduler.id)
    assert tried == {Reconciler, Pruner, TickPruner}
    assert paused == []
    assert Leader.objects.get().epoch == 1


# What others do to schedules


def test_what_others_do_to_a_schedule_is_seen(make: Make, keys: Keys) -> None:
    keys(HEARTBEAT=0.2, LEASE=30)
    every_second()
    scheduler = make()
    scheduler.start()
    led_by(scheduler)
    one_more_tick(scheduler.id)
    pause_schedule("s", by="ops")
    paused = Schedule.objects.get().paused_at
    assert paused is not None
    clock = current_clock()
    until(lambda: clock.now(connection) > paused + timedelta(seconds=2), "two ticks of a pause")
    resume_schedule("s")
    resumed = Schedule.objects.get().resumed_at
    assert resumed is not None
    one_more_tick(scheduler.id)
    inside = TickClaim.objects.filter(scheduled_at__gt=paused, scheduled_at__lte=resumed)
    assert inside.count() == 0
    gap = TickGap.objects.get()
    assert (gap.reason, gap.first > paused, gap.last <= resumed) == ("paused", True, True)
    assert gap.count == 2
    before = Schedule.objects.get().fires
    job = fire_now("s", force=True)
    until(lambda: Job.objects.get(pk=job.pk).state == State.COMPLETED, "the run by hand")
    assert Schedule.objects.get().fires > before
    assert leads(scheduler)


def test_a_run_seen_to_end_is_written_on_its_schedule(make: Make, keys: Keys) -> None:
    keys(HEARTBEAT=0.2, LEASE=30)

    def fail() -> None:
        raise ValueError("as asked")

    schedule("s", every=1, run=fail, pause_after_failures=2)
    scheduler = make()
    scheduler.start()
    kept = until(lambda: Schedule.objects.filter(paused_at__isnull=False).first(), "its pause")
    assert kept.failures_in_row == 2
    assert "as asked" in kept.last_error
    assert kept.paused_reason.startswith("It paused itself after 2 failures in a row")


# What only those count who do not lead


def test_ticks_left_to_the_leader_are_counted_by_who_does_not_lead(
    make: Make, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys(HEARTBEAT=0.2, LEASE=30)
    monkeypatch.setattr(skips, "INTERVAL", 0.5)
    every_second()
    first, second = make(), make()
    first.start()
    led_by(first)
    one_more_tick(first.id)
    assert Schedule.objects.get().non_leader_skips == 0
    second.start()
    kept = until(lambda: Schedule.objects.filter(non_leader_skips__gt=1).first(), "counts")
    assert not leads(second)
    assert kept.non_leader_skips <= ticks()


def test_a_candidate_counts_exactly_the_ticks_between_two_counts() -> None:
    declared = [
        schedule(
            "minutely",
            cron="* * * * *",
            run=lambda: None,
            timezone="UTC",
            end=datetime(2026, 5, 4, 12, 7, tzinfo=UTC),
        ),
        schedule("paused", cron="* * * * *", run=lambda: None, timezone="UTC"),
        schedule("interval", every=90, run=lambda: None),
        schedule(
            "later",
            cron="* * * * *",
            run=lambda: None,
            timezone="UTC",
            start=datetime(2026, 5, 4, 12, 3, tzinfo=UTC),
        ),
    ]
    seconds = 0.0

    def count(schedules: Skips, *, after: float) -> dict[str, int]:
        nonlocal seconds
        seconds += after
        clock.advance(after)
        schedules.flush(connection)
        return dict(Schedule.objects.values_list("name", "non_leader_skips"))

    with use_clock(clock := ManualClock(datetime(2026, 5, 4, 12, 0, tzinfo=UTC))):
        with transaction("default") as inside:
            epoch = statements_for(inside).take_lead("default", uuid7(), lease=3_600)
        assert epoch is not None
        Ticker("default", "default", uuid7(), declared).declare(epoch)
        pause_schedule("paused")
        one = Skips("default", declared, monotonic=lambda: seconds)
        nothing = {"minutely": 0, "paused": 0, "interval": 0, "later": 0}
        assert count(one, after=0) == nothing
        assert count(one, after=59) == nothing  # not a minute yet
        some = nothing | {"minutely": 3, "interval": 2, "later": 1}
        assert count(one, after=121) == some
        one.reset()  # it has led in between
        assert count(one, after=120) == some
        assert count(one, after=600) == nothing | {"minutely": 5, "interval": 9, "later": 11}


# Schedules that are gone


def test_a_schedule_gone_from_the_code_is_marked_after_one_lease(make: Make, keys: Keys) -> None:
    keys(HEARTBEAT=0.2, LEASE=1)
    gone = every_second("gone")
    first = make()
    first.start()
    until(lambda: Schedule.objects.filter(name="gone", fires__gt=0).exists(), "a tick")
    first.shutdown()
    schedules.remove(gone)
    every_second("there")
    second = make()
    second.start()
    lead = led_by(second)
    until(lambda: Schedule.objects.filter(name="gone", next_fire=None).exists(), "its last tick")
    fires = Schedule.objects.get(name="gone").fires
    marked = until(
        lambda: Schedule.objects.filter(retired_at__isnull=False).first(), "the mark"
    ).retired_at
    assert lead.acquired_at is not None
    assert marked >= lead.acquired_at + timedelta(seconds=0.99)
    one_more_tick(second.id)
    assert Schedule.objects.get(name="gone").fires == fires
    assert Schedule.objects.get(name="there").retired_at is None


# Ending


def test_the_lead_is_given_up_before_the_grace_of_what_runs(make: Make, keys: Keys) -> None:
    keys(HEARTBEAT=100, LEASE=300)
    every_second()
    entered, release = threading.Event(), threading.Event()

    def wait() -> None:
        entered.set()
        release.wait(60)

    register_handler("long", wait)
    first, second = make(), make()
    first.start()
    led_by(first)
    job = enqueue("long")
    assert entered.wait(30)
    second.start()
    ending = meanwhile(lambda: first.shutdown(grace=60))
    led_by(second)
    assert Job.objects.get(pk=job.pk).state == State.RUNNING
    release.set()
    assert ending() is None
    assert Job.objects.get(pk=job.pk).state == State.COMPLETED
    assert leads(second)


def test_a_worker_that_drains_leads_no_longer(make: Make, keys: Keys) -> None:
    keys(HEARTBEAT=0.2, LEASE=30)
    scheduler = make()
    scheduler.start()
    led_by(scheduler)
    scheduler.drain()
    until(lambda: Leader.objects.get().worker is None, "its end as the leader")
    beats(scheduler, 3)
    assert Leader.objects.get().worker is None
