"""S1 dispatch, requeueUnstarted: from the claim to the call."""

from __future__ import annotations

import threading
import uuid
from typing import Any

import pytest

from django_durable_jobs import (
    enqueue,
    get_job,
    register_handler,
)
from django_durable_jobs.db import ManualClock
from django_durable_jobs.errors import InvalidJob
from django_durable_jobs.models import Job
from django_durable_jobs.states import ExecutionState, State
from django_durable_jobs.worker import JobContext
from tests.factories import assert_queue_is_sound

from .conftest import Gate, executions, lose, run, settled, until

pytestmark = pytest.mark.django_db(transaction=True)


# dispatch


def test_dispatch_writes_claim_and_start_before_the_call(
    clock: ManualClock, scheduler: Any, gate: Gate
) -> None:
    register_handler("seed.gate", gate)
    job = enqueue("seed.gate")
    works = scheduler()
    assert works.tick() == 1
    until(lambda: gate.entered)
    job.refresh_from_db()
    (execution,) = executions(job)
    assert job.state == execution.state == State.RUNNING
    assert job.claim_id == execution.claim_id
    assert job.updated_at == execution.claimed_at == execution.started_at == clock.value
    assert (execution.attempt, execution.metadata, execution.receipt) == (1, None, None)
    assert execution.worker_id == works.id
    gate.let_go()
    settled(job)


def test_dispatch_makes_the_claim_id(scheduler: Any) -> None:
    made: list[uuid.UUID] = []

    def make_id() -> uuid.UUID:
        made.append(uuid.uuid4())
        return made[-1]

    register_handler("seed.job", lambda: None)
    job = enqueue("seed.job")
    scheduler(make_id=make_id).start()
    (job,) = settled(job)
    assert executions(job)[0].claim_id in made


def test_dispatch_hands_over_job_and_execution(scheduler: Any) -> None:
    seen: dict[str, Any] = {}

    def handler(context: JobContext, n: int) -> None:
        execution = context.execution
        seen.update(n=n, job=context.job.pk, owner=context.job.owner_id, state=execution.state)
        seen.update(claim=context.claim_id == execution.claim_id, attempt=context.attempt)
        seen.update(scheduled=context.scheduled_at == context.job.run_at)

    job = run(scheduler, handler, {"n": 7}, takes_context=True)
    assert job.state == State.COMPLETED
    expected = {"n": 7, "job": job.pk, "owner": "", "state": "running"}
    assert seen == expected | {"claim": True, "attempt": 1, "scheduled": True}


def test_dispatch_payload_fills_the_handlers_parameters(scheduler: Any) -> None:
    """changed: the seed hands over the job; its payload's keys are keyword arguments here."""
    seen: list[Any] = []
    run(scheduler, lambda *, a, b=2: seen.append((a, b)), {"a": 1})
    assert seen == [(1, 2)]


def test_dispatch_raw_payload_goes_over_whole(scheduler: Any) -> None:
    seen: list[Any] = []
    run(scheduler, lambda payload: seen.append(payload), [1, {"a": None}], raw=True)
    assert seen == [[1, {"a": None}]]


def test_dispatch_payload_that_does_not_fit_fails_the_job(scheduler: Any) -> None:
    """changed: any payload suits the seed. Where the handler is known, enqueue refuses it."""
    job = enqueue("seed.job", {"wrong": 1})
    register_handler("seed.job", lambda right: None)
    with pytest.raises(InvalidJob, match="right"):
        enqueue("seed.job", {"wrong": 1})
    scheduler().start()
    (job,) = settled(job)
    (execution,) = executions(job)
    assert (job.state, execution.error_code) == (State.FAILED, "invalid-job")
    assert "right" in execution.error


def test_dispatch_a_job_claimed_meanwhile_is_not_taken_twice(scheduler: Any, gate: Gate) -> None:
    register_handler("seed.gate", gate)
    job = enqueue("seed.gate")
    one, other = scheduler(), scheduler()
    assert (one.tick(), one.tick(), other.tick()) == (1, 0, 0)
    gate.let_go()
    settled(job)
    assert (gate.entered, len(executions(job))) == ([0], 1)


def test_dispatch_a_job_cancelled_meanwhile_is_not_taken(scheduler: Any) -> None:
    """A row that left the queue between the look and the claim: here, one edited by hand."""
    register_handler("seed.job", lambda: None)
    job = enqueue("seed.job")
    Job.objects.filter(pk=job.pk).update(state=State.CANCELLED, finished_at=job.created_at)
    assert scheduler().tick() == 0
    job.refresh_from_db()
    assert (job.state, executions(job)) == (State.CANCELLED, [])


def test_dispatch_without_a_handler_stays_queued(scheduler: Any) -> None:
    job = enqueue("seed.nobody")
    assert scheduler().tick() == 0
    job.refresh_from_db()
    assert (job.state, job.attempts, executions(job)) == (State.QUEUED, 0, [])


def test_dispatch_handler_gone_since_the_claim_is_requeued_unstarted(scheduler: Any) -> None:
    ran: list[str] = []
    unregister = register_handler("seed.job", lambda: ran.append("old"))

    def make_id() -> uuid.UUID:
        if made:  # the first is the worker's, the second the claim's
            unregister()
        made.append(uuid.uuid4())
        return made[-1]

    made: list[uuid.UUID] = []
    job = enqueue("seed.job")
    scheduler(make_id=make_id).start()
    until(lambda: get_job(job.pk).held_reason == "no_handler")
    job.refresh_from_db()
    (execution,) = executions(job)
    assert (job.state, job.claim_id, job.attempts) == (State.QUEUED, None, 0)
    assert (execution.state, execution.started_at) == (ExecutionState.RELEASED, None)
    assert ran == []
    # As soon as somebody knows the type, the job goes on.
    register_handler("seed.job", lambda: ran.append("new"))
    settled(job)
    assert ran == ["new"]


def test_dispatch_handler_replaced_since_the_claim_is_requeued_unstarted(scheduler: Any) -> None:
    ran: list[str] = []

    def can_run(job: Job) -> bool:
        if job.state == State.CLAIMED:
            unregister()
            register_handler("seed.job", lambda: ran.append("new"))
        return True

    unregister = register_handler("seed.job", lambda: ran.append("old"), can_run=can_run)
    job = enqueue("seed.job")
    scheduler().start()
    (job,) = settled(job)
    assert ran == ["new"]
    assert [row.state for row in executions(job)] == ["released", "completed"]
    assert job.attempts == 1


def test_dispatch_ineligible_since_the_claim_is_requeued_unstarted(scheduler: Any) -> None:
    """changed: the job is put off; in the seed it is due again at once, and the loop spins."""
    ran: list[int] = []
    # Asked twice: before the claim, and of the claimed job.
    register_handler("seed.job", lambda: ran.append(1), can_run=lambda job: job.claim_id is None)
    job = enqueue("seed.job")
    scheduler().start()
    until(lambda: executions(job) and executions(job)[0].state == ExecutionState.RELEASED)
    job.refresh_from_db()
    assert (job.state, job.claim_id, job.attempts) == (State.QUEUED, None, 0)
    assert job.held_reason == "not_eligible"
    assert job.claimable_at > job.run_at
    (execution,) = executions(job)
    assert (execution.started_at, ran) == (None, [])
    assert_queue_is_sound()


def test_dispatch_result_completes_the_job(scheduler: Any) -> None:
    job = run(scheduler, lambda: {"sum": 3})
    (execution,) = executions(job)
    assert (job.state, execution.state) == (State.COMPLETED, ExecutionState.COMPLETED)
    assert execution.result == {"sum": 3}


def test_dispatch_exception_fails_the_job(scheduler: Any) -> None:
    def handler() -> None:
        raise ValueError("no such invoice")

    job = run(scheduler, handler)
    (execution,) = executions(job)
    assert (job.state, execution.state) == (State.FAILED, ExecutionState.FAILED)
    assert "no such invoice" in execution.error


def test_dispatch_async_handler_is_awaited(scheduler: Any) -> None:
    async def handler(n: int) -> int:
        return n + 1

    job = run(scheduler, handler, {"n": 1})
    assert executions(job)[0].result == 2


def test_dispatch_async_exception_fails_the_job(scheduler: Any) -> None:
    async def handler() -> None:
        raise ValueError("no")

    job = run(scheduler, handler)
    assert job.state == State.FAILED


def test_dispatch_a_freed_slot_takes_the_next_job(scheduler: Any) -> None:
    seen: list[int] = []
    register_handler("seed.job", lambda n: seen.append(n))
    jobs = [enqueue("seed.job", {"n": n}) for n in range(5)]
    scheduler(concurrency=1).start()
    assert {job.state for job in settled(*jobs)} == {State.COMPLETED}
    assert seen == list(range(5))


def test_dispatch_exception_frees_the_slot_too(scheduler: Any) -> None:
    def handler(n: int) -> None:
        raise SystemExit(n)

    register_handler("seed.job", handler)
    jobs = [enqueue("seed.job", {"n": n}) for n in range(3)]
    scheduler(concurrency=1).start()
    assert {job.state for job in settled(*jobs)} == {State.FAILED}


# requeueUnstarted


def test_requeue_unstarted_keeps_the_execution_and_gives_the_attempt_back(
    scheduler: Any,
) -> None:
    """changed: the seed forgets the execution."""
    asked: list[str] = []

    def can_run(job: Job) -> bool:
        asked.append(job.state)
        return len(asked) != 2

    register_handler("seed.job", lambda: None, can_run=can_run)
    job = enqueue("seed.job")
    scheduler().start()
    (job,) = settled(job)
    assert asked == ["queued", "claimed", "queued", "claimed"]
    first, second = executions(job)
    assert (first.state, second.state) == (ExecutionState.RELEASED, ExecutionState.COMPLETED)
    assert (first.attempt, second.attempt, job.attempts) == (1, 1, 1)
    assert first.released_at is not None


def test_requeue_unstarted_after_the_claim_was_lost_changes_nothing(scheduler: Any) -> None:
    asked, answer = threading.Event(), threading.Event()

    def can_run(job: Job) -> bool:
        if job.state == State.QUEUED:
            return True
        asked.set()
        assert answer.wait(10)
        return False

    register_handler("seed.job", lambda: None, can_run=can_run)
    job = enqueue("seed.job")
    works = scheduler()
    works.start()
    assert asked.wait(10)
    lose(job)
    answer.set()
    until(lambda: works.status()["active"] == 0)
    job.refresh_from_db()
    (execution,) = executions(job)
    assert job.state == execution.state == State.INTERRUPTED
    assert_queue_is_sound()
