"""Enqueue: defaults, refusals, the caller's transaction, ids and times."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.db.models import JSONField, Value
from django.db.transaction import atomic
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_durable_jobs import enqueue, enqueue_many, get_job, job
from django_durable_jobs.db import ManualClock, use_clock
from django_durable_jobs.errors import DuplicateJob, InvalidJob
from django_durable_jobs.models import Job, QueueEntry
from django_durable_jobs.registry import handlers
from tests.app.models import Note
from tests.factories import assert_queue_is_sound

pytestmark = pytest.mark.django_db
committed = pytest.mark.django_db(transaction=True)

NOON = datetime(2024, 5, 1, 12, 30, 15, 123_456, tzinfo=UTC)


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    with handlers.preserved():
        yield


def stored(found: Job) -> Job:
    return Job.objects.get(pk=found.pk)


# Defaults


def test_a_type_is_enough() -> None:
    before = timezone.now() - timedelta(seconds=5)
    returned = enqueue("report.build")
    found = stored(returned)
    assert found.created_at == found.updated_at == found.run_at == found.claimable_at
    assert before < found.run_at < timezone.now() + timedelta(seconds=5)
    assert len(found.idempotency_key) >= 32
    for each in (returned, found):
        assert each.namespace == each.queue == each.project_id == "default"
        assert each.type == "report.build"
        assert each.owner_id == ""
        assert each.target == {"kind": "job", "id": "report.build"}
        assert (each.target_kind, each.target_id) == ("job", "report.build")
        assert each.payload is None
        assert each.meta == {}
        assert (each.priority, each.attempts, each.max_attempts) == (0, 0, None)
        assert each.state == "queued"
        assert each.key_scope == "ever"
        assert each.claim_id is each.finished_at is each.held_since is each.cancelled_reason is None
        assert each.held_reason == ""
    assert returned.created is True
    assert_queue_is_sound()


def test_what_is_returned_is_what_is_stored() -> None:
    returned = enqueue(
        "report.build",
        {"a": [1, 2.5, None, True, "é😀"]},
        run_at=NOON,
        owner_id="acme",
        project_id="apollo",
        target={"kind": "invoice", "id": "7", "more": [1]},
        idempotency_key="k",
        key_scope="live",
        priority=-7,
        queue="slow",
        meta={"label": "x"},
        id="12345678-1234-5678-1234-567812345678",
        namespace="elsewhere",
    )
    found = stored(returned)
    for field in Job._meta.concrete_fields:
        assert getattr(returned, field.attname) == getattr(found, field.attname), field.name
    assert found.payload == {"a": [1, 2.5, None, True, "é😀"]}
    assert found.run_at == found.claimable_at == NOON
    entry = found.queue_entry
    assert (entry.namespace, entry.queue, entry.owner_id) == ("elsewhere", "slow", "acme")
    assert (entry.rank, entry.run_at, entry.due) == (7, NOON, True)
    assert not returned._state.adding


def test_a_handler_lends_its_queue_and_priority_and_the_caller_overrules_them() -> None:
    @job("made.here", queue="mail", priority=5)
    def send() -> None: ...

    for type in ("made.here", send, send.handler):
        found = stored(enqueue(type))
        assert (found.type, found.queue, found.priority) == ("made.here", "mail", 5)
    found = stored(enqueue(send, queue="other", priority=0))
    assert (found.queue, found.priority) == ("other", 0)
    assert stored(send.using(priority=9).enqueue()).priority == 9  # type: ignore[arg-type]


def test_an_alias_of_a_handler_stays_the_jobs_type() -> None:
    @job("new.name", aliases=("old.name",))
    def work(n: int) -> None: ...

    assert enqueue("old.name", {"n": 1}).type == "old.name"
    with pytest.raises(InvalidJob, match="needs 'n'"):
        enqueue("old.name")


@override_settings(DURABLE_JOBS={"NAMESPACE": "tenant-7"})
def test_the_namespace_is_the_projects_unless_given() -> None:
    assert enqueue("x").namespace == "tenant-7"
    assert enqueue("x", namespace="default").namespace == "default"


# Refusals

BIG = "x" * (256 * 1_024)
DEEP: Any = []
for _ in range(20):
    DEEP = [DEEP]

REFUSALS: list[tuple[dict[str, Any], str, str]] = [
    ({"type": ""}, "type", "is blank"),
    ({"type": None}, "type", "must be text"),
    ({"type": "x" * 257}, "type", "at most 256"),
    ({"type": "a\nb"}, "type", "a control character"),
    ({"owner_id": " "}, "owner_id", "is blank"),
    ({"owner_id": 7}, "owner_id", "must be text"),
    ({"owner_id": "x" * 257}, "owner_id", "at most 256"),
    ({"project_id": ""}, "project_id", "is blank"),
    ({"project_id": None}, "project_id", "must be text"),
    ({"idempotency_key": ""}, "idempotency_key", "is blank"),
    ({"idempotency_key": "x" * 257}, "idempotency_key", "at most 256"),
    ({"idempotency_key": "a\x00"}, "idempotency_key", "a control character"),
    ({"key_scope": "once"}, "key_scope", '"ever" or "live"'),
    ({"queue": "x" * 65}, "queue", "at most 64"),
    ({"queue": " "}, "queue", "is blank"),
    ({"namespace": "x" * 65}, "namespace", "at most 64"),
    ({"namespace": ""}, "namespace", "is blank"),
    ({"priority": 101}, "priority", "from -100 to 100"),
    ({"priority": -101}, "priority", "from -100 to 100"),
    ({"priority": 1.0}, "priority", "must be an int"),
    ({"priority": True}, "priority", "must be an int"),
    ({"run_at": "2024-05-01"}, "run_at", "must be a datetime"),
    ({"run_at": date(2024, 5, 1)}, "run_at", "must be a datetime"),
    ({"run_at": datetime(1969, 12, 31, 23, tzinfo=UTC)}, "run_at", "1970 to 9998"),
    ({"run_at": datetime(9999, 1, 1, tzinfo=UTC)}, "run_at", "1970 to 9998"),
    ({"id": "7"}, "id", "must be a UUID"),
    ({"id": 7}, "id", "must be a UUID"),
    ({"target": {"kind": "invoice"}}, "target", 'has no "id"'),
    ({"target": {"kind": "", "id": "7"}}, "target", "target.kind: is blank"),
    ({"target": {"kind": "invoice", "id": 7}}, "target", "target.id: must be text"),
    ({"target": ["invoice", "7"]}, "target", "object"),
    ({"target": {"kind": "k", "id": "i", "x": "y" * 4_096}}, "target", "4,096"),
    ({"meta": ["x"]}, "meta", "object"),
    ({"meta": {"x": "y" * 4_096}}, "meta", "4,096"),
    ({"payload": {"x": BIG}}, "payload", "262,144"),
    ({"payload": DEEP}, "payload", "20"),
    ({"payload": {"x": float("nan")}}, "payload", "payload.x"),
    ({"payload": {"x": [float("inf")]}}, "payload", "payload.x[0]"),
    ({"payload": {"x": "\ud800"}}, "payload", "surrogate"),
    ({"payload": {"x": "a\x00"}}, "payload", "NUL"),
    ({"payload": {1: "x"}}, "payload", "payload"),
    ({"payload": {"x": 2**63}}, "payload", "beyond signed 64 bits"),
    ({"payload": {"x": [{"price": Decimal("1")}]}}, "payload", "payload.x[0].price: Decimal"),
    ({"payload": {"x": {1, 2}}}, "payload", "payload.x"),
    ({"payload": {"x": b"bytes"}}, "payload", "payload.x"),
    ({"payload": uuid.uuid4()}, "payload", "payload"),
    ({"payload": {"note": Note(pk=3)}}, "payload", "pk"),
]
refusals = pytest.mark.parametrize(
    ("wrong", "field", "message"),
    REFUSALS,
    ids=[f"{n}-{case[1]}" for n, case in enumerate(REFUSALS)],
)


@refusals
def test_what_is_wrong_is_refused_by_name_before_the_database(
    wrong: dict[str, Any], field: str, message: str
) -> None:
    with CaptureQueriesContext(connection) as queries, pytest.raises(InvalidJob) as caught:
        enqueue(**({"type": "x"} | wrong))
    assert caught.value.field == field
    assert message in str(caught.value)
    assert len(queries) == 0
    assert isinstance(caught.value, ValueError)


@refusals
def test_enqueue_many_refuses_the_same_and_writes_none_of_the_others(
    wrong: dict[str, Any], field: str, message: str
) -> None:
    jobs = [{"type": "x"}, {"type": "x"} | wrong, {"type": "x"}]
    with CaptureQueriesContext(connection) as queries, pytest.raises(InvalidJob) as caught:
        enqueue_many(jobs)
    assert caught.value.field == field
    assert str(caught.value).startswith("jobs[1]: ")
    assert message in str(caught.value)
    assert len(queries) == 0
    assert not Job.objects.exists()


def test_a_payload_that_does_not_fit_its_handler_is_refused_at_once() -> None:
    @job("made.here")
    def send(invoice_id: int, copy_to: str = "") -> None: ...

    for wrong, message in [
        (None, "needs 'invoice_id'"),
        ({}, "needs 'invoice_id'"),
        ({"invoice": 7}, "did you mean 'invoice_id'"),
        ({"invoice_id": 7, "x": 1}, "does not take 'x'"),
        ([7], "must be an object"),
    ]:
        with CaptureQueriesContext(connection) as queries, pytest.raises(InvalidJob) as caught:
            enqueue("made.here", wrong)
        assert message in str(caught.value)
        assert caught.value.field == "payload"
        assert len(queries) == 0
    assert enqueue("made.here", {"invoice_id": 7}).payload == {"invoice_id": 7}
    assert enqueue("unknown.here", {"invoice": 7}).payload == {"invoice": 7}


def test_a_raw_handler_takes_whatever_json_it_is_given() -> None:
    @job("made.here", raw=True)
    def work(payload: Any) -> None: ...

    for payload in (None, {}, [], [1], "text", 7, 0, False, 2.5, {"a": None}):
        found = stored(enqueue(work, payload))
        assert found.payload == payload
        assert type(found.payload) is type(payload)


# Values


def test_none_and_an_empty_object_differ() -> None:
    nothing, empty = enqueue("x", None), enqueue("x", {})
    assert stored(nothing).payload is None
    assert stored(empty).payload == {}
    assert Job.objects.get(payload=Value(None, JSONField())) == nothing
    assert nothing.fingerprint != empty.fingerprint


def test_typed_parameters_are_stored_as_text_and_given_back() -> None:
    @job("made.here")
    def work(
        key: uuid.UUID,
        price: Decimal,
        at: datetime,
        day: date,
        hour: time,
        span: timedelta | None,
        end: datetime | None = None,
    ) -> None: ...

    values = {
        "key": uuid.UUID(int=7),
        "price": Decimal("12.340"),
        "at": NOON.astimezone(ZoneInfo("Europe/Vienna")),
        "day": date(2024, 2, 29),
        "hour": time(12, 30, 15, 1),
        "span": timedelta(days=1, seconds=2, microseconds=3),
        "end": None,
    }
    found = stored(work.enqueue(**values))  # type: ignore[arg-type]
    assert found.payload == {
        "key": "00000000-0000-0000-0000-000000000007",
        "price": "12.340",
        "at": "2024-05-01T12:30:15.123456+00:00",
        "day": "2024-02-29",
        "hour": "12:30:15.000001",
        "span": "P1DT00H00M02.000003S",
        "end": None,
    }
    given = work.handler.parameters.decode(found.payload)
    assert given == values
    assert str(given["price"]) == "12.340"
    assert stored(enqueue("made.here", values)).payload == found.payload
    assert enqueue_many([{"type": work, "payload": values}])[0].fingerprint == found.fingerprint


def test_the_job_holds_a_copy_of_what_was_passed() -> None:
    payload, target, meta = {"items": [1]}, {"kind": "k", "id": "i", "l": [1]}, {"tags": ["a"]}
    returned = enqueue("x", payload, target=target, meta=meta)
    payload["items"].append(2)
    target["l"].append(2)  # type: ignore[attr-defined]
    meta["tags"].append("b")
    assert (returned.payload, returned.meta) == ({"items": [1]}, {"tags": ["a"]})
    assert returned.target["l"] == [1]
    returned.payload["items"].append(3)
    assert stored(returned).payload == {"items": [1]}


LONGEST = {
    "bytes": "x" * (256 * 1_024 - len('{"a":""}')),
    "wide": "😀" * ((256 * 1_024 - len('{"a":""}')) // 4),
}


@pytest.mark.parametrize("text", LONGEST.values(), ids=LONGEST)
def test_the_largest_payload_fits(text: str) -> None:
    assert stored(enqueue("x", {"a": text})).payload == {"a": text}


def test_numbers_and_texts_at_their_limits_come_back() -> None:
    payload = {"max": 2**63 - 1, "min": -(2**63), "text": "é\u202e\u2028\t\n\"'\\%s", "": "empty"}
    returned = enqueue("x", payload)
    assert stored(returned).payload == payload
    assert enqueue("x", 1e308).payload == 1e308


# Times


def test_run_at_is_the_databases_now() -> None:
    clock = ManualClock(datetime(2031, 3, 4, 5, 6, 7, 890_123, tzinfo=UTC))
    with use_clock(clock):
        returned = enqueue("x")
        late = enqueue("x", run_at=clock.value + timedelta(microseconds=1))
        past = enqueue("x", run_at=clock.value)
    assert returned.run_at == returned.created_at == clock.value == stored(returned).run_at
    due = QueueEntry.objects.values_list("job_id", "due")
    assert dict(due) == {returned.pk: True, late.pk: False, past.pk: True}
    assert late.created_at == clock.value


@committed
def test_a_naive_run_at_is_taken_in_the_current_time_zone() -> None:
    naive = datetime(2031, 7, 1, 12)
    with timezone.override("Asia/Tokyo"):
        with pytest.warns(RuntimeWarning, match="received a naive datetime") as warned:
            returned = enqueue("x", run_at=naive)
        assert warned[0].filename == __file__
        assert stored(returned).run_at == datetime(2031, 7, 1, 3, tzinfo=UTC)
    with override_settings(USE_TZ=False):
        connection.close()
        assert stored(enqueue("x", run_at=naive)).run_at == datetime(2031, 7, 1, 10, tzinfo=UTC)
    connection.close()


@pytest.mark.parametrize("fold", [0, 1])
def test_an_hour_that_comes_twice_is_told_apart(fold: int) -> None:
    moment = datetime(2031, 10, 26, 2, 30, tzinfo=ZoneInfo("Europe/Vienna"), fold=fold)
    returned = enqueue("x", run_at=moment)
    assert returned.run_at == stored(returned).run_at == moment.astimezone(UTC)
    assert returned.run_at.hour == fold


# Ids


@pytest.mark.parametrize("given", [uuid.UUID(int=7), str(uuid.UUID(int=7)), uuid.UUID(int=7).hex])
def test_an_id_can_be_given(given: Any) -> None:
    assert enqueue("x", id=given).pk == uuid.UUID(int=7)
    assert stored(get_job(given)).type == "x"  # type: ignore[arg-type]


def test_an_id_that_exists_is_refused() -> None:
    first = enqueue("x", id=uuid.UUID(int=7))
    with pytest.raises(DuplicateJob) as caught:
        enqueue("y", id=first.pk)
    assert caught.value.job_id == first.pk
    with pytest.raises(DuplicateJob):
        enqueue("y", id=first.pk, namespace="elsewhere")
    assert Job.objects.get().type == "x"
    assert_queue_is_sound()


def test_fresh_ids_are_in_the_order_of_enqueueing() -> None:
    jobs = [enqueue("x") for _ in range(20)] + enqueue_many([{"type": "x"}] * 50)
    assert [each.pk for each in jobs] == sorted(each.pk for each in jobs)


# The caller's transaction


@committed
def test_a_job_is_rolled_back_with_the_callers_transaction() -> None:
    with contextlib.suppress(ZeroDivisionError), atomic():
        Note.objects.create(text="x")
        enqueue("x")
        enqueue_many([{"type": "x"}])
        assert Job.objects.count() == QueueEntry.objects.count() == 2
        raise ZeroDivisionError
    assert not Job.objects.exists()
    assert not QueueEntry.objects.exists()
    assert not Note.objects.exists()


@committed
def test_a_refused_job_leaves_the_callers_transaction_usable() -> None:
    enqueue("x", id=uuid.UUID(int=7))
    with atomic():
        Note.objects.create(text="before")
        with pytest.raises(DuplicateJob):
            enqueue("y", id=uuid.UUID(int=7))
        with pytest.raises(DuplicateJob):
            enqueue_many([{"type": "z"}, {"type": "y", "id": uuid.UUID(int=7)}])
        Note.objects.create(text="after")
        enqueue("y")
    assert Note.objects.count() == 2
    assert sorted(Job.objects.values_list("type", flat=True)) == ["x", "y"]
    assert_queue_is_sound()


def test_savepoints_of_the_caller_are_respected() -> None:
    with atomic():
        enqueue("kept")
        with contextlib.suppress(ZeroDivisionError), atomic():
            enqueue("lost")
            raise ZeroDivisionError
    assert Job.objects.get().type == "kept"
    assert_queue_is_sound()


@committed
def test_one_job_costs_a_few_statements() -> None:
    enqueue("x")
    with CaptureQueriesContext(connection) as queries:
        enqueue("x", {"a": 1}, owner_id="acme", idempotency_key="k")
    writes = [q["sql"] for q in queries if not q["sql"].startswith(("BEGIN", "COMMIT", "SET"))]
    assert len(writes) <= {"postgresql": 1, "sqlite": 2, "mysql": 3}[connection.vendor], writes
