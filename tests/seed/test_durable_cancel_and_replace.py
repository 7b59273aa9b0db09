"""S1 cancel, replaceQueued: only what is queued can be withdrawn or changed."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_durable_jobs import cancel, enqueue, get_job, register_handler, replace_queued
from django_durable_jobs.db import ManualClock
from django_durable_jobs.errors import IdempotencyConflict, InvalidJob, NotQueued
from django_durable_jobs.models import Job
from django_durable_jobs.states import State
from tests.factories import assert_queue_is_sound, make_job

from .conftest import settled, until

pytestmark = pytest.mark.django_db(transaction=True)

NOT_QUEUED = [state.value for state in State if state != State.QUEUED]
LATER = datetime(2030, 1, 1, tzinfo=UTC)


# cancel


def test_cancel_unknown_job_is_none() -> None:
    assert cancel(uuid.uuid4()) is None
    assert cancel("no uuid") is None


@pytest.mark.parametrize("state", NOT_QUEUED)
def test_cancel_refuses_what_is_not_queued(state: str) -> None:
    job = make_job(state)
    with pytest.raises(NotQueued, match="Only queued jobs can be cancelled") as caught:
        cancel(job.pk, "reason")
    assert (caught.value.job_id, caught.value.state) == (job.pk, state)
    assert get_job(job.pk).__dict__.items() >= {"state": state, "cancelled_reason": None}.items()


def test_cancel_queued_job(clock: ManualClock) -> None:
    job = enqueue("seed.job")
    clock.advance(5)
    done = cancel(job.pk, "not needed")
    assert done is not None
    for each in (done, get_job(job.pk)):
        assert each is not None
        assert (each.state, each.cancelled_reason) == (State.CANCELLED, "not needed")
        assert each.updated_at == each.finished_at == clock.value
    assert_queue_is_sound()


def test_cancel_waiting_for_a_retry_is_queued() -> None:
    job = make_job(held_reason="retry", attempts=1, claimable_at=LATER)
    assert cancel(job.pk) is not None


@pytest.mark.parametrize("reason", [None, 7, {"why": "x"}, b"bytes"])
def test_cancel_reason_that_is_not_text_is_none(reason: Any) -> None:
    done = cancel(enqueue("seed.job").pk, reason)
    assert done is not None
    assert done.cancelled_reason is None


def test_cancel_reason_is_cut_at_1024_characters() -> None:
    """changed: the cut is marked, inside the 1,024."""
    fits = cancel(enqueue("seed.job").pk, "é" * 1024)
    cut = cancel(enqueue("seed.job").pk, "é" * 1025)
    assert fits is not None
    assert cut is not None
    assert fits.cancelled_reason == "é" * 1024
    assert cut.cancelled_reason is not None
    assert len(cut.cancelled_reason) <= 1024
    assert cut.cancelled_reason.startswith("é" * 900)


def test_cancel_the_job_never_runs(scheduler: Any) -> None:
    ran: list[str] = []
    register_handler("seed.job", lambda name: ran.append(name))
    cancelled = enqueue("seed.job", {"name": "cancelled"})
    cancel(cancelled.pk)
    other = enqueue("seed.job", {"name": "other"})
    scheduler().start()
    settled(other)
    assert ran == ["other"]


# replaceQueued


def test_replace_queued_unknown_job_is_none() -> None:
    assert replace_queued(uuid.uuid4(), payload=1) is None
    assert replace_queued("no uuid", payload=1) is None


@pytest.mark.parametrize("state", NOT_QUEUED)
def test_replace_queued_refuses_what_is_not_queued(state: str) -> None:
    job = make_job(state)
    with pytest.raises(NotQueued, match="replaced") as caught:
        replace_queued(job.pk, payload=1)
    assert (caught.value.job_id, caught.value.state) == (job.pk, state)


CHANGES: dict[str, Any] = {
    "type": "seed.other",
    "idempotency_key": "other",
    "owner_id": "other",
    "project_id": "other",
    "target": {"kind": "other", "id": "8"},
    "payload": {"n": 2},
    "run_at": LATER,
}


def stored(id: uuid.UUID) -> dict[str, Any]:
    job = Job.objects.get(pk=id)
    return {name: getattr(job, name) for name in (*CHANGES, "id", "created_at", "state")}


@pytest.mark.parametrize("name", CHANGES)
def test_replace_queued_changes_what_is_given_and_keeps_the_rest(
    name: str, clock: ManualClock
) -> None:
    job = enqueue("seed.job", {"n": 1}, owner_id="o", run_at=LATER - timedelta(1))
    before = stored(job.pk)
    clock.advance(5)
    replaced = replace_queued(job.pk, **{name: CHANGES[name]})
    assert replaced is not None
    assert stored(job.pk) == before | {name: CHANGES[name]}
    assert replaced.updated_at == clock.value
    assert_queue_is_sound()


def test_replace_queued_changes_everything_at_once() -> None:
    job = enqueue("seed.job", {"n": 1})
    before = stored(job.pk)
    replaced = replace_queued(job.pk, **CHANGES)
    assert replaced is not None
    assert stored(job.pk) == before | CHANGES
    assert (replaced.target_kind, replaced.target_id) == ("other", "8")
    # The new key serves from now on, and the old one is free.
    assert not enqueue(**CHANGES).created
    assert enqueue("seed.job", idempotency_key=before["idempotency_key"]).created


@pytest.mark.parametrize("name", [name for name in CHANGES if name != "payload"])
def test_replace_queued_validates_again(name: str) -> None:
    job = enqueue("seed.job", 1)
    before = stored(job.pk)
    with pytest.raises(InvalidJob) as caught:
        replace_queued(job.pk, **{name: 7})
    assert caught.value.field == name
    assert stored(job.pk) == before


def test_replace_queued_explicit_null_is_a_value() -> None:
    job = enqueue("seed.job", {"n": 1})
    replaced = replace_queued(job.pk, payload=None)
    assert replaced is not None
    assert replaced.payload is None
    with pytest.raises(InvalidJob):
        replace_queued(job.pk, idempotency_key=None)


def test_replace_queued_refuses_names_it_does_not_know() -> None:
    """changed: the seed ignores them, so a typing mistake changes nothing and says nothing."""
    job = enqueue("seed.job")
    with pytest.raises(InvalidJob, match="owner_id"):
        replace_queued(job.pk, ownerid="x")


def test_replace_queued_to_a_key_that_another_job_has_is_a_conflict() -> None:
    other = enqueue("seed.job", idempotency_key="taken")
    job = enqueue("seed.job", idempotency_key="mine")
    with pytest.raises(IdempotencyConflict) as caught:
        replace_queued(job.pk, idempotency_key="taken")
    assert caught.value.job_id == other.pk
    assert stored(job.pk)["idempotency_key"] == "mine"


def test_replace_queued_with_equal_data_writes_nothing(clock: ManualClock) -> None:
    """changed: the seed sets updatedAt all the same."""
    job = enqueue("seed.job", {"a": 1, "b": 2})
    clock.advance(5)
    replaced = replace_queued(job.pk, payload={"b": 2, "a": 1})
    assert replaced is not None
    assert replaced.updated_at == job.updated_at


def test_replace_queued_wakes_a_sleeping_scheduler(scheduler: Any) -> None:
    register_handler("seed.job", lambda: None)
    job = enqueue("seed.job", run_at=LATER)
    asleep = scheduler()
    asleep.start()
    assert asleep.wait_until_idle(10)
    replace_queued(job.pk, run_at=None)
    (job,) = settled(job)
    assert job.state == State.COMPLETED


def test_replace_queued_later_run_at_is_waited_for(scheduler: Any, clock: ManualClock) -> None:
    register_handler("seed.job", lambda: None)
    job = enqueue("seed.job")
    replace_queued(job.pk, run_at=clock.value + timedelta(seconds=60))
    works = scheduler()
    assert works.tick() == 0
    clock.advance(59.9)
    assert works.tick() == 0
    clock.advance(0.1)
    assert works.tick() == 1
    settled(job)
    until(lambda: works.status()["active"] == 0)
