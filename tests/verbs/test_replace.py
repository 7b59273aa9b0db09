"""Replacing a queued job: what changes, what stays, and what is refused."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection
from django.db.models import JSONField, Value
from django.db.transaction import atomic
from django.test.utils import CaptureQueriesContext

from django_durable_jobs import enqueue, job, replace_queued
from django_durable_jobs.claims import NEVER
from django_durable_jobs.errors import IdempotencyConflict, InvalidJob, NotQueued
from django_durable_jobs.models import Job, QueueEntry
from django_durable_jobs.registry import handlers
from django_durable_jobs.states import HeldReason, State
from tests.factories import assert_queue_is_sound, make_job, now

pytestmark = pytest.mark.django_db

LATER = datetime(2031, 5, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    with handlers.preserved():
        yield


@pytest.fixture
def queued() -> Job:
    return enqueue(
        "x",
        {"a": 1},
        owner_id="acme",
        target={"kind": "k", "id": "i"},
        idempotency_key="key",
        priority=3,
        queue="mail",
        meta={"m": 1},
        run_at=LATER,
    )


CHANGES: dict[str, Any] = {
    "type": "y",
    "idempotency_key": "other",
    "owner_id": "",
    "project_id": "apollo",
    "target": {"kind": "l", "id": "j", "x": [1]},
    "payload": {"b": [2]},
    "run_at": LATER + timedelta(microseconds=1),
    "priority": -3,
    "queue": "slow",
    "meta": {"n": 2},
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_value_can_be_replaced_and_the_rest_stays(queued: Job, name: str) -> None:
    before = Job.objects.values().get()
    returned = replace_queued(queued.pk, **{name: CHANGES[name]})
    after = Job.objects.values().get()
    assert returned is not None
    assert getattr(returned, name) == after[name] == CHANGES[name]
    follow = {
        "idempotency_key": {"key_hash"},
        "target": {"fingerprint", "target_kind", "target_id"},
        "run_at": {"claimable_at"},
        "meta": set(),
        "type": {"fingerprint"},
    }.get(name, {"fingerprint"})
    changed = {column for column in after if after[column] != before[column]}
    assert changed - {"updated_at"} == {name, *follow}
    assert after["updated_at"] >= before["updated_at"]
    assert_queue_is_sound()


def test_all_can_be_replaced_at_once(queued: Job) -> None:
    replace_queued(str(queued.pk), **CHANGES)
    found = Job.objects.get(pk=queued.pk)
    assert {name: getattr(found, name) for name in CHANGES} == CHANGES
    assert (found.target_kind, found.target_id) == ("l", "j")
    assert found.created_at == queued.created_at
    assert_queue_is_sound()
    values = CHANGES | {"type": "y"}
    assert enqueue(**values) == found  # its key and its data are the new ones
    assert enqueue("x", idempotency_key="key").created


def test_none_is_a_value(queued: Job) -> None:
    before = now() - timedelta(seconds=5)
    found = replace_queued(queued.pk, payload=None, meta=None, run_at=None)
    assert found is not None
    assert (found.payload, found.meta) == (None, {})
    assert before < found.run_at == found.claimable_at < before + timedelta(minutes=1)
    assert Job.objects.get(payload=Value(None, JSONField())) == queued
    assert QueueEntry.objects.get().due
    assert_queue_is_sound()


@pytest.mark.parametrize("name", sorted(set(CHANGES) - {"payload", "meta", "run_at"}))
def test_none_is_refused_where_it_is_no_value(queued: Job, name: str) -> None:
    with pytest.raises(InvalidJob, match="None is not accepted") as caught:
        replace_queued(queued.pk, **{name: None})
    assert caught.value.field == name


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"prioritty": 1}, "prioritty"),
        ({"namespace": "elsewhere"}, "namespace"),
        ({"key_scope": "live"}, "key_scope"),
        ({"state": "completed"}, "state"),
        ({"created_at": LATER}, "created_at"),
        ({"owner_id": "x" * 257}, "owner_id"),
        ({"payload": {"a": float("nan")}}, "payload"),
        ({"payload": {"a": uuid.uuid4()}}, "payload"),
        ({"target": {"kind": "k"}}, "target"),
        ({"priority": 101}, "priority"),
        ({"run_at": datetime(9999, 1, 1, tzinfo=UTC)}, "run_at"),
        ({"queue": ""}, "queue"),
    ],
)
def test_what_is_wrong_is_refused_by_name(queued: Job, changes: Any, field: str) -> None:
    before = Job.objects.values().get()
    with pytest.raises(InvalidJob) as caught:
        replace_queued(queued.pk, **changes, meta={"lost": 1})
    assert caught.value.field == field
    assert Job.objects.values().get() == before
    assert_queue_is_sound()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"payload": {"a": 1.0}},
        {"run_at": LATER.astimezone()},
        {"idempotency_key": "key", "priority": 3, "target": {"id": "i", "kind": "k"}},
        {
            "type": "x",
            "owner_id": "acme",
            "project_id": "default",
            "queue": "mail",
            "meta": {"m": 1},
        },
    ],
    ids=str,
)
def test_equal_data_writes_nothing(queued: Job, changes: dict[str, Any]) -> None:
    before = Job.objects.values().get()
    with CaptureQueriesContext(connection) as queries:
        assert replace_queued(queued.pk, **changes) == queued
    assert Job.objects.values().get() == before
    writes = ("INSERT", "UPDATE", "DELETE")
    assert not [query for query in queries if query["sql"].startswith(writes)]


def test_the_payload_is_bound_to_its_handler_again() -> None:
    @job("made.here")
    def work(price: Decimal) -> None: ...

    queued = enqueue(work, {"price": Decimal("1.50")})
    with pytest.raises(InvalidJob, match="does not take 'prize'"):
        replace_queued(queued.pk, payload={"prize": "1"})
    found = replace_queued(queued.pk, payload={"price": Decimal("2.50")})
    assert found is not None
    assert found.payload == {"price": "2.50"}
    other = enqueue("unknown.here", {"a": 1})
    with pytest.raises(InvalidJob, match="needs 'price'"):
        replace_queued(other.pk, type="made.here")
    found = replace_queued(other.pk, type=work, payload={"price": Decimal("3")})
    assert found is not None
    assert (found.type, found.payload) == ("made.here", {"price": "3"})


def test_the_key_of_another_job_is_refused(queued: Job) -> None:
    other = enqueue("y", idempotency_key="taken")
    enqueue("y", idempotency_key="free", namespace="elsewhere")
    before = Job.objects.values().get(pk=queued.pk)
    with atomic():
        with pytest.raises(IdempotencyConflict) as caught:
            replace_queued(queued.pk, idempotency_key="taken", priority=9)
        assert caught.value.job_id == other.pk
        assert Job.objects.values().get(pk=queued.pk) == before
    found = replace_queued(queued.pk, idempotency_key="free")
    assert found is not None
    assert found.idempotency_key == "free"
    assert_queue_is_sound()


def test_the_queue_entry_follows(queued: Job) -> None:
    replace_queued(
        queued.pk, priority=-5, owner_id="b", queue="slow", type="y", run_at=now() - timedelta(1)
    )
    entry = QueueEntry.objects.get()
    assert (entry.rank, entry.owner_id, entry.queue, entry.type) == (5, "b", "slow", "y")
    assert entry.due
    assert entry.claimable_at == entry.run_at == Job.objects.get().run_at
    replace_queued(queued.pk, run_at=LATER)
    assert not QueueEntry.objects.get().due
    assert_queue_is_sound()


def waiting(reason: str, until: datetime, **values: Any) -> Job:
    held = {"held_reason": reason, "held_since": now(), "claimable_at": until}
    return make_job(type="x", attempts=1, **(held | values))


def test_a_job_that_waits_for_its_retry_waits_on() -> None:
    retry_at = now() + timedelta(hours=1)
    queued = waiting(HeldReason.RETRY, retry_at)
    found = replace_queued(queued.pk, payload={"new": 1}, run_at=queued.run_at)
    assert found is not None
    assert (found.claimable_at, found.held_reason) == (retry_at, HeldReason.RETRY)
    assert found.attempts == 1
    assert not QueueEntry.objects.get().due
    assert_queue_is_sound()


def test_a_new_run_at_ends_the_wait_for_a_retry() -> None:
    queued = waiting(HeldReason.RETRY, now() + timedelta(hours=1))
    found = replace_queued(queued.pk, run_at=None)
    assert found is not None
    assert (found.held_reason, found.held_since, found.attempts) == ("", None, 1)
    assert QueueEntry.objects.get().due
    assert_queue_is_sound()


@pytest.mark.parametrize(
    ("reason", "until"),
    [(HeldReason.NO_HANDLER, NEVER), (HeldReason.NOT_ELIGIBLE, LATER)],
    ids=["no_handler", "not_eligible"],
)
def test_what_was_put_off_for_what_it_was_is_looked_at_again(
    reason: HeldReason, until: datetime
) -> None:
    queued = waiting(reason, until)
    found = replace_queued(queued.pk, type="known.now")
    assert found is not None
    assert (found.held_reason, found.held_since) == ("", None)
    assert found.claimable_at == found.run_at == queued.run_at
    assert QueueEntry.objects.get().due
    assert_queue_is_sound()


@pytest.mark.parametrize("state", sorted(set(State) - {State.QUEUED}))
def test_only_queued_jobs_are_replaced(state: State) -> None:
    other = make_job(state)
    before = Job.objects.values().get()
    with pytest.raises(NotQueued) as caught:
        replace_queued(other.pk, priority=1)
    assert (caught.value.state, caught.value.job_id) == (state, other.pk)
    assert state in str(caught.value)
    assert Job.objects.values().get() == before
    assert_queue_is_sound()


@pytest.mark.parametrize(
    "id", [uuid.UUID(int=1), str(uuid.UUID(int=2)), "7", "", "x" * 100, None, 7]
)
def test_no_such_job_is_none(id: Any) -> None:
    assert replace_queued(id, priority=1) is None


def test_a_job_of_another_namespace_is_found_by_its_id() -> None:
    other = enqueue("x", namespace="elsewhere", idempotency_key="k")
    enqueue("x", idempotency_key="l")
    found = replace_queued(other, idempotency_key="l", priority=2)
    assert found is not None
    assert (found.namespace, found.priority) == ("elsewhere", 2)


def test_it_takes_part_in_the_callers_transaction(queued: Job) -> None:
    before = Job.objects.values().get()
    savepoint = atomic()
    savepoint.__enter__()
    replace_queued(queued.pk, priority=9)
    savepoint.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert Job.objects.values().get() == before
    assert_queue_is_sound()
