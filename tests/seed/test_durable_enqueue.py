"""S1 enqueue, findJob, findIdempotency: a job is put in once for each key."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import DatabaseError, connection
from django.db.transaction import atomic, set_rollback

from django_durable_jobs import enqueue, get_job, list_jobs, register_handler, replace_queued
from django_durable_jobs.db import ManualClock
from django_durable_jobs.errors import DuplicateJob, IdempotencyConflict, InvalidJob
from django_durable_jobs.states import State
from tests.factories import make_job

from .conftest import settled

pytestmark = pytest.mark.django_db(transaction=True)

RUN_AT = datetime(2030, 1, 1, tzinfo=UTC)
SPEC: dict[str, Any] = {
    "type": "seed.job",
    "idempotency_key": "key",
    "owner_id": "owner",
    "project_id": "project",
    "target": {"kind": "invoice", "id": "7"},
    "payload": {"a": 1, "b": [2]},
    "run_at": RUN_AT,
}


def test_enqueue_new_job_is_queued(clock: ManualClock) -> None:
    job = enqueue(**SPEC)
    stored = get_job(job.pk)
    assert stored is not None
    for each in (job, stored):
        assert each.state == State.QUEUED
        assert each.created_at == each.updated_at == clock.value
        assert each.claim_id is None
        assert each.latest_execution is None
    assert job.created


def test_enqueue_gives_an_id_of_its_own() -> None:
    first, second = enqueue("seed.job"), enqueue("seed.job")
    assert first.pk != second.pk
    # Ordered by time, so that new rows stand together in the index.
    assert first.pk < second.pk


def test_enqueue_takes_the_id_given() -> None:
    id = uuid.uuid4()
    assert enqueue("seed.job", id=id).pk == id
    assert enqueue("seed.job", id=(text := str(uuid.uuid4()))).pk == uuid.UUID(text)


def test_enqueue_refuses_an_id_that_is_no_uuid() -> None:
    """changed: any text is an id for the seed."""
    with pytest.raises(InvalidJob) as caught:
        enqueue("seed.job", id="job-1")
    assert caught.value.field == "id"


def test_enqueue_refuses_an_id_that_exists() -> None:
    job = enqueue("seed.job")
    with pytest.raises(DuplicateJob) as caught:
        enqueue("seed.job", id=job.pk)
    assert caught.value.job_id == job.pk
    assert list_jobs().count() == 1


def test_enqueue_same_key_same_data_returns_the_job() -> None:
    first = enqueue(**SPEC)
    second = enqueue(**SPEC)
    assert second.pk == first.pk
    assert (first.created, second.created) == (True, False)
    assert list_jobs().count() == 1


def test_enqueue_same_key_same_data_ignores_the_id_given() -> None:
    first = enqueue(**SPEC)
    assert enqueue(**SPEC, id=uuid.uuid4()).pk == first.pk


@pytest.mark.parametrize("state", [state.value for state in State])
def test_enqueue_same_key_returns_the_job_in_any_state(state: str) -> None:
    type = SPEC["type"]
    spec = {name: value for name, value in SPEC.items() if name != "type"}
    there = make_job(state, type=type, **spec)
    found = enqueue(**SPEC)
    assert (found.pk, found.state, found.created) == (there.pk, state, False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("type", "seed.other"),
        ("owner_id", "other"),
        ("project_id", "other"),
        ("run_at", datetime(2030, 1, 2, tzinfo=UTC)),
        ("target", {"kind": "invoice", "id": "8"}),
        ("payload", {"a": True, "b": [2]}),
        ("payload", {"a": 1, "b": [2, 3]}),
    ],
)
def test_enqueue_same_key_other_data_is_a_conflict(name: str, value: object) -> None:
    first = enqueue(**SPEC)
    with pytest.raises(IdempotencyConflict, match="already used with different job data") as caught:
        enqueue(**{**SPEC, name: value})
    assert caught.value.job_id == first.pk
    assert list_jobs().count() == 1


@pytest.mark.parametrize(("name", "value"), [("queue", "other"), ("priority", 1)])
def test_enqueue_same_key_other_queue_or_priority_is_a_conflict(name: str, value: object) -> None:
    """changed: the seed has neither."""
    enqueue(**SPEC)
    with pytest.raises(IdempotencyConflict):
        enqueue(**SPEC, **{name: value})


def test_enqueue_same_key_other_key_order_is_the_same_data() -> None:
    """changed: the seed compares JSON text, for which the order of keys matters."""
    first = enqueue(**SPEC)
    turned = {
        "payload": {"b": [2], "a": 1.0},
        "target": dict(reversed(list(SPEC["target"].items()))),
    }
    assert enqueue(**(SPEC | turned)).pk == first.pk


def test_enqueue_same_key_without_run_at_is_the_same_data() -> None:
    """changed: the seed requires run_at, so it always compares it."""
    first = enqueue(**SPEC)
    assert enqueue(**{**SPEC, "run_at": None}).pk == first.pk


def test_enqueue_conflict_leaves_the_callers_transaction_usable() -> None:
    first = enqueue(**SPEC)
    with atomic():
        with pytest.raises(IdempotencyConflict):
            enqueue(**{**SPEC, "owner_id": "other"})
        second = enqueue("seed.job")
    assert {job.pk for job in list_jobs()} == {first.pk, second.pk}


def test_enqueue_is_rolled_back_with_the_callers_transaction() -> None:
    """changed: the seed's job is saved at once; here it is part of what the caller does."""
    with atomic():
        enqueue(**SPEC)
        set_rollback(True)
    assert not list_jobs().exists()


def test_enqueue_of_nothing_is_refused() -> None:
    with pytest.raises(TypeError):
        enqueue()  # type: ignore[call-arg]
    with pytest.raises(InvalidJob):
        enqueue(None)  # type: ignore[arg-type]


def test_enqueue_returns_a_copy() -> None:
    job = enqueue(**SPEC)
    job.payload["a"] = 2
    stored = get_job(job.pk)
    assert stored is not None
    assert stored.payload == SPEC["payload"]


def test_enqueue_wakes_a_sleeping_scheduler(scheduler: Any) -> None:
    register_handler("seed.job", lambda: None)
    asleep = scheduler()
    asleep.start()
    assert asleep.wait_until_idle(10)
    (job,) = settled(enqueue("seed.job"))
    assert job.state == State.COMPLETED


def test_find_job_unknown_is_none() -> None:
    assert get_job(uuid.uuid4()) is None
    assert get_job("no uuid") is None


def test_find_job_by_id_or_its_text() -> None:
    job = enqueue("seed.job")
    assert get_job(job.pk) == get_job(str(job.pk)) == job


def test_find_idempotency_is_exact() -> None:
    keys = ["key", "KEY", "key ", " key", "kéy"]
    jobs = [enqueue("seed.job", n, idempotency_key=key) for n, key in enumerate(keys)]
    assert all(job.created for job in jobs)


def test_find_idempotency_looks_in_its_own_namespace() -> None:
    here = enqueue("seed.job", 1, idempotency_key="key")
    there = enqueue("seed.job", 2, idempotency_key="key", namespace="there")
    assert there.created
    assert here.pk != there.pk


def test_find_idempotency_leaves_out_the_job_itself() -> None:
    job = enqueue("seed.job", 1, idempotency_key="key")
    replaced = replace_queued(job.pk, idempotency_key="key", payload=2)
    assert replaced is not None
    assert replaced.payload == 2


# persist, as far as enqueue is concerned


def test_persist_a_failed_save_reaches_the_caller_and_stores_nothing(monkeypatch: Any) -> None:
    """changed: only this call fails; the seed refuses everything from then on."""

    def refuse(*_: Any) -> None:
        raise DatabaseError("disk full")

    with connection.execute_wrapper(refuse), pytest.raises(DatabaseError, match="disk full"):
        enqueue(**SPEC)
    assert not list_jobs().exists()
    assert enqueue(**SPEC).created
