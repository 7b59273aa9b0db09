"""S1 scheduleTimer, stopTimer: when a scheduler looks again."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from django_durable_jobs import (
    enqueue,
    get_job,
    register_handler,
    signals,
)
from django_durable_jobs.db import ManualClock
from django_durable_jobs.models import Job
from django_durable_jobs.states import State
from django_durable_jobs.worker.desk import Desk, Turn

from .conftest import Configure, Gate, executions, nudge, settled, until

pytestmark = pytest.mark.django_db(transaction=True)


# scheduleTimer and stopTimer


class Turns:
    """Note how long a scheduler would sleep after each turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sleeps: list[float | None] = []
        look_ahead = Desk.look_ahead

        def noted(desk: Desk, turn: Turn) -> None:
            look_ahead(desk, turn)
            self.sleeps.append(turn.look_in)

        monkeypatch.setattr(Desk, "look_ahead", noted)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    return Turns(monkeypatch)


def test_schedule_timer_not_started_runs_nothing(turns: Turns, scheduler: Any) -> None:
    register_handler("seed.job", lambda: None)
    works = scheduler()
    assert works.tick() == 0
    job = enqueue("seed.job")
    count = len(turns.sleeps)
    nudge()
    until(lambda: len(turns.sleeps) > count)
    job.refresh_from_db()
    assert job.state == State.QUEUED


def test_schedule_timer_runs_a_job_when_its_time_has_come(scheduler: Any) -> None:
    register_handler("seed.job", lambda: None)
    works = scheduler()
    works.start()
    assert works.wait_until_idle(10)
    job = enqueue("seed.job", run_at=timezone.now() + timedelta(seconds=0.3))
    (job,) = settled(job)
    (execution,) = executions(job)
    assert timedelta(0) <= execution.claimed_at - job.run_at < timedelta(seconds=5)


def test_schedule_timer_sleeps_until_the_earliest_job(
    clock: ManualClock, turns: Turns, scheduler: Any
) -> None:
    register_handler("seed.job", lambda: None)
    for seconds in (9, 7, 11):
        enqueue("seed.job", run_at=clock.value + timedelta(seconds=seconds))
    scheduler().start()
    until(lambda: 7.0 in turns.sleeps)


def test_schedule_timer_sleeps_at_most_max_sleep(
    clock: ManualClock, turns: Turns, scheduler: Any, configure: Configure
) -> None:
    configure(MAX_SLEEP=12)
    register_handler("seed.job", lambda: None)
    enqueue("seed.job", run_at=clock.value + timedelta(days=365))
    scheduler().start()
    until(lambda: turns.sleeps and turns.sleeps[-1] == 12.0)


def test_schedule_timer_nothing_queued_sleeps_max_sleep(turns: Turns, scheduler: Any) -> None:
    scheduler().start()
    until(lambda: turns.sleeps and turns.sleeps[-1] == 30.0)


def test_schedule_timer_hears_what_is_committed_while_a_turn_ends(
    scheduler: Any, configure: Configure, monkeypatch: Any
) -> None:
    """changed: nobody but the seed's own process writes to its store."""
    configure(HEARTBEAT=60, LEASE=600)  # a heartbeat is a commit, too, and would be heard
    register_handler("seed.job", lambda: None)
    jobs: list[Job] = []

    class Enqueues:
        def turned(self, turn: Any) -> None:
            if not jobs:
                with monkeypatch.context() as patch:  # so that it is not heard in the process
                    patch.setattr(signals, "wake_listeners", [])
                    other = threading.Thread(target=self.enqueue)
                    other.start()
                    other.join(10)

        @staticmethod
        def enqueue() -> None:
            jobs.append(enqueue("seed.job"))
            connection.close()

    scheduler(observer=Enqueues()).start()
    until(lambda: jobs)
    (job,) = settled(*jobs)
    assert job.state == State.COMPLETED


def test_schedule_timer_leaves_out_types_without_a_handler(turns: Turns, scheduler: Any) -> None:
    job = enqueue("seed.unknown")
    scheduler().start()
    until(lambda: turns.sleeps and turns.sleeps[-1] == 30.0)
    assert get_job(job.pk).held_reason == "no_handler"


def test_schedule_timer_ineligible_is_looked_at_after_its_pause(
    clock: ManualClock, turns: Turns, scheduler: Any
) -> None:
    """changed: the seed leaves it out, and looks again after maxTimerDelay at the latest."""
    register_handler("seed.job", lambda: None, can_run=lambda job: False)
    enqueue("seed.job")
    scheduler().start()
    until(lambda: turns.sleeps and turns.sleeps[-1] == 1.0)


def test_schedule_timer_leaves_out_owners_at_their_cap(
    turns: Turns, scheduler: Any, gate: Gate
) -> None:
    register_handler("seed.gate", gate)
    jobs = [enqueue("seed.gate", owner_id="o") for _ in range(3)]
    scheduler().start()
    until(lambda: turns.sleeps and turns.sleeps[-1] == 30.0)
    gate.let_go()
    settled(*jobs)


def test_schedule_timer_without_a_free_slot_waits_for_one(
    clock: ManualClock, turns: Turns, scheduler: Any, gate: Gate
) -> None:
    register_handler("seed.gate", gate)
    first = enqueue("seed.gate")
    enqueue("seed.gate", run_at=clock.value + timedelta(seconds=7))
    works = scheduler(concurrency=1)
    works.start()
    until(lambda: gate.entered)
    count = len(turns.sleeps)
    nudge()
    until(lambda: len(turns.sleeps) > count)
    assert turns.sleeps[-1] is None
    gate.let_go()
    settled(first)


def test_schedule_timer_does_not_keep_the_process_alive(scheduler: Any) -> None:
    scheduler().tick()
    threads = {thread.name: thread for thread in threading.enumerate()}
    assert threads["scheduler"].daemon
    assert threads["keeper"].daemon


def test_stop_timer_shutdown_leaves_no_thread_behind(scheduler: Any) -> None:
    register_handler("seed.job", lambda: None)
    before = set(threading.enumerate())
    job = enqueue("seed.job")
    works = scheduler()
    works.start()
    settled(job)
    works.shutdown()
    until(lambda: set(threading.enumerate()) <= before, "the end of all threads")
