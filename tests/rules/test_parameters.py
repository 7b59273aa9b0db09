"""Payloads are bound to the parameters of their handlers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, NewType, Optional
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_durable_jobs.errors import InvalidJob
from django_durable_jobs.parameters import _ELSEWHERE, Parameters, did_you_mean
from django_durable_jobs.registry.functions import EnqueueOptions

if TYPE_CHECKING:
    from nowhere import Unknown  # type: ignore[import-not-found]

InvoiceId = NewType("InvoiceId", UUID)
SOME_ID = UUID("12345678-1234-5678-1234-567812345678")


def send(invoice_id: int, copies: int = 1, *, note: str = "") -> None: ...
def nothing() -> None: ...
def extras(name: str, **rest: Decimal) -> None: ...
def with_context(context: object, invoice_id: int) -> None: ...
def context_and_extras(context: object, **rest: Any) -> None: ...
def sealed_context_and_extras(context: object, /, **rest: Any) -> None: ...
def whole(payload: object) -> None: ...
def positional_only(invoice_id: int, /) -> None: ...
def starred(*invoice_ids: int) -> None: ...
def two(a: int, b: int) -> None: ...
def star_then_context(*args: object) -> None: ...


def typed(
    uuid: UUID,
    amount: Decimal,
    moment: datetime,
    day: date,
    clock: time,
    length: timedelta,
) -> None: ...


class Callable_:
    def __call__(self, moment: datetime) -> None: ...

    def method(self, moment: datetime) -> None: ...


def form_of(annotation: Any) -> Parameters:
    def handler(value: Any) -> None: ...

    handler.__annotations__ = {"value": annotation}
    return Parameters(handler)


def round_trip(annotation: Any, value: object) -> tuple[object, object]:
    parameters = form_of(annotation)
    stored = parameters.encode({"value": value})
    parameters.check(stored)
    assert isinstance(stored, dict)
    return stored["value"], parameters.decode(stored)["value"]


# Binding


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "payload"),
    [
        (send, (), {"invoice_id": 7}, {"invoice_id": 7}),
        (send, (7,), {}, {"invoice_id": 7}),
        (send, (7, 2), {"note": "x"}, {"invoice_id": 7, "copies": 2, "note": "x"}),
        (nothing, (), {}, {}),
        (extras, ("a",), {"b": 1}, {"name": "a", "b": 1}),
        (extras, (), {"name": "a", "rest": 1}, {"name": "a", "rest": 1}),
        (functools.partial(send, 7), (), {"copies": 2}, {"copies": 2}),
    ],
)
def test_a_call_becomes_a_payload_by_name(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], payload: object
) -> None:
    parameters = Parameters(function)
    assert parameters.to_payload(args, kwargs) == payload
    parameters.check(payload)


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, "needs 'invoice_id'; it accepts invoice_id, copies (optional), note (optional)."),
        ((), {"invoce_id": 7}, "does not take 'invoce_id' (did you mean 'invoice_id'?)"),
        ((), {"invoce_id": 7}, "needs 'invoice_id', does not"),
        ((1, 2, 3), {}, "too many positional arguments; it accepts invoice_id"),
        ((1,), {"invoice_id": 2}, "multiple values for argument 'invoice_id'"),
        ((1,), {"x": 2}, "payload: send does not take 'x'; it accepts"),
    ],
)
def test_a_call_that_does_not_fit_says_what_is_accepted(
    args: tuple[Any, ...], kwargs: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidJob) as caught:
        Parameters(send).to_payload(args, kwargs)
    assert words in str(caught.value)
    assert caught.value.field == "payload"


@pytest.mark.parametrize(
    ("function", "payload", "words"),
    [
        (send, {}, "needs 'invoice_id'"),
        (send, None, "needs 'invoice_id'"),
        (send, {"invoice_id": 7, "z": 1}, "does not take 'z'"),
        (send, {"invoice_id": 7, 5: 1}, "does not take 5"),
        (send, [7], "must be an object, not list; declare the handler raw=True"),
        (send, "7", "must be an object, not str"),
        (nothing, {"a": 1}, "does not take 'a'; it accepts no arguments."),
        (extras, {"a": 1}, "needs 'name'; it accepts name, any other name."),
        (extras, {"name": "", 5: 1}, "does not take 5"),
    ],
)
def test_a_payload_that_does_not_fit_is_refused(
    function: Callable[..., Any], payload: object, words: str
) -> None:
    with pytest.raises(InvalidJob) as caught:
        Parameters(function).check(payload)
    assert words in str(caught.value)
    assert (caught.value.field, caught.value.path) == ("payload", "payload")


@pytest.mark.parametrize("payload", [None, {}])
def test_none_means_no_arguments(payload: object) -> None:
    parameters = Parameters(nothing)
    parameters.check(payload)
    assert parameters.encode(payload) == payload
    assert parameters.arguments(payload) == ((), {})


def test_the_context_is_no_part_of_the_payload() -> None:
    parameters = Parameters(with_context, takes_context=True)
    assert parameters.to_payload((7,), {}) == {"invoice_id": 7}
    parameters.check({"invoice_id": 7})
    with pytest.raises(InvalidJob, match="does not take 'context'"):
        parameters.check({"invoice_id": 7, "context": 1})


def test_the_name_of_the_context_is_free_only_where_it_cannot_collide() -> None:
    with pytest.raises(InvalidJob, match="does not take 'context'"):
        Parameters(context_and_extras, takes_context=True).to_payload((), {"context": 1})
    free = Parameters(sealed_context_and_extras, takes_context=True)
    assert free.to_payload((), {"context": 1}) == {"context": 1}


@pytest.mark.parametrize(
    ("function", "options", "words"),
    [
        (positional_only, {}, "positional-only parameter invoice_id"),
        (starred, {}, r"positional-only parameter \*invoice_ids"),
        (nothing, {"takes_context": True}, "needs a first parameter for it"),
        (star_then_context, {"takes_context": True}, "needs a first parameter for it"),
        (nothing, {"raw": True}, "must take one argument"),
        (two, {"raw": True}, "must take one argument"),
        (type.__call__, {}, "positional-only"),
    ],
)
def test_functions_that_no_payload_fits_are_refused(
    function: Callable[..., Any], options: dict[str, bool], words: str
) -> None:
    with pytest.raises(TypeError, match=words):
        Parameters(function, **options)


# Raw


@pytest.mark.parametrize("payload", [None, [1, 2], {"a": 1}, "x", 7])
def test_a_raw_handler_gets_the_payload_whole(payload: object) -> None:
    parameters = Parameters(whole, raw=True)
    parameters.check(payload)
    assert parameters.encode(payload) is payload
    assert parameters.to_payload((payload,), {}) is payload
    assert parameters.to_payload((), {"payload": payload}) is payload
    assert parameters.arguments(payload) == ((payload,), {})


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1, 2), {}), ((), {"other": 1})])
def test_a_raw_handler_is_enqueued_with_one_argument(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    with pytest.raises(InvalidJob):
        Parameters(whole, raw=True).to_payload(args, kwargs)


def test_a_raw_handler_has_no_names_to_decode() -> None:
    with pytest.raises(TypeError, match=r"see arguments\(\)"):
        Parameters(whole, raw=True).decode({})


# Values of annotated types

VIENNA = ZoneInfo("Europe/Vienna")


@pytest.mark.parametrize(
    ("annotation", "value", "stored"),
    [
        (UUID, SOME_ID, str(SOME_ID)),
        (Decimal, Decimal("10.50"), "10.50"),
        (Decimal, Decimal("1E+3"), "1E+3"),
        (datetime, datetime(2024, 5, 1, 12, 30, tzinfo=VIENNA), "2024-05-01T10:30:00+00:00"),
        (datetime, datetime(2024, 5, 1, 12, 30), "2024-05-01T12:30:00"),
        (date, date(2024, 5, 1), "2024-05-01"),
        (time, time(9, 30), "09:30:00"),
        (time, time(0, 30, tzinfo=timezone(timedelta(hours=2))), "22:30:00+00:00"),
        (timedelta, timedelta(days=1, seconds=90), "P1DT00H01M30S"),
        (timedelta, -timedelta(seconds=1.5), "-P0DT00H00M01.500000S"),
    ],
)
def test_values_are_stored_as_plain_strings(annotation: Any, value: object, stored: str) -> None:
    text, back = round_trip(annotation, value)
    assert text == stored
    assert type(back) is type(value)
    if isinstance(value, time) and value.tzinfo:
        assert back == time(22, 30, tzinfo=UTC)
    else:
        assert back == value


@pytest.mark.parametrize(
    "annotation",
    [
        UUID,
        "UUID",
        UUID | None,
        "UUID | None",
        Optional[UUID],  # noqa: UP045 - the older spelling is the case
        Annotated[UUID, "x"],
        Annotated[UUID | None, "x"],
        Annotated[UUID, "x"] | None,
        InvoiceId,
        InvoiceId | None,
    ],
    ids=str,
)
def test_annotations_are_read_through_their_wrappings(annotation: Any) -> None:
    assert round_trip(annotation, SOME_ID) == (str(SOME_ID), SOME_ID)
    assert round_trip(annotation, None) == (None, None)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 7),
        (str, "2024-05-01"),
        (UUID | str, SOME_ID),  # which of them a stored string was, nobody could tell
        (list[UUID], [SOME_ID]),
        (Any, SOME_ID),
        (date, datetime(2024, 5, 1)),  # the time of day would be lost
        (datetime, date(2024, 5, 1)),
        (UUID, Decimal(1)),
        (Decimal, 1.5),
        (timedelta, 90),
        ("Unknown", SOME_ID),
    ],
    ids=str,
)
def test_other_values_are_left_for_the_json_check(annotation: Any, value: object) -> None:
    assert form_of(annotation).encode({"value": value}) == {"value": value}


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        (UUID, SOME_ID.hex, SOME_ID),
        (datetime, "2024-05-01T10:30:00Z", datetime(2024, 5, 1, 10, 30, tzinfo=UTC)),
        (timedelta, "00:01:30", timedelta(seconds=90)),
        (time, "9:05", time(9, 5)),
        (Decimal, 3, Decimal(3)),
    ],
)
def test_stored_forms_of_other_writers_are_understood(
    annotation: Any, text: object, value: object
) -> None:
    assert round_trip(annotation, text) == (text, value)


@pytest.mark.parametrize("annotation", [UUID, Decimal, datetime, date, time, timedelta])
@pytest.mark.parametrize("text", ["", "secret", "2024-13-45", "25:61:99:", "P9999999999999D"])
def test_strings_of_another_form_are_refused_by_name(annotation: Any, text: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        form_of(annotation).check({"value": text})
    assert (caught.value.field, caught.value.path) == ("payload", "payload.value")
    assert "payload.value: not the text of a " + annotation.__name__ in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (time, time(9, 30, tzinfo=VIENNA)),
        (datetime, datetime.max.replace(tzinfo=timezone(-timedelta(hours=1)))),
    ],
)
def test_values_that_have_no_text_are_refused_by_name(annotation: Any, value: object) -> None:
    with pytest.raises(InvalidJob, match=r"^payload\.value: a \w+ that cannot be stored"):
        form_of(annotation).encode({"value": value})


def test_other_annotations_are_not_checked_and_nothing_but_text_for_the_six() -> None:
    def work(number: int, many: list[UUID], key: UUID, price: Decimal) -> None: ...

    payload = {"number": "x", "many": [7], "key": 7, "price": None}
    parameters = Parameters(work)
    parameters.check(payload)
    assert parameters.arguments(payload) == ((), payload)


def test_an_annotation_that_cannot_be_resolved_spoils_only_itself() -> None:
    def handler(strange: Unknown, uuid: UUID) -> None: ...

    stored = Parameters(handler).encode({"strange": SOME_ID, "uuid": SOME_ID})
    assert stored == {"strange": SOME_ID, "uuid": str(SOME_ID)}


def test_extra_arguments_have_their_annotation_too() -> None:
    parameters = Parameters(extras)
    stored = parameters.encode({"name": "a", "price": Decimal("1.0")})
    assert stored == {"name": "a", "price": "1.0"}
    assert parameters.decode(stored) == {"name": "a", "price": Decimal("1.0")}


@pytest.mark.parametrize(
    "function",
    [
        Callable_(),
        Callable_().method,
        functools.partial(Callable_().method),
        functools.wraps(Callable_().method)(lambda *a, **k: None),
    ],
    ids=["object", "method", "partial", "wrapped"],
)
def test_all_kinds_of_callables_are_understood(function: Callable[..., Any]) -> None:
    stored = Parameters(function).encode({"moment": datetime(2024, 5, 1)})
    assert stored == {"moment": "2024-05-01T00:00:00"}


ZONES: st.SearchStrategy[Any] = st.sampled_from(
    [None, UTC, VIENNA, timezone(timedelta(hours=-9, minutes=-30))]
)


@given(
    uuid=st.uuids(),
    amount=st.decimals(allow_nan=False),
    moment=st.datetimes(
        min_value=datetime(2, 1, 1), max_value=datetime(9998, 1, 1), timezones=ZONES
    ),
    day=st.dates(),
    clock=st.times(),
    length=st.timedeltas(),
)
def test_what_is_encoded_is_decoded_to_the_same(**values: Any) -> None:
    parameters = Parameters(typed)
    stored = parameters.encode(values)
    assert isinstance(stored, dict)
    assert all(type(text) is str for text in stored.values())
    assert parameters.encode(stored) == stored
    # Python holds a time that its zone has twice for unequal to any time of another zone.
    moment = values["moment"]
    values["moment"] = moment.astimezone(UTC) if moment.tzinfo else moment
    assert parameters.decode(stored) == values


ENQUEUE = ("type", "payload", *EnqueueOptions.__annotations__)
JOB = ("aliases", "backoff", "max_attempts", "retry_on", "takes_context", "timeout")


@pytest.mark.parametrize(
    ("name", "accepted", "told"),
    [
        ("prioritty", ENQUEUE, " (did you mean 'priority'?)"),
        ("owner", ENQUEUE, " (did you mean 'owner_id'?)"),
        ("eta", ENQUEUE, " (did you mean 'run_at'?)"),
        ("countdown", ENQUEUE, " (did you mean 'run_at'?)"),
        ("countdown", JOB, " (did you mean 'backoff'?)"),
        ("kwargs", ENQUEUE, " (did you mean 'payload'?)"),
        ("unique_key", ENQUEUE, " (did you mean 'idempotency_key'?)"),
        ("dedupe", ENQUEUE, " (did you mean 'idempotency_key'?)"),
        ("max_retries", JOB, " (did you mean 'max_attempts'?)"),
        ("max_retries", ENQUEUE, " ('max_attempts' is an option of @job)"),
        ("time_limit", JOB, " (did you mean 'timeout'?)"),
        ("timeout", ENQUEUE, " ('timeout' is an option of @job)"),
        ("run_at", JOB, " ('run_at' is given when a job is enqueued)"),
        # A handler's own names are its own business.
        ("owner", ("owner_id", "invoice"), " (did you mean 'owner_id'?)"),
        ("timeout", ("invoice",), ""),
        ("zzz", ENQUEUE, ""),
    ],
)
def test_what_other_systems_call_an_option_is_understood(
    name: str, accepted: tuple[str, ...], told: str
) -> None:
    assert did_you_mean(name, accepted) == told


def test_each_name_from_elsewhere_means_something_that_there_is() -> None:
    there_is = {*ENQUEUE, *JOB, "on_interrupt", "can_run", "raw", "atomic"}
    assert {ours for meant in _ELSEWHERE.values() for ours in meant} <= there_is
    assert not there_is & set(_ELSEWHERE)
