"""Asking a job to stop: what is written in each state, and who is told."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.db.transaction import atomic
from django.test.utils import CaptureQueriesContext

from django_durable_jobs import arequest_stop, cancel, enqueue, request_stop, requeue, signals
from django_durable_jobs import claims as claims_room
from django_durable_jobs.db import statements_for, transaction
from django_durable_jobs.errors import NotQueued, WrongState
from django_durable_jobs.models import Execution, Job
from django_durable_jobs.states import ACTIVE, SETTLED, InterruptionReason, State
from tests.claiming import outcome, settle
from tests.factories import assert_queue_is_sound, make_execution, make_job, make_worker, now
from tests.racing import race

pytestmark = pytest.mark.django_db
committed = pytest.mark.django_db(transaction=True)

NOBODY = [uuid.UUID(int=1), str(uuid.UUID(int=2)), "7", "", "x" * 100, None, 7, b"x"]


@pytest.fixture
def heard() -> Iterator[list[str]]:
    """Hear what the workers of this process hear."""
    messages: list[str] = []
    signals.wake_listeners.append(messages.append)
    yield messages
    signals.wake_listeners.remove(messages.append)


def columns(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = Job.objects.filter(pk=job.pk).values().get()
    return found


# In each state


@pytest.mark.parametrize("state", ACTIVE)
def test_a_job_that_is_held_is_asked_to_stop_and_goes_on_being_held(state: State) -> None:
    job = make_job(state)
    found = request_stop(str(job.pk), "wrong\x00customer")
    assert found is not None
    stored = columns(job)
    assert stored["stop_requested_at"] == stored["updated_at"] == found.stop_requested_at
    assert stored["cancelled_reason"] == "wrong\\x00customer"
    assert (stored["state"], stored["claim_id"]) == (state, job.claim_id)
    assert stored["finished_at"] is None
    assert_queue_is_sound()


def test_a_queued_job_is_cancelled() -> None:
    found = request_stop(enqueue("x"), "no longer wanted")
    assert found is not None
    found.refresh_from_db()
    assert (found.state, found.cancelled_reason) == (State.CANCELLED, "no longer wanted")
    assert found.stop_requested_at is None
    assert_queue_is_sound()


def test_a_job_that_waits_for_its_retry_is_cancelled_also_when_it_was_to_stop_before() -> None:
    job = make_job(attempts=1, stop_requested_at=now())
    found = request_stop(job)
    assert found is not None
    assert found.state == State.CANCELLED
    assert_queue_is_sound()


@pytest.mark.parametrize("state", SETTLED)
def test_a_job_that_has_ended_is_refused_and_stays_as_it_is(state: State) -> None:
    job = make_job(state)
    before = columns(job)
    with pytest.raises(WrongState, match=f"can be stopped: job {job.pk} is {state.value}") as error:
        request_stop(job.pk, "too late")
    assert (error.value.state, error.value.job_id, error.value.code) == (
        state,
        job.pk,
        "wrong-state",
    )
    assert not isinstance(error.value, NotQueued)
    assert columns(job) == before


@pytest.mark.parametrize("id", NOBODY)
def test_asking_nobody_is_none(id: Any) -> None:
    assert request_stop(id) is None


@committed
def test_the_async_twin_does_the_same() -> None:
    job = make_job(State.RUNNING)
    found = async_to_sync(arequest_stop)(job.pk, "why")
    assert found is not None
    assert columns(job)["cancelled_reason"] == "why"
    assert async_to_sync(arequest_stop)("nobody") is None


# Asking again, and afterwards


def test_whoever_asks_again_does_not_make_it_later_nor_take_the_reason_away() -> None:
    job = make_job(State.RUNNING)
    first = request_stop(job, "the first reason")
    second = request_stop(job)
    assert first is not None
    assert second is not None
    assert second.stop_requested_at == first.stop_requested_at
    assert second.cancelled_reason == "the first reason"
    third = request_stop(job, "another")
    assert third is not None
    assert third.cancelled_reason == "another"


def test_a_requeue_forgets_the_request() -> None:
    job = make_job(State.INTERRUPTED, stop_requested_at=now(), cancelled_reason="why")
    found = requeue(job)
    assert (found.stop_requested_at, found.cancelled_reason) == (None, None)


@committed
def test_a_job_whose_worker_dies_after_it_was_to_stop_is_not_run_again() -> None:
    """Although its handler had declared itself safe to repeat."""
    job, other = make_job(State.RUNNING, execution=False), make_job(State.RUNNING, execution=False)
    worker = make_worker()
    for each in (job, other):
        make_execution(each, worker=worker, requeue_on_interrupt=True)
    request_stop(job)
    with transaction("default") as own:
        claims_room.interrupt_worker(
            own, worker.pk, InterruptionReason.WORKER_LOST, requeue_unstarted=False
        )
    assert columns(job)["state"] == State.INTERRUPTED
    assert columns(other)["state"] == State.QUEUED
    assert_queue_is_sound()


# Who is told


@committed
def test_the_workers_are_told_which_claim_when_it_is_committed(heard: list[str]) -> None:
    job = make_job(State.RUNNING)
    with atomic():
        request_stop(job)
        assert heard == []
    assert heard == [f"default\n{job.claim_id}"]


@committed
def test_nobody_is_told_of_a_request_that_is_rolled_back(heard: list[str]) -> None:
    job = make_job(State.RUNNING)
    with atomic():
        request_stop(job)
        connection.set_rollback(True)
    assert heard == []
    assert columns(job)["stop_requested_at"] is None


def test_a_refused_request_leaves_the_callers_transaction_usable() -> None:
    over, running = make_job(State.COMPLETED), make_job(State.RUNNING)
    with atomic():
        with pytest.raises(WrongState):
            request_stop(over)
        request_stop(running)
    assert columns(running)["stop_requested_at"] is not None


# What a worker reads of it


@committed
def test_a_worker_finds_the_requests_among_what_it_holds_in_one_query() -> None:
    asked, other, lost = (make_job(State.RUNNING) for _ in range(3))
    request_stop(asked)
    request_stop(lost)
    held = [(job.pk, job.claim_id) for job in (asked, other)]
    held.append((lost.pk, uuid.uuid4()))  # the claim that it had is not the current one
    with CaptureQueriesContext(connection) as queries:
        assert statements_for(connection).stop_requests(held) == {asked.claim_id}
    assert len(queries) == 1


# Races


@committed
def test_a_job_that_ends_at_that_moment_is_stopped_or_refused() -> None:
    for _ in range(5):
        job = make_job(State.RUNNING)
        result, kept = race(
            lambda job=job: request_stop(job.pk), lambda job=job: settle([outcome(job)])
        )
        assert kept == {job.claim_id}
        stored = columns(job)
        assert stored["state"] == State.COMPLETED
        asked = stored["stop_requested_at"] is not None
        assert isinstance(result, Job if asked else WrongState)


@committed
def test_a_stop_and_a_cancel_of_a_queued_job_cancel_it_once() -> None:
    for _ in range(5):
        job = enqueue("x")
        stopped, cancelled = race(
            lambda job=job: request_stop(job.pk, "stop"), lambda job=job: cancel(job.pk, "cancel")
        )
        assert isinstance(stopped, Job) != isinstance(cancelled, Job)
        stored = columns(job)
        assert stored["state"] == State.CANCELLED
        assert stored["cancelled_reason"] == ("stop" if isinstance(stopped, Job) else "cancel")
    assert Execution.objects.count() == 0
    assert_queue_is_sound()
