"""A JobSpec is valid, a copy, and knows which other spec means the same job."""

from __future__ import annotations

import copy
import hashlib
import pickle
import warnings
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from django.db.models import IntegerChoices, TextChoices
from django.test import override_settings
from django.utils import timezone as django_timezone
from django.utils.safestring import SafeString
from hypothesis import given
from hypothesis import strategies as st

from django_durable_jobs.errors import InvalidJob
from django_durable_jobs.jobspec import JobSpec

JOB_ID = UUID("12345678-1234-5678-1234-567812345678")
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


class Kind(TextChoices):
    INVOICE = "invoice.send"


class Urgency(IntegerChoices):
    HIGH = 10


class LateDatetime(datetime):
    """Stand in for the subclasses of freezegun and pendulum."""


class BrokenZone(tzinfo):
    def utcoffset(self, moment: datetime | None) -> timedelta:
        raise RuntimeError("no offset today")

    dst = tzname = utcoffset  # type: ignore[assignment]


def spec(**values: Any) -> JobSpec:
    return JobSpec(**{"namespace": "default", "type": "invoice.send"} | values)


def refused(**values: Any) -> InvalidJob:
    with pytest.raises(InvalidJob) as caught:
        spec(**values)
    (name,) = values
    assert caught.value.field == name
    assert str(caught.value).startswith(name)
    return caught.value


def test_a_newcomer_need_not_fill_forms() -> None:
    job = spec()
    assert job.payload is None
    assert job.run_at is None
    assert job.owner_id == ""
    assert job.project_id == "default"
    assert job.target == {"kind": "job", "id": "invoice.send"}
    assert job.priority == 0
    assert job.queue == "default"
    assert job.meta == {}
    assert job.id is None
    assert job.key_scope == "ever"


def test_none_takes_the_default() -> None:
    names = ("run_at", "target", "idempotency_key", "queue", "meta", "id")
    assert spec(**dict.fromkeys(names)) == spec()


def test_a_key_is_fresh_unless_given() -> None:
    first, second, given_one = spec(), spec(), spec(idempotency_key="invoice-7")
    assert first.idempotency_key != second.idempotency_key
    assert given_one.idempotency_key == "invoice-7"


# Identifiers

LIMITS = {
    "namespace": 64,
    "type": 256,
    "owner_id": 256,
    "project_id": 256,
    "idempotency_key": 256,
    "queue": 64,
}
TEXT_FIELDS = list(LIMITS)


@pytest.mark.parametrize(("name", "limit"), LIMITS.items())
def test_text_is_limited_in_characters(name: str, limit: int) -> None:
    longest = "😀" * limit
    assert getattr(spec(**{name: longest}), name) == longest
    assert f"at most {limit} are accepted" in str(refused(**{name: longest + "x"}))


@pytest.mark.parametrize("name", TEXT_FIELDS)
@pytest.mark.parametrize("text", [" ", "\u3000", "   "])
def test_blank_text_is_refused(name: str, text: str) -> None:
    assert "is blank" in str(refused(**{name: text}))


@pytest.mark.parametrize("name", TEXT_FIELDS)
def test_only_the_owner_may_be_empty(name: str) -> None:
    if name == "owner_id":
        assert spec(owner_id="").owner_id == spec(owner_id=SafeString("")).owner_id == ""
    else:
        assert "is blank" in str(refused(**{name: ""}))


@pytest.mark.parametrize("name", TEXT_FIELDS)
@pytest.mark.parametrize("character", ["\0", "\n", "\x1b", "\x7f", "\x85", "\x9f"])
def test_control_characters_are_refused(name: str, character: str) -> None:
    error = refused(**{name: f"a{character}b"})
    assert f"a control character (U+{ord(character):04X}) at 1" in str(error)
    assert str(error).isprintable()


@pytest.mark.parametrize("name", TEXT_FIELDS)
def test_lone_surrogates_are_refused(name: str) -> None:
    assert "a lone surrogate (U+D800) at 1" in str(refused(**{name: "a\ud800"}))


@pytest.mark.parametrize("name", TEXT_FIELDS)
@pytest.mark.parametrize(
    "text", [" a ", "á", "a\u00a0b", "\u202eabc", "😀", "'; DROP TABLE--", "%s"]
)
def test_text_is_kept_as_given(name: str, text: str) -> None:
    assert getattr(spec(**{name: text}), name) == text


@pytest.mark.parametrize("name", TEXT_FIELDS)
@pytest.mark.parametrize("value", [7, 7.5, b"a", JOB_ID, ["a"], object(), len])
def test_what_is_no_text_is_refused_never_converted(name: str, value: object) -> None:
    assert f"must be text (str), not {type(value).__name__}" in str(refused(**{name: value}))


def test_members_of_choices_are_refused_with_a_hint() -> None:
    assert "pass its .value" in str(refused(owner_id=Kind.INVOICE))


def test_safe_strings_become_plain_text() -> None:
    assert type(spec(owner_id=SafeString("acme")).owner_id) is str


@given(st.text(max_size=300))
def test_any_text_is_kept_or_refused(text: str) -> None:
    try:
        job = spec(project_id=text)
    except InvalidJob as error:
        str(error).encode()
    else:
        assert job.project_id == text
        job.project_id.encode()


# Target, payload, meta


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ([], "target: must be a JSON object"),
        ("job", "target: must be a JSON object"),
        ({"kind": "a"}, 'target: has no "id"'),
        ({"id": "a"}, 'target: has no "kind"'),
        ({"kind": " ", "id": "a"}, "target.kind: is blank"),
        ({"kind": "a", "id": 7}, "target.id: must be text (str), not int"),
        ({"kind": "a", "id": "x" * 257}, "target.id: has 257 characters"),
        ({"kind": "a", "id": "b\n"}, "target.id: has a control character"),
        ({"kind": "a", "id": "b", "price": Decimal(1)}, "target.price: Decimal is not JSON"),
        ({"kind": "a", "id": "b", "more": "x" * 4_096}, "target: too large"),
    ],
)
def test_a_target_is_an_object_that_names_kind_and_id(target: Any, message: str) -> None:
    error = refused(target=target)
    assert str(error).startswith(message)
    assert message.startswith(error.path)


def test_a_target_may_hold_more() -> None:
    target = {"kind": "invoice", "id": "7", "page": 3}
    assert spec(target=target).target == target


@pytest.mark.parametrize(("name", "limit"), [("payload", 262_144), ("meta", 4_096)])
def test_json_is_limited_in_bytes(name: str, limit: int) -> None:
    fits = {"a": "é" * ((limit - 8) // 2)}  # {"a":"…"} takes 8 bytes
    assert getattr(spec(**{name: fits}), name) == fits
    assert "too large" in str(refused(**{name: {"a": fits["a"] + "x"}}))


def test_meta_is_an_object() -> None:
    assert "must be a JSON object" in str(refused(meta=["a"]))


def test_what_the_caller_changes_later_has_no_effect() -> None:
    payload, target, meta = {"a": [1]}, {"kind": "k", "id": "i"}, {"m": [1]}
    job = spec(payload=payload, target=target, meta=meta)
    payload["a"].append(2)
    target["id"] = ""
    meta.clear()
    assert (job.payload, job.target["id"], job.meta) == ({"a": [1]}, "i", {"m": [1]})


# Times


@pytest.mark.parametrize(
    "moment",
    [
        NOON,
        datetime(2024, 5, 1, 14, tzinfo=ZoneInfo("Europe/Vienna")),
        datetime(2024, 5, 1, 7, tzinfo=timezone(timedelta(hours=-5))),
        LateDatetime(2024, 5, 1, 12, tzinfo=UTC),
    ],
)
def test_an_aware_run_at_is_kept_in_utc(moment: datetime) -> None:
    run_at = spec(run_at=moment).run_at
    assert run_at == NOON
    assert type(run_at) is datetime
    assert run_at.tzinfo is UTC


@override_settings(USE_TZ=True)
def test_a_naive_run_at_is_taken_in_the_current_time_zone_with_djangos_warning() -> None:
    naive = datetime(2024, 5, 1, 8)
    with (
        django_timezone.override("America/New_York"),
        pytest.warns(RuntimeWarning) as caught,
    ):
        assert spec(run_at=naive).run_at == NOON
    assert str(caught[0].message) == (
        "DateTimeField Job.run_at received a naive datetime (2024-05-01 08:00:00) "
        "while time zone support is active."
    )


@override_settings(USE_TZ=False)
def test_a_naive_run_at_needs_no_warning_without_use_tz() -> None:
    with django_timezone.override("America/New_York"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert spec(run_at=datetime(2024, 5, 1, 8)).run_at == NOON


@override_settings(USE_TZ=False)
@pytest.mark.parametrize(
    ("naive", "hour"),
    [
        (datetime(2024, 3, 31, 2, 30), 1),  # in the gap: as if it had not begun
        (datetime(2024, 10, 27, 2, 30), 0),  # twice: the first
        (datetime(2024, 10, 27, 2, 30, fold=1), 1),
    ],
)
def test_a_naive_run_at_may_fall_on_a_change_of_the_clock(naive: datetime, hour: int) -> None:
    with django_timezone.override("Europe/Vienna"):
        run_at = spec(run_at=naive).run_at
    assert run_at == datetime(naive.year, naive.month, naive.day, hour, 30, tzinfo=UTC)


@pytest.mark.parametrize("value", [date(2024, 5, 1), "2024-05-01T12:00:00Z", 1714564800, 0.0])
def test_a_run_at_that_is_no_datetime_is_refused(value: object) -> None:
    message = f"must be a datetime (or None), not {type(value).__name__}"
    assert message in str(refused(run_at=value))


@pytest.mark.parametrize(
    ("moment", "accepted"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), True),
        (datetime(1970, 1, 1, tzinfo=timezone(timedelta(hours=1))), False),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), False),
        (datetime(9998, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), True),
        (datetime(9999, 1, 1, tzinfo=UTC), False),
        (datetime(9999, 1, 1, tzinfo=timezone(timedelta(hours=1))), True),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))), False),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=1))), False),
    ],
)
def test_run_at_lies_from_1970_to_9998(moment: datetime, accepted: bool) -> None:
    if accepted:
        assert spec(run_at=moment).run_at == moment
    else:
        assert "years 1970 to 9998" in str(refused(run_at=moment))


def test_a_broken_time_zone_is_told_as_such() -> None:
    error = refused(run_at=datetime(2024, 5, 1, tzinfo=BrokenZone()))
    assert "cannot be converted to UTC (RuntimeError: no offset today)" in str(error)


# Priority, id, key_scope


@pytest.mark.parametrize("priority", [-100, 0, 100])
def test_priorities_run_from_minus_to_plus_a_hundred(priority: int) -> None:
    assert spec(priority=priority).priority == priority


@pytest.mark.parametrize("priority", [-101, 101, 10**400])
def test_a_priority_beyond_is_refused(priority: int) -> None:
    assert "from -100 to 100" in str(refused(priority=priority))


@pytest.mark.parametrize("priority", [True, 1.0, "1", None, Urgency.HIGH])
def test_a_priority_that_is_no_int_is_refused(priority: object) -> None:
    assert f"must be an int, not {type(priority).__name__}" in str(refused(priority=priority))


@pytest.mark.parametrize("value", [JOB_ID, str(JOB_ID), JOB_ID.hex, str(JOB_ID).upper()])
def test_an_id_is_a_uuid_or_its_text(value: object) -> None:
    assert spec(id=value).id == JOB_ID


@pytest.mark.parametrize(
    "value", ["", "7", f"{{{JOB_ID}}}", f"urn:uuid:{JOB_ID}", "1_" * 16, "٣" * 32, 7, b"a" * 16]
)
def test_an_id_that_is_no_uuid_is_refused(value: object) -> None:
    assert "must be a UUID or its text" in str(refused(id=value))


@pytest.mark.parametrize("value", ["", "always", None, [], True])
def test_a_key_scope_is_one_of_two_words(value: object) -> None:
    assert spec(key_scope="live").key_scope == "live"
    assert 'must be "ever" or "live"' in str(refused(key_scope=value))


# The same job


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"payload": {"a": 1, "b": 2}}, {"payload": {"b": 2, "a": 1}}),
        ({"payload": 1}, {"payload": 1.0}),
        ({"payload": 0.0}, {"payload": -0.0}),
        ({"idempotency_key": "a"}, {"idempotency_key": "b"}),
        ({"meta": {"a": 1}}, {"meta": {}}),
        ({"id": JOB_ID}, {}),
        ({"key_scope": "live"}, {}),
        ({}, {"target": {"id": "invoice.send", "kind": "job"}}),
    ],
)
def test_the_same_data_has_the_same_fingerprint(one: Any, other: Any) -> None:
    assert spec(**one).fingerprint == spec(**other).fingerprint
    assert spec(**one) == spec(**other)
    assert hash(spec(**one)) == hash(spec(**other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"payload": 1}, {"payload": True}),
        ({"payload": None}, {"payload": {}}),
        ({"payload": [1, 2]}, {"payload": [2, 1]}),
        ({"payload": "a"}, {"payload": "a "}),
        ({"payload": "é"}, {"payload": "e\u0301"}),
        ({"owner_id": "a"}, {"owner_id": "A"}),
        ({"owner_id": "a", "project_id": "b"}, {"owner_id": "b", "project_id": "a"}),
        ({"queue": "a"}, {}),
        ({"priority": 1}, {}),
        ({"target": {"kind": "a", "id": "b"}}, {"target": {"kind": "b", "id": "a"}}),
        ({"type": "a", "target": {"kind": "a", "id": "b"}}, {"target": {"kind": "a", "id": "b"}}),
    ],
)
def test_other_data_has_another_fingerprint(one: Any, other: Any) -> None:
    assert spec(**one).fingerprint != spec(**other).fingerprint
    assert spec(**one) != spec(**other)


def test_a_fingerprint_is_for_ever() -> None:
    job = spec(payload={"invoice_id": 7, "note": "é"}, owner_id="acme", priority=5)
    text = (
        '{"owner_id":"acme","payload":{"invoice_id":7,"note":"é"},"priority":5,'
        '"project_id":"default","queue":"default",'
        '"target":{"id":"invoice.send","kind":"job"},"type":"invoice.send"}'
    )
    assert job.fingerprint == hashlib.sha256(text.encode()).hexdigest()
    assert spec(idempotency_key="é").key_hash == (
        "4a99557e4033c3539de2eb65472017cad5f9557f7a0625a09f1c3f6e2ba69c4c"
    )


def test_specs_that_run_at_other_times_are_not_the_same_job() -> None:
    assert spec(run_at=NOON) == spec(run_at=NOON.astimezone(ZoneInfo("Asia/Tokyo")))
    assert spec(run_at=NOON) != spec(run_at=NOON + timedelta(seconds=1))
    assert spec(run_at=NOON) != spec()
    assert spec() != spec(namespace="other")
    assert spec() != "invoice.send"


def test_a_stored_job_matches_whatever_its_run_at_where_none_is_given() -> None:
    stored = spec(run_at=NOON)
    assert spec().matches(stored.fingerprint, NOON)
    assert spec(run_at=NOON).matches(stored.fingerprint, NOON)
    assert not spec(run_at=NOON + timedelta(seconds=1)).matches(stored.fingerprint, NOON)
    assert not spec(priority=1).matches(stored.fingerprint, NOON)


@pytest.mark.parametrize(
    ("one", "other"), [("abc", "ABC"), ("abc", "abc "), ("a", "á"), ("😀", "😃")]
)
def test_keys_that_a_collation_would_merge_stay_apart(one: str, other: str) -> None:
    assert spec(idempotency_key=one).key_hash != spec(idempotency_key=other).key_hash


# Replacing


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("type", "invoice.print"),
        ("idempotency_key", "invoice-8"),
        ("owner_id", ""),
        ("project_id", "other"),
        ("target", {"kind": "invoice", "id": "8"}),
        ("payload", [1]),
        ("run_at", NOON),
        ("priority", 7),
        ("queue", "mail"),
        ("meta", {"a": 1}),
    ],
)
def test_what_is_left_out_of_a_replacement_stays(name: str, value: object) -> None:
    before = spec(payload={"a": 1}, owner_id="acme", idempotency_key="invoice-7", id=JOB_ID)
    after = before.replace(**{name: value})
    changed = {
        field
        for field in JobSpec.__dataclass_fields__
        if getattr(before, field) != getattr(after, field)
    }
    assert changed == {name}
    assert getattr(after, name) == value


def test_a_fresh_key_is_kept() -> None:
    before = spec()
    assert before.replace(priority=1).idempotency_key == before.idempotency_key


@pytest.mark.parametrize(("name", "value"), [("payload", None), ("run_at", None), ("meta", {})])
def test_none_is_a_value_where_it_means_something(name: str, value: object) -> None:
    before = spec(payload={"a": 1}, run_at=NOON, meta={"a": 1})
    assert getattr(before.replace(**{name: None}), name) == value


@pytest.mark.parametrize(
    "name",
    ["type", "idempotency_key", "owner_id", "project_id", "target", "priority", "queue"],
)
def test_none_is_refused_where_something_is_required(name: str) -> None:
    with pytest.raises(InvalidJob, match=f"^{name}: None is not accepted") as caught:
        spec().replace(**{name: None})
    assert caught.value.field == name


@pytest.mark.parametrize(
    ("name", "hint"),
    [("payloud", "did you mean 'payload'?"), ("id", ""), ("namespace", ""), ("key_scope", "")],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(name: str, hint: str) -> None:
    with pytest.raises(InvalidJob, match=f"^{name}: cannot be replaced") as caught:
        spec().replace(**{name: "a"})
    assert caught.value.field == name
    assert hint in str(caught.value)
    assert "accepted: type, idempotency_key, owner_id" in str(caught.value)


def test_a_replacement_is_validated_and_copied() -> None:
    with pytest.raises(InvalidJob, match=r"^queue: has 65 characters"):
        spec().replace(queue="x" * 65)
    before = spec(payload={"a": [1]})
    after = before.replace(priority=1)
    assert isinstance(after.payload, dict)
    after.payload.clear()
    assert before.payload == {"a": [1]}


# As a value


def test_a_spec_is_frozen_and_survives_copy_and_pickle() -> None:
    job = spec(payload={"a": [1]}, run_at=NOON)
    with pytest.raises(AttributeError):
        job.priority = 1  # type: ignore[misc]
    for twin in (copy.copy(job), copy.deepcopy(job), pickle.loads(pickle.dumps(job))):
        assert twin == job
        assert twin.idempotency_key == job.idempotency_key


def test_a_repr_shows_no_payload() -> None:
    job = spec(payload={"password": "hunter2"}, meta={"a": "hunter2"}, idempotency_key="hunter2")
    assert repr(job) == "<JobSpec 'invoice.send' in 'default'>"
