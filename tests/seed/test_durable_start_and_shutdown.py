"""S1 start, shutdown, registerHandler: beginning and ending."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from django.db import OperationalError

from django_durable_jobs import (
    claims,
    enqueue,
    get_job,
    register_handler,
)
from django_durable_jobs.db import ManualClock
from django_durable_jobs.errors import DuplicateHandler
from django_durable_jobs.models import Execution, Job, Worker
from django_durable_jobs.states import State
from django_durable_jobs.worker import JobContext, Scheduler
from tests.factories import assert_queue_is_sound

from .conftest import START, Configure, Gate, executions, settled, until

pytestmark = pytest.mark.django_db(transaction=True)


# start


def test_start_is_true_once(scheduler: Any) -> None:
    works = scheduler()
    assert [works.start(), works.start(), works.start()] == [True, False, False]


def test_start_takes_what_is_due_at_once(scheduler: Any) -> None:
    register_handler("seed.job", lambda: None)
    jobs = [enqueue("seed.job") for _ in range(2)]
    scheduler().start()
    assert {job.state for job in settled(*jobs)} == {State.COMPLETED}


def test_start_after_a_tick_is_still_the_first(scheduler: Any) -> None:
    works = scheduler()
    works.tick()
    assert not works.status()["started"]
    assert works.start()


# shutdown


def running(gate: Gate, scheduler: Any, **options: Any) -> tuple[Scheduler, Job]:
    """Return a scheduler in the middle of a job."""
    register_handler("seed.gate", gate, **options)
    job = enqueue("seed.gate")
    works = scheduler()
    works.start()
    until(lambda: gate.entered)
    return works, job


def test_shutdown_twice_does_nothing_more(scheduler: Any) -> None:
    works = scheduler()
    works.start()
    works.shutdown()
    works.shutdown()
    assert Worker.objects.get().state == Worker.Status.STOPPED


def test_shutdown_before_start_does_nothing(scheduler: Any) -> None:
    """changed: the seed loads and recovers when a scheduler is made; ours when it first works."""
    scheduler().shutdown()
    assert not Worker.objects.exists()


def test_shutdown_interrupts_what_still_runs(
    clock: ManualClock, scheduler: Any, gate: Gate
) -> None:
    works, job = running(gate, scheduler)
    clock.advance(3)
    works.shutdown(grace=0)
    job.refresh_from_db()
    (execution,) = executions(job)
    assert job.state == execution.state == State.INTERRUPTED
    assert execution.interruption_reason == "scheduler_shutdown"
    assert job.updated_at == execution.interrupted_at == clock.value


def test_shutdown_waits_for_what_ends_within_the_grace(scheduler: Any, gate: Gate) -> None:
    """changed: the seed interrupts at once and ignores the result that comes a moment later."""
    works, job = running(gate, scheduler)
    stops = threading.Thread(target=works.shutdown)
    stops.start()
    until(lambda: works._draining)
    gate.let_go()
    stops.join(20)
    assert not stops.is_alive()
    job.refresh_from_db()
    assert (job.state, executions(job)[0].result) == (State.COMPLETED, 0)


def test_shutdown_ignores_a_result_that_comes_after_it(scheduler: Any, gate: Gate) -> None:
    works, job = running(gate, scheduler)
    slots = [thread for thread in threading.enumerate() if thread.name.startswith("slot")]
    works.shutdown(grace=0)
    gate.let_go()
    for thread in slots:
        thread.join(20)
    job.refresh_from_db()
    (execution,) = executions(job)
    assert (job.state, execution.state) == (State.INTERRUPTED, State.INTERRUPTED)
    assert (execution.completed_at, execution.result) == (None, None)


def test_shutdown_tells_the_handler_to_stop(scheduler: Any, gate: Gate) -> None:
    """changed: the seed does not tell."""
    told: list[bool] = []

    def handler(context: JobContext) -> None:
        gate()
        told.append(context.should_stop)

    register_handler("seed.job", handler, takes_context=True)
    enqueue("seed.job")
    works = scheduler()
    works.start()
    until(lambda: gate.entered)
    works.shutdown(grace=0)
    gate.let_go()
    until(lambda: told)
    assert told == [True]


def test_shutdown_cancels_coroutines_that_still_run(scheduler: Any) -> None:
    """changed: the seed leaves promises to themselves."""
    entered, cleaned_up = threading.Event(), threading.Event()

    async def handler() -> None:
        entered.set()
        try:
            await asyncio.get_running_loop().create_future()  # never comes
        finally:
            cleaned_up.set()

    register_handler("seed.job", handler)
    job = enqueue("seed.job")
    works = scheduler()
    works.start()
    assert entered.wait(10)
    works.shutdown(grace=0)
    assert cleaned_up.wait(10)
    job.refresh_from_db()
    assert job.state == State.INTERRUPTED
    assert executions(job)[0].error == ""
    until(lambda: not any(thread.name == "loop" for thread in threading.enumerate()))


@pytest.mark.parametrize("attempts", [1, 2])
def test_shutdown_requeues_what_its_handler_declares_safe_to_repeat(
    attempts: int, scheduler: Any, gate: Gate
) -> None:
    """changed: the seed has no handlers that may be repeated."""
    works, job = running(gate, scheduler, on_interrupt="requeue", max_attempts=attempts)
    works.shutdown(grace=0)
    job.refresh_from_db()
    (execution,) = executions(job)
    assert job.state == (State.QUEUED if attempts > 1 else State.INTERRUPTED)
    assert execution.interruption_reason == "scheduler_shutdown"
    assert_queue_is_sound()


def test_shutdown_takes_nothing_more(scheduler: Any, gate: Gate) -> None:
    """The one slot becomes free while the shutdown waits, and stays free."""
    works, job = running(gate, lambda: scheduler(concurrency=1))
    waiting = enqueue("seed.gate")
    works.drain()
    gate.let_go()
    works.shutdown()
    job.refresh_from_db()
    waiting.refresh_from_db()
    assert (job.state, waiting.state) == (State.COMPLETED, State.QUEUED)


def test_shutdown_gives_back_what_was_not_begun(scheduler: Any) -> None:
    """changed: for the seed, claimed and started are one step."""
    asked, answer = threading.Event(), threading.Event()

    def can_run(job: Job) -> bool:
        if job.state == State.CLAIMED:
            asked.set()
            answer.wait(10)
        return True

    ran: list[int] = []
    register_handler("seed.job", lambda: ran.append(1), can_run=can_run)
    job = enqueue("seed.job")
    works = scheduler()
    works.start()
    assert asked.wait(10)
    works.shutdown(grace=0)
    answer.set()
    job.refresh_from_db()
    assert (job.state, job.attempts, ran) == (State.QUEUED, 0, [])
    assert executions(job)[0].state == "released"
    assert_queue_is_sound()


def test_shutdown_that_cannot_write_returns_all_the_same(
    scheduler: Any, gate: Gate, configure: Configure, monkeypatch: Any
) -> None:
    configure(HEARTBEAT=0.05)
    works, job = running(gate, scheduler)

    def fails(*_: Any) -> Any:
        raise OperationalError("the server went away")

    with monkeypatch.context() as patch:
        patch.setattr(claims, "settle_apart", fails)
        works.shutdown(grace=0)
    assert works.status()["closed"]
    assert "went away" in works.status()["error"]
    # Its lease ends, and then another worker interrupts what it held.
    Execution.objects.filter(job=job).update(lease_expires_at=START)
    Worker.objects.update(process_start="", boot_id="")
    scheduler().tick()
    (job,) = settled(job)
    assert executions(job)[0].interruption_reason == "worker_lost"


# registerHandler


@pytest.mark.parametrize("type", [None, 7, "", " ", "x" * 257, "a\x00b"])
def test_register_handler_type_must_be_text(type: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="type"):
        register_handler(type, lambda: None)


@pytest.mark.parametrize("handler", [None, "function", 7])
def test_register_handler_must_be_a_function(handler: Any) -> None:
    with pytest.raises(TypeError, match="accepted: a function"):
        register_handler("seed.job", handler)


@pytest.mark.parametrize("can_run", [True, "function", 7])
def test_register_handler_can_run_must_be_a_function(can_run: Any) -> None:
    with pytest.raises(TypeError, match="can_run"):
        register_handler("seed.job", lambda: None, can_run=can_run)


def test_register_handler_twice_is_refused(scheduler: Any) -> None:
    ran: list[str] = []
    register_handler("seed.job", lambda: ran.append("first"))
    with pytest.raises(DuplicateHandler, match=r"seed\.job"):
        register_handler("seed.job", lambda: ran.append("second"))
    job = enqueue("seed.job")
    scheduler().start()
    settled(job)
    assert ran == ["first"]


def test_register_handler_wakes_a_running_scheduler(scheduler: Any) -> None:
    job = enqueue("seed.job")
    works = scheduler()
    works.start()
    until(lambda: get_job(job.pk).held_reason == "no_handler")
    register_handler("seed.job", lambda: None)
    (job,) = settled(job)
    assert job.state == State.COMPLETED


def test_register_handler_returns_what_unregisters_it(scheduler: Any) -> None:
    unregister = register_handler("seed.job", lambda: None, can_run=lambda job: False)
    unregister()
    unregister()  # idempotent
    job = enqueue("seed.job")
    works = scheduler()
    works.tick()
    until(lambda: get_job(job.pk).held_reason == "no_handler")
    # The can_run has gone with its handler.
    register_handler("seed.job", lambda: None)
    works.start()
    settled(job)


def test_register_handler_unregisters_only_its_own(scheduler: Any) -> None:
    ran: list[str] = []
    unregister = register_handler("seed.job", lambda: ran.append("first"))
    unregister()
    register_handler("seed.job", lambda: ran.append("second"))
    unregister()
    job = enqueue("seed.job")
    scheduler().start()
    settled(job)
    assert ran == ["second"]


def test_register_handler_unregistering_lets_running_calls_end(scheduler: Any, gate: Gate) -> None:
    unregister = register_handler("seed.gate", gate)
    job = enqueue("seed.gate")
    scheduler().start()
    until(lambda: gate.entered)
    unregister()
    gate.let_go()
    (job,) = settled(job)
    assert job.state == State.COMPLETED
