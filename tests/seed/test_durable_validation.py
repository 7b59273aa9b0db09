"""S1 requiredString, safeValue, validateSpec: what a job may be asked to be."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db.models import JSONField, Value

from django_durable_jobs import enqueue, get_job, list_jobs, register_handler
from django_durable_jobs.db import ManualClock
from django_durable_jobs.errors import InvalidJob
from django_durable_jobs.models import Job

from .conftest import settled

pytestmark = pytest.mark.django_db(transaction=True)

REQUIRED = ["type", "idempotency_key", "owner_id", "project_id"]
TARGET = {"kind": "invoice", "id": "7"}


def put(**values: Any) -> Job:
    return enqueue(values.pop("type", "seed.job"), **values)


def refused(**values: Any) -> InvalidJob:
    """Enqueue, see it refused, and see that nothing was stored."""
    with pytest.raises(InvalidJob) as caught:
        put(**values)
    assert not list_jobs().exists()
    return caught.value


# requiredString


@pytest.mark.parametrize("name", REQUIRED)
@pytest.mark.parametrize("value", [7, True, b"text", ["text"]])
def test_required_string_refuses_what_is_not_text(name: str, value: object) -> None:
    error = refused(**{name: value})
    assert error.field == name
    assert str(error).startswith(f"{name}: must be text")


@pytest.mark.parametrize("name", REQUIRED)
@pytest.mark.parametrize("value", [" ", "\u00a0\u2003"])
def test_required_string_refuses_blank_text(name: str, value: str) -> None:
    error = refused(**{name: value})
    assert (error.field, "is blank" in str(error)) == (name, True)


@pytest.mark.parametrize("name", [name for name in REQUIRED if name != "owner_id"])
def test_required_string_refuses_empty_text(name: str) -> None:
    assert refused(**{name: ""}).field == name


def test_required_string_empty_owner_means_no_owner() -> None:
    """changed: the seed requires an owner; "" is a job without one."""
    assert put(owner_id="").owner_id == ""


@pytest.mark.parametrize("name", REQUIRED)
def test_required_string_refuses_more_than_256_characters(name: str) -> None:
    assert refused(**{name: "x" * 257}).field == name
    assert getattr(put(**{name: "x" * 256}), name) == "x" * 256


def test_required_string_keeps_text_as_given() -> None:
    job = put(owner_id="  Acme ", idempotency_key=" key ", project_id="p ")
    stored = get_job(job.pk)
    assert stored is not None
    kept = (stored.owner_id, stored.idempotency_key, stored.project_id)
    assert kept == ("  Acme ", " key ", "p ")


def test_required_string_refuses_control_characters() -> None:
    """changed: the seed takes any character; not every database can store these."""
    assert refused(owner_id="a\x00b").field == "owner_id"


# safeValue


def test_safe_value_refuses_what_cannot_be_json() -> None:
    cyclic: dict[str, Any] = {}
    cyclic["self"] = cyclic
    assert refused(payload=cyclic).field == "payload"
    assert refused(payload={"n": 2**63}).path == "payload.n"


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        Decimal("1.5"),
        (1, 2),
        {1, 2},
        b"bytes",
        datetime(2026, 1, 1, tzinfo=UTC),
        object(),
        "\ud800",
        "nul \x00",
    ],
)
def test_safe_value_refuses_what_json_would_change(value: object) -> None:
    """changed: the seed's JSON round trip turns such values into null, text or nothing."""
    error = refused(payload={"items": [1, value]})
    assert (error.field, error.path) == ("payload", "payload.items[1]")


def test_safe_value_refuses_keys_that_are_not_text() -> None:
    """changed: the seed's JSON turns them into text, and two may become one."""
    assert refused(payload={1: "one"}).field == "payload"


@pytest.mark.parametrize(
    ("name", "limit", "wrap"),
    [
        ("payload", 256 * 1024, lambda text: text),
        ("target", 4096, lambda text: {**TARGET, "x": text}),
    ],
)
def test_safe_value_refuses_more_bytes_than_allowed(name: str, limit: int, wrap: Any) -> None:
    """The limit counts bytes of compact UTF-8 JSON; a value of exactly that size is taken."""
    frame = len(json.dumps(wrap(""), separators=(",", ":")))
    fits = "é" * ((limit - frame) // 2) + "x" * ((limit - frame) % 2)
    assert refused(**{name: wrap(fits + "x")}).field == name
    assert getattr(put(**{name: wrap(fits)}), name) == wrap(fits)


def test_safe_value_stores_a_copy() -> None:
    payload: dict[str, Any] = {"items": [1]}
    target = dict(TARGET)
    job = put(payload=payload, target=target)
    payload["items"].append(2)
    target["id"] = "8"
    for each in (job, get_job(job.pk)):
        assert each is not None
        assert (each.payload, each.target) == ({"items": [1]}, TARGET)


def test_safe_value_hands_the_handler_a_copy(scheduler: Any) -> None:
    def spoil(items: list[int]) -> None:
        items.clear()

    register_handler("seed.spoil", spoil)
    job = put(type="seed.spoil", payload={"items": [1]})
    scheduler().start()
    (job,) = settled(job)
    assert (job.state, job.payload) == ("completed", {"items": [1]})


# validateSpec


@pytest.mark.parametrize("value", ["2026-01-01", 1e12, True, datetime.max.date()])
def test_validate_spec_run_at_must_be_a_time(value: object) -> None:
    """changed: the seed takes milliseconds; times here are datetimes."""
    assert refused(run_at=value).field == "run_at"


def test_validate_spec_run_at_must_not_be_before_1970() -> None:
    assert refused(run_at=datetime(1969, 12, 31, 23, tzinfo=UTC)).field == "run_at"
    first = datetime(1970, 1, 1, tzinfo=UTC)
    assert put(run_at=first).run_at == first


def test_validate_spec_run_at_must_be_finite() -> None:
    """changed: for the seed this is infinity; a datetime has years that databases do not take."""
    assert refused(run_at=datetime(9999, 1, 1, tzinfo=UTC)).field == "run_at"


def test_validate_spec_run_at_left_out_means_now(clock: ManualClock) -> None:
    """changed: the seed requires it."""
    assert put().run_at == clock.value


@pytest.mark.parametrize("value", ["text", 7, [TARGET], False])
def test_validate_spec_target_must_be_an_object(value: object) -> None:
    assert refused(target=value).field == "target"


@pytest.mark.parametrize("part", ["kind", "id"])
@pytest.mark.parametrize("value", ["", " ", 7, None, "x" * 257])
def test_validate_spec_target_needs_a_kind_and_an_id(part: str, value: object) -> None:
    error = refused(target={**TARGET, part: value})
    assert (error.field, error.path) == ("target", f"target.{part}")
    without = {key: text for key, text in TARGET.items() if key != part}
    assert refused(target=without).field == "target"


def test_validate_spec_target_keeps_what_else_it_holds() -> None:
    target = {**TARGET, "label": "July", "lines": [1, {"n": None}]}
    job = put(target=target)
    assert (job.target, job.target_kind, job.target_id) == (target, "invoice", "7")


def test_validate_spec_what_is_left_out_has_a_default() -> None:
    """changed: the seed requires key, owner, project and target."""
    first, second = put(), put()
    assert (first.owner_id, first.project_id) == ("", "default")
    assert first.target == {"kind": "job", "id": "seed.job"}
    assert first.idempotency_key
    assert first.idempotency_key != second.idempotency_key


def test_validate_spec_payload_left_out_is_null() -> None:
    job = get_job(put().pk)
    assert job is not None
    assert job.payload is None
    assert list_jobs(payload=Value(None, JSONField())).count() == 1


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}, "text", [1, None], {"a": {"b": 1}}])
def test_validate_spec_payload_may_be_any_json(value: object) -> None:
    job = get_job(put(payload=value).pk)
    assert job is not None
    assert job.payload == value
    assert type(job.payload) is type(value)


def test_validate_spec_all_is_stored_as_given() -> None:
    moment = datetime(2030, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
    given: dict[str, Any] = {
        "type": "seed.full",
        "idempotency_key": "key",
        "owner_id": "owner",
        "project_id": "project",
        "target": TARGET,
        "payload": {"n": 1},
        "run_at": moment,
    }
    job = get_job(put(**given).pk)
    assert job is not None
    stored = {name: getattr(job, name) for name in given}
    assert stored == given
    assert job.run_at - moment == timedelta(0)
