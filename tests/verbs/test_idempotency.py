"""One job for one key: what counts as the same data, and what a conflict leaves behind."""

from __future__ import annotations

import logging
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.transaction import atomic
from django.test.utils import CaptureQueriesContext

from django_durable_jobs import cancel, enqueue, enqueue_many, requeue
from django_durable_jobs.claims import settle
from django_durable_jobs.db import Outcome, transaction
from django_durable_jobs.errors import DuplicateJob, IdempotencyConflict, InvalidJob
from django_durable_jobs.models import Job
from django_durable_jobs.states import SETTLED, State
from tests.app.models import Note
from tests.factories import assert_queue_is_sound, make_job

pytestmark = pytest.mark.django_db
committed = pytest.mark.django_db(transaction=True)

NOON = datetime(2031, 5, 1, 12, tzinfo=UTC)


def settled(job: Job, edge: str) -> None:
    assert job.claim_id is not None
    with transaction("default") as own:
        outcome = Outcome(job_id=job.pk, claim_id=job.claim_id, edge=edge)
        assert settle(own, [outcome]) == {job.claim_id}


def test_the_same_key_and_data_give_the_job_that_exists() -> None:
    first = enqueue("x", {"a": 1}, owner_id="acme", idempotency_key="k")
    again = enqueue("x", {"a": 1}, owner_id="acme", idempotency_key="k")
    assert (first.created, again.created) == (True, False)
    assert again == first
    assert again.payload == {"a": 1}
    assert Job.objects.count() == 1
    assert_queue_is_sound()


def test_a_given_id_is_ignored_where_the_key_exists() -> None:
    first = enqueue("x", idempotency_key="k")
    assert enqueue("x", idempotency_key="k", id=uuid.UUID(int=7)) == first
    other = enqueue("x", idempotency_key="other", id=uuid.UUID(int=8))
    assert enqueue("x", idempotency_key="k", id=other.pk) == first
    assert enqueue("x", idempotency_key="other", id=other.pk) == other


EQUAL: list[tuple[Any, Any]] = [
    ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}),
    ({"a": 1}, {"a": 1.0}),
    ({"a": [0]}, {"a": [-0.0]}),
    ({"a": 1e16}, {"a": 10**16}),
    (1e308, 1e308),
]
DIFFERENT: list[tuple[Any, Any]] = [
    ({"a": 1}, {"a": True}),
    ({"a": 0}, {"a": False}),
    ({"a": 1}, {"a": "1"}),
    ({"a": None}, {}),
    (None, {}),
    ({}, []),
    ([1, 2], [2, 1]),
    ({"a": "é"}, {"a": "e\u0301"}),
    ({"a": 2**53}, {"a": 2**53 + 1}),
    ({"a": 0.1}, {"a": 0.1 + 2**-55}),
]


@pytest.mark.parametrize(("one", "other"), EQUAL, ids=repr)
def test_equal_json_is_the_same_data(one: Any, other: Any) -> None:
    first = enqueue("x", one, idempotency_key="k")
    assert enqueue("x", other, idempotency_key="k") == first
    assert enqueue_many([{"type": "x", "payload": other, "idempotency_key": "k"}]) == [first]


@pytest.mark.parametrize(("one", "other"), DIFFERENT, ids=repr)
def test_different_json_is_a_conflict(one: Any, other: Any) -> None:
    enqueue("x", one, idempotency_key="k")
    with pytest.raises(IdempotencyConflict):
        enqueue("x", other, idempotency_key="k")
    assert Job.objects.get().payload == one


@pytest.mark.parametrize(
    "changed",
    [
        {"type": "y"},
        {"owner_id": "other"},
        {"project_id": "other"},
        {"queue": "other"},
        {"run_at": NOON + timedelta(microseconds=1)},
        {"target": {"kind": "k", "id": "j"}},
        {"payload": {"a": 2}},
        {"priority": 1},
    ],
    ids=lambda changed: min(changed),
)
def test_every_part_of_the_data_counts(changed: dict[str, Any]) -> None:
    data = {
        "type": "x",
        "payload": {"a": 1},
        "run_at": NOON,
        "target": {"kind": "k", "id": "i"},
        "idempotency_key": "k",
    }
    first = enqueue(**data)
    assert enqueue(**data) == first
    with pytest.raises(IdempotencyConflict) as caught:
        enqueue(**(data | changed))
    assert caught.value.job_id == first.pk
    assert "'k'" in str(caught.value)
    assert Job.objects.count() == 1


def test_labels_and_the_scope_of_the_key_do_not_count() -> None:
    first = enqueue("x", idempotency_key="k", meta={"a": 1})
    assert enqueue("x", idempotency_key="k", meta={"a": 2}, key_scope="live") == first
    first.refresh_from_db()
    assert (first.meta, first.key_scope) == ({"a": 1}, "ever")


def test_a_run_at_that_is_left_out_is_not_compared() -> None:
    later = enqueue("x", idempotency_key="later", run_at=NOON)
    assert enqueue("x", idempotency_key="later") == later
    now = enqueue("x", idempotency_key="now")
    assert enqueue("x", idempotency_key="now") == now
    assert enqueue("x", idempotency_key="now", run_at=now.run_at) == now
    with pytest.raises(IdempotencyConflict):
        enqueue("x", idempotency_key="now", run_at=NOON)


def test_a_key_belongs_to_its_namespace() -> None:
    here = enqueue("x", {"a": 1}, idempotency_key="k")
    there = enqueue("x", {"a": 2}, idempotency_key="k", namespace="elsewhere")
    assert here != there
    assert enqueue("x", {"a": 1}, idempotency_key="k") == here
    assert enqueue("x", {"a": 2}, idempotency_key="k", namespace="elsewhere") == there


@pytest.mark.parametrize("state", SETTLED)
def test_a_settled_job_keeps_its_key_and_is_told_of(
    state: State, caplog: pytest.LogCaptureFixture
) -> None:
    first = make_job(state, idempotency_key="k", type="x", payload={"secret": 1})
    with caplog.at_level(logging.INFO, "django_durable_jobs.enqueueing"):
        again = enqueue("x", {"secret": 1}, idempotency_key="k")
    assert (again, again.created, again.state) == (first, False, state)
    (record,) = caplog.records
    assert str(first.pk) in record.getMessage()
    assert state in record.getMessage()
    assert "secret" not in record.getMessage()


def test_a_live_job_is_found_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    make_job(State.RUNNING, idempotency_key="k", type="x")
    with caplog.at_level(logging.INFO):
        assert not enqueue("x", idempotency_key="k").created
    assert not caplog.records


@committed
@pytest.mark.parametrize("edge", ["complete", "fail", "interrupt"])
def test_a_live_key_is_free_again_once_its_job_is_settled(edge: str) -> None:
    values = {"idempotency_key": "k", "key_scope": "live", "type": "x"}
    first = make_job(State.RUNNING, **values)
    assert enqueue("x", idempotency_key="k", key_scope="live") == first
    settled(first, edge)
    again = enqueue("x", {"other": "data"}, idempotency_key="k", key_scope="live")
    assert again.created
    assert again != first
    first.refresh_from_db()
    assert (first.idempotency_key, first.key_hash) == ("k", None)


@committed
def test_a_key_for_ever_is_not_freed_by_settling() -> None:
    first = make_job(State.RUNNING, idempotency_key="k", type="x")
    settled(first, "complete")
    assert enqueue("x", idempotency_key="k") == first


@committed
def test_a_retry_keeps_a_live_key() -> None:
    first = make_job(State.RUNNING, idempotency_key="k", key_scope="live", type="x")
    settled(first, "retry")
    assert enqueue("x", idempotency_key="k", key_scope="live") == first
    assert_queue_is_sound()


def test_cancelling_frees_a_live_key_and_keeps_one_for_ever() -> None:
    live = enqueue("x", idempotency_key="live", key_scope="live")
    ever = enqueue("x", idempotency_key="ever")
    for each in (live, ever):
        cancel(each.pk)
    assert enqueue("x", idempotency_key="live", key_scope="live").created
    assert enqueue("x", idempotency_key="ever") == ever


def test_one_key_serves_one_live_job_whatever_its_scope() -> None:
    live = enqueue("x", idempotency_key="k", key_scope="live")
    assert enqueue("x", idempotency_key="k", key_scope="ever") == live
    cancel(live.pk)
    ever = enqueue("x", {"a": 1}, idempotency_key="k", key_scope="ever")
    with pytest.raises(IdempotencyConflict):
        enqueue("x", {"a": 2}, idempotency_key="k", key_scope="live")
    with pytest.raises(IdempotencyConflict):
        requeue(live.pk)
    assert enqueue("x", {"a": 1}, idempotency_key="k", key_scope="live") == ever


@committed
def test_a_conflict_leaves_the_callers_transaction_usable() -> None:
    first = enqueue("x", {"a": 1}, idempotency_key="k")
    with atomic():
        Note.objects.create(text="before")
        with pytest.raises(IdempotencyConflict):
            enqueue("x", {"a": 2}, idempotency_key="k")
        assert enqueue("x", {"a": 1}, idempotency_key="k") == first
        with pytest.raises(DuplicateJob):
            enqueue("x", id=first.pk)
        with pytest.raises(IdempotencyConflict):
            enqueue_many([{"type": "y"}, {"type": "y", "idempotency_key": "k"}])
        Note.objects.create(text="after")
        enqueue("z")
    assert Note.objects.count() == 2
    assert sorted(Job.objects.values_list("type", flat=True)) == ["x", "z"]
    assert_queue_is_sound()


def test_data_is_compared_as_it_was_given_not_as_the_database_returns_it() -> None:
    first = enqueue("x", {"n": 1e308, "m": 5e-324, "i": 2**63 - 1}, idempotency_key="k")
    Job.objects.update(payload={"edited": "by hand"})
    again = enqueue("x", {"n": 1e308, "m": 5e-324, "i": 2**63 - 1}, idempotency_key="k")
    assert again == first


# enqueue_many


def test_many_jobs_come_back_in_the_order_given() -> None:
    found = enqueue("x", [3], idempotency_key="k-3")
    jobs = enqueue_many(
        {"type": "x", "payload": [n], "idempotency_key": f"k-{n}", "namespace": f"n{n % 2}"}
        if n != 3
        else {"type": "x", "payload": [3], "idempotency_key": "k-3"}
        for n in range(10)
    )
    assert [job.payload for job in jobs] == [[n] for n in range(10)]
    assert [job.created for job in jobs] == [n != 3 for n in range(10)]
    assert jobs[3] == found
    assert Job.objects.count() == 10
    assert_queue_is_sound()


def test_the_same_key_twice_in_one_call_is_one_job() -> None:
    same = {"type": "x", "payload": {"a": 1}, "idempotency_key": "k"}
    first, other, again = enqueue_many([same, {"type": "y"}, same])
    assert first == again != other
    assert first.created != again.created
    assert first is not again
    assert Job.objects.count() == 2
    with pytest.raises(IdempotencyConflict):
        enqueue_many([{"type": "z"}, same, same | {"payload": {"a": 2}}])
    assert Job.objects.count() == 2
    assert_queue_is_sound()


def test_the_same_id_twice_in_one_call() -> None:
    id = uuid.UUID(int=7)
    with pytest.raises(DuplicateJob):
        enqueue_many([{"type": "x", "id": id}, {"type": "y", "id": id}])
    assert not Job.objects.exists()
    found = enqueue("x", [1], idempotency_key="there")
    # The first has its key already, so that its id is ignored: the second may have it.
    one, two, three = enqueue_many(
        [
            {"type": "x", "payload": [1], "id": id, "idempotency_key": "there"},
            {"type": "x", "payload": [2], "id": id, "idempotency_key": "new"},
            {"type": "x", "payload": [2], "id": id, "idempotency_key": "new"},
        ]
    )
    assert (one, one.payload, one.created) == (found, [1], False)
    assert (two.pk, two.payload) == (id, [2])
    assert two == three
    assert_queue_is_sound()


@pytest.mark.parametrize(
    ("jobs", "field", "message"),
    [
        ([{"type": "x"}, {}], "type", r"jobs\[1\]: type: is missing"),
        ([{"type": "x", "prioritty": 1}], "prioritty", "accepted: type, payload"),
        ([{"type": "x", "prioritty": 1}], "prioritty", r"did you mean 'priority'\?"),
        ([{"type": "x"}, {"typ": "x"}], "typ", r"jobs\[1\]: typ: .*did you mean 'type'\?"),
        ([{"type": "x"}, {"type": "x", "owner": "a"}], "owner", r"jobs\[1\]: owner: is not a name"),
        ([{"type": "x", "using": "default"}], "using", "is not a name"),
        ([{"type": "x", 7: 1}], "7", "is not a name"),
        (["x"], "", r"jobs\[0\]: A job must be a dict"),
        (None, "jobs", "jobs: must be a list of dicts of enqueue's names, not NoneType"),
        (5, "jobs", "must be a list of dicts of enqueue's names, not int"),
        ({"type": "x"}, "jobs", "must be a list of dicts of enqueue's names, not dict"),
        ("x", "jobs", "must be a list of dicts of enqueue's names, not str"),
    ],
)
def test_many_jobs_are_dicts_of_enqueues_names(jobs: Any, field: str, message: str) -> None:
    with pytest.raises(InvalidJob, match=message) as caught:
        enqueue_many(jobs)
    assert caught.value.field == field
    assert not Job.objects.exists()


def test_no_jobs_cost_nothing() -> None:
    with CaptureQueriesContext(connection) as queries:
        assert enqueue_many([]) == []
    assert len(queries) == 0


def statements(count: int, **values: Any) -> int:
    jobs = [
        {"type": "x", "payload": {"n": n}, "owner_id": f"o{n % 7}"} | values for n in range(count)
    ]
    with CaptureQueriesContext(connection) as queries:
        assert len(enqueue_many(jobs)) == count
    return len(queries)


@committed
def test_thousands_of_jobs_cost_a_constant_number_of_statements_per_thousand() -> None:
    per_thousand = statements(1_000)
    most = {"postgresql": 4, "sqlite": 6, "mysql": 8}[connection.vendor]
    assert per_thousand <= most
    assert statements(3_000) <= 3 * per_thousand
    assert statements(2) <= 7
    assert Job.objects.count() == 4_002
    assert_queue_is_sound()


@committed
def test_thousands_of_jobs_that_exist_cost_no_more() -> None:
    jobs = [{"type": "x", "payload": [n], "idempotency_key": f"k{n}"} for n in range(1_500)]
    first = enqueue_many(jobs)
    with CaptureQueriesContext(connection) as queries:
        again = enqueue_many(reversed(jobs))
    assert again == first[::-1]
    assert not any(job.created for job in again)
    assert len(queries) <= 20
    assert Job.objects.count() == 1_500
