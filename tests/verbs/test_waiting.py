"""Waiting for a job, and the async twins of the verbs."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
import uuid
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connections
from django.db.transaction import atomic

import django_durable_jobs
from django_durable_jobs import (
    acancel,
    aenqueue,
    aenqueue_many,
    aget_job,
    aget_receipt,
    apause,
    areplace_queued,
    arequeue,
    aresolve,
    aresume,
    await_job,
    awake,
    cancel,
    enqueue,
    list_jobs,
    wait,
)
from django_durable_jobs.claims import settle
from django_durable_jobs.db import Outcome, transaction
from django_durable_jobs.errors import (
    DurableJobsError,
    IdempotencyConflict,
    InvalidJob,
    JobDoesNotExist,
    NotQueued,
)
from django_durable_jobs.models import Job, Namespace
from django_durable_jobs.states import SETTLED, ExecutionState, State
from tests.factories import assert_queue_is_sound, make_execution, make_job
from tests.racing import meanwhile

pytestmark = pytest.mark.django_db(transaction=True)


def settle_later(job: Job, edge: str, after: float = 0.15) -> Any:
    def settled() -> None:
        time.sleep(after)
        assert job.claim_id is not None
        with transaction("default") as own:
            settle(own, [Outcome(job_id=job.pk, claim_id=job.claim_id, edge=edge)])

    return meanwhile(settled)


@pytest.mark.parametrize("state", SETTLED)
def test_what_is_settled_is_returned_at_once(state: State) -> None:
    other = make_job(state)
    started = time.monotonic()
    assert wait(other, timeout=0).state == state
    assert time.monotonic() - started < 1


@pytest.mark.parametrize(
    ("edge", "state"),
    [("complete", "completed"), ("fail", "failed"), ("interrupt", "interrupted")],
)
def test_waiting_ends_with_the_job(edge: str, state: str) -> None:
    running = make_job(State.RUNNING)
    done = settle_later(running, edge)
    found = wait(str(running.pk), timeout=30)
    assert (found, found.state) == (running, state)
    assert done() is None


def test_waiting_ends_when_the_job_is_cancelled() -> None:
    queued = enqueue("x")
    done = meanwhile(lambda: (time.sleep(0.1), cancel(queued.pk)))
    assert wait(queued, timeout=30).state == State.CANCELLED
    done()


def test_a_job_that_goes_back_to_the_queue_is_waited_for_on() -> None:
    running = make_job(State.RUNNING)
    done = settle_later(running, "retry", after=0)
    with pytest.raises(TimeoutError, match="queued"):
        wait(running, timeout=0.3)
    done()


def test_waiting_ends_at_the_timeout() -> None:
    queued = enqueue("x")
    started = time.monotonic()
    with pytest.raises(TimeoutError) as caught:
        wait(queued, timeout=0.2)
    assert 0.2 <= time.monotonic() - started < 2
    assert str(queued.pk) in str(caught.value)
    with pytest.raises(TimeoutError):
        wait(queued, timeout=0)


def test_waiting_inside_a_transaction_raises_at_once() -> None:
    queued = enqueue("x")
    with atomic(), pytest.raises(DurableJobsError) as caught:
        wait(queued, timeout=30)
    assert caught.value.code == "in-transaction"


@pytest.mark.parametrize("id", [uuid.UUID(int=1), "7", None])
def test_waiting_for_nobody_raises(id: Any) -> None:
    with pytest.raises(JobDoesNotExist):
        wait(id, timeout=30)


@pytest.mark.parametrize(
    "timeout",
    [
        *(float("nan"), -1, -0.001, float("-inf"), -(10**400), timedelta(seconds=-1)),
        *("x", "5", None, True, False, b"5", [5], 10j),
    ],
)
def test_a_senseless_timeout_is_refused_at_once(timeout: Any) -> None:
    queued = enqueue("x")
    started = time.monotonic()
    for refused in (wait, async_to_sync(await_job)):
        with pytest.raises(InvalidJob, match="timeout: must be a number of seconds") as caught:
            refused(queued, timeout)
        assert (caught.value.field, caught.value.path) == ("timeout", "timeout")
        assert len(str(caught.value)) < 200
    assert time.monotonic() - started < 1


@pytest.mark.parametrize("timeout", [float("inf"), 10**400, 1e308, timedelta.max, 30])
def test_any_time_to_come_is_a_timeout(timeout: Any) -> None:
    running = make_job(State.RUNNING)
    done = settle_later(running, "complete", after=0.05)
    assert wait(running, timeout).state == State.COMPLETED
    done()


def test_waiting_ends_when_the_job_is_pruned() -> None:
    queued = enqueue("x")
    done = meanwhile(lambda: (time.sleep(0.1), Job.objects.all().delete()))
    with pytest.raises(JobDoesNotExist):
        wait(queued, timeout=30)
    done()


# Async


def test_each_verb_has_an_async_twin() -> None:
    names = {"enqueue", "enqueue_many", "cancel", "replace_queued", "requeue", "resolve"}
    names |= {"get_job", "get_receipt", "pause", "resume", "wake"}
    for name in names:
        assert f"a{name}" in django_durable_jobs.__all__
        assert inspect.iscoroutinefunction(getattr(django_durable_jobs, f"a{name}")) or callable(
            getattr(django_durable_jobs, f"a{name}")
        )
    assert "await_job" in django_durable_jobs.__all__


def test_the_async_twins_do_the_same() -> None:
    async def story() -> None:
        queued = await aenqueue("x", {"a": 1}, idempotency_key="k")
        again = await aenqueue("x", {"a": 1}, idempotency_key="k")
        assert (again, again.created) == (queued, False)
        with pytest.raises(IdempotencyConflict):
            await aenqueue("x", {"a": 2}, idempotency_key="k")
        assert len(await aenqueue_many([{"type": "y"}, {"type": "z"}])) == 2
        replaced = await areplace_queued(queued.pk, priority=5)
        assert replaced is not None
        assert replaced.priority == 5
        cancelled = await acancel(queued.pk, "because")
        assert cancelled is not None
        with pytest.raises(NotQueued):
            await acancel(queued.pk)
        assert (await arequeue(queued.pk)).state == State.QUEUED
        found = await aget_job(queued.pk)
        assert found is not None
        assert found.state == State.QUEUED
        assert await aget_receipt(queued.pk) is None
        assert {each.type async for each in list_jobs()} == {"x", "y", "z"}
        await apause("default", by="ann")
        assert (await Namespace.objects.aget()).paused_by == "ann"
        await aresume("default")
        await awake()

    async_to_sync(story)()
    assert_queue_is_sound()


def test_an_interrupted_job_is_resolved_from_async_code() -> None:
    other = make_job(State.INTERRUPTED)
    make_execution(make_job(), ExecutionState.FAILED)
    assert async_to_sync(aresolve)(other.pk, "done", by="ann").state == State.COMPLETED


def test_async_waiting_holds_nobody_up_and_leaves_no_connection_behind() -> None:
    running = make_job(State.RUNNING)
    closed_in: list[int] = []
    backend = type(connections["default"])
    close = backend.close

    def noted(self: Any) -> None:
        closed_in.append(threading.get_ident())
        close(self)

    async def story() -> Job:
        waiting = asyncio.ensure_future(await_job(running.pk, 30))
        await asyncio.sleep(0.05)
        assert (await aget_job(running.pk)).state == State.RUNNING  # type: ignore[union-attr]
        assert not waiting.done()
        return await waiting

    done = settle_later(running, "complete")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "close", noted)
        assert async_to_sync(story)().state == State.COMPLETED
        done()
        assert len(set(closed_in) - {threading.get_ident()}) == 2  # the settler's, the waiter's
    with pytest.raises(TimeoutError):
        async_to_sync(await_job)(enqueue("x"), 0.05)
