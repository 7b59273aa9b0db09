"""JSON is strict and bounded; text of the machinery is made storable."""

from __future__ import annotations

import datetime as dt
import json
import math
import time
import tracemalloc
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.db.models import TextChoices
from django.http import QueryDict
from django.utils.functional import SimpleLazyObject
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy
from hypothesis import given
from hypothesis import strategies as st

from django_durable_jobs.errors import InvalidJob
from django_durable_jobs.strictjson import (
    Json,
    canonical,
    describe_exception,
    dumps,
    format_traceback,
    normalise,
    storable_text,
)

LIMIT = 256 * 1_024

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=12
)


class Number(IntEnum):
    ONE = 1


class Word(TextChoices):
    A = "a"


class Colour(Enum):
    RED = "red"


@dataclass
class Money:
    cents: int


class LoudInt(int):
    def __repr__(self) -> str:
        return "NaN"

    __str__ = __repr__


class Angry:
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise RuntimeError

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


Point = namedtuple("Point", "x y")


def refused(value: object, *, max_bytes: int = LIMIT) -> InvalidJob:
    with pytest.raises(InvalidJob) as caught:
        normalise(value, "payload", max_bytes=max_bytes)
    assert caught.value.field == "payload"
    assert str(caught.value).startswith(f"{caught.value.path}: ")
    return caught.value


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_the_path_of_a_refused_value_is_named() -> None:
    error = refused({"items": [0, 1, 2, {"price": Decimal("1.5")}]})
    assert str(error).startswith("payload.items[3].price: Decimal is not JSON")
    assert error.path == "payload.items[3].price"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (math.nan, "payload: NaN is not JSON"),
        (math.inf, "payload: Infinity is not JSON"),
        (-math.inf, "payload: -Infinity is not JSON"),
        ("a\0", "payload: text with a NUL character"),
        ("\ud800", "payload: text with a lone surrogate"),
        ({"a\0": 1}, 'payload["a\\u0000"]: a key with a NUL character'),
        ({"\udfff": 1}, 'payload["\\udfff"]: a key with a lone surrogate'),
        ({1: "a", "1": "b"}, "payload: a key of type int is not JSON"),
        ({None: 1}, "payload: a key of type NoneType is not JSON"),
        ({Word.A: 1}, "payload: a key of type Word is not JSON"),
        ({"odd key": [set()]}, 'payload["odd key"][0]: set is not JSON; pass a list'),
        (2**63, "payload: an integer beyond signed 64 bits"),
        (-(2**63) - 1, "payload: an integer beyond signed 64 bits"),
        ([10**5_000], "payload[0]: an integer beyond signed 64 bits"),
        ((1, 2), "payload: tuple is not JSON; pass a list"),
        (Point(1, 2), "payload: Point is not JSON; pass a list"),
        (b"a", "payload: bytes is not JSON; pass text"),
        (dt.datetime(2024, 1, 1), "payload: datetime is not JSON; pass its .isoformat()"),
        (dt.timedelta(1), "payload: timedelta is not JSON"),
        (UUID(int=1), "payload: UUID is not JSON; pass str(value)"),
        (Number.ONE, "payload: Number is not JSON; pass its .value"),
        (Word.A, "payload: Word is not JSON; pass its .value"),
        (Colour.RED, "payload: Colour is not JSON; pass its .value"),
        (Money(1), "payload: Money is not JSON; pass dataclasses.asdict(value)"),
        (gettext_lazy("a"), "payload: __proxy__ is not JSON; lazy text: pass str(value)"),
        (QueryDict("a=1&a=2"), "payload: QueryDict is not JSON; pass its .dict()"),
        (User(pk=7), "payload: User is not JSON; pass its pk"),
        (object(), "payload: object is not JSON"),
        (int, "payload: type is not JSON"),
        ([Angry()], "payload[0]: Angry is not JSON"),
    ],
)
def test_what_json_has_no_form_for_is_refused_by_name(value: object, message: str) -> None:
    assert str(refused(value)).startswith(message)


def test_a_lazy_object_is_refused_without_being_evaluated() -> None:
    def load() -> object:
        raise AssertionError("evaluated")

    assert "SimpleLazyObject is not JSON" in str(refused(SimpleLazyObject(load)))


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (SafeString("<b>"), "<b>"),
        ({SafeString("a"): 1}, {"a": 1}),
        (LoudInt(7), 7),
        (OrderedDict(a=1), {"a": 1}),
        (defaultdict(list, a=[]), {"a": []}),
    ],
)
def test_a_subclass_becomes_the_plain_type(value: object, plain: object) -> None:
    copy = normalise(value, "payload", max_bytes=LIMIT)
    assert copy == plain
    assert type(copy) is type(plain)
    assert dumps(copy) == json.dumps(plain, separators=(",", ":"))
    if isinstance(copy, dict):
        assert all(type(key) is str for key in copy)


def test_the_copy_is_deep() -> None:
    value: dict[str, Any] = {"a": [{"b": 1}]}
    copy = normalise(value, "payload", max_bytes=LIMIT)
    value["a"][0]["b"] = 2
    value["a"].append(3)
    assert copy == {"a": [{"b": 1}]}


def test_twenty_levels_are_accepted_and_no_more() -> None:
    assert normalise(nested(20), "payload", max_bytes=LIMIT) == nested(20)
    assert "20 levels are accepted" in str(refused(nested(21)))


def test_endless_nesting_is_refused() -> None:
    itself: list[Any] = []
    itself.append(itself)
    loop: dict[str, Any] = {}
    loop["a"] = [loop]
    deep = nested(100_000)
    for value in (itself, loop, deep):
        assert "or refers to itself; 20 levels are accepted" in str(refused(value))
    while deep:  # taken apart by hand: freeing it in one go recurses in C
        deep = deep.pop()


@pytest.mark.parametrize("text", ["x", "é", "€", "😀", '"', "\\", "\n", "\x01"])
def test_the_size_is_that_of_compact_utf8_json(text: str) -> None:
    value = {"a": [text] * 10, "b": 1.5}
    size = len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
    assert normalise(value, "payload", max_bytes=size) == value
    error = refused(value, max_bytes=size - 1)
    assert "too large" in str(error)
    assert f"{size - 1:,} bytes" in str(error)


@pytest.mark.parametrize(
    "make",
    [
        lambda: "x" * 200_000_000,
        lambda: {"a" * 50_000_000: 1},
        lambda: SafeString("x" * 50_000_000),
        lambda: [None] * 5_000_000,
        lambda: {str(number): 1 for number in range(200_000)},
    ],
    ids=["text", "key", "subclass", "list", "dict"],
)
def test_a_giant_value_is_refused_at_once_and_without_a_copy(make: Callable[[], object]) -> None:
    value = make()
    tracemalloc.start()
    started = time.perf_counter()
    assert "too large" in str(refused(value))
    took = time.perf_counter() - started
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert took < 0.5  # 0.1 ms here; a copy of the first would take several times as long
    assert peak_bytes < 1_000_000


def test_a_small_value_that_unfolds_without_end_is_refused() -> None:
    value: list[Any] = ["ha"]
    for _ in range(18):
        value = [value] * 10
    assert "too large" in str(refused(value))


def test_an_object_can_be_required() -> None:
    assert normalise({}, "meta", max_bytes=10, require=dict) == {}
    with pytest.raises(InvalidJob, match=r"^meta: must be a JSON object \(dict\), not list"):
        normalise([], "meta", max_bytes=10, require=dict)


@given(json_values)
def test_any_json_value_makes_the_round_trip(value: Any) -> None:
    copy = normalise(value, "payload", max_bytes=10**6)
    assert json.loads(dumps(copy)) == value
    dumps(copy).encode()


ODD = st.one_of(
    scalars,
    st.floats(),
    st.integers(),
    st.text(),
    st.binary(max_size=4),
    st.decimals(),
    st.datetimes(),
    st.uuids(),
    st.complex_numbers(),
    st.sampled_from([Number.ONE, Word.A, object(), len, ..., NotImplemented]),
)


@given(
    st.recursive(
        ODD,
        lambda inner: (
            st.lists(inner)
            | st.tuples(inner)
            | st.dictionaries(st.text() | st.integers() | st.none() | st.tuples(st.text()), inner)
        ),
        max_leaves=10,
    )
)
def test_any_python_value_is_either_json_or_an_invalid_job(value: object) -> None:
    try:
        copy = normalise(value, "payload", max_bytes=10**6)
    except InvalidJob as error:
        str(error).encode()
    else:
        assert json.loads(dumps(copy)) == value


def same(a: Any, b: Any) -> bool:
    """Compare as JSON does, where true is no number."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return bool(a == b)


# Few values, so that equal ones meet.
close_scalars = st.sampled_from(
    [None, True, False, 0, 1, 0.0, -0.0, 1.0, 1.5, "", "1", "true"]
) | st.sampled_from([2**53, 2.0**53, 2**53 + 1, 1e308, 2**63 - 1, 2.0**63, -(2**63), -(2.0**63)])
close_values = st.recursive(
    close_scalars,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abé"), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(close_values, close_values)
def test_canonical_texts_are_equal_where_the_json_values_are(a: Any, b: Any) -> None:
    assert (canonical(a) == canonical(b)) == same(a, b)


@given(json_values)
def test_canonical_text_does_not_depend_on_key_order_or_a_round_trip(value: Any) -> None:
    backwards = {"a": 1, "z": value}, {"z": json.loads(json.dumps(value)), "a": 1.0}
    assert canonical(backwards[0]) == canonical(backwards[1])


def test_canonical_text_is_for_ever() -> None:
    value: Json = {"b": [1.0, -0.0, 1.5, 1e308, True, None], "a": "é"}
    assert canonical(value) == '{"a":"é","b":[1,0,1.5,1e+308,true,null]}'


# Text of the machinery


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("plain é 😀\n\ttext", "plain é 😀\n\ttext"),
        ("a\0b", "a\\x00b"),
        ("\x1b[2J\r\x7f\x9b", "\\x1b[2J\\x0d\\x7f\\x9b"),
        ("\ud800", "\\ud800"),
        ("", ""),
    ],
)
def test_unstorable_characters_are_escaped_visibly(text: str, stored: str) -> None:
    assert storable_text(text, 100) == stored


def test_what_is_cut_is_noted_inside_the_limit() -> None:
    text = storable_text("x" * 10_000_000, 4_096)
    assert len(text) == 4_096
    assert text.endswith("x… [cut: 10,000,000 characters]")
    assert storable_text("x" * 100, 100) == "x" * 100


@given(st.text(), st.integers(0, 60))
def test_stored_text_fits_and_can_be_stored(text: str, limit: int) -> None:
    stored = storable_text(text, limit)
    assert len(stored) <= limit
    assert "\0" not in stored
    stored.encode()


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class Quitting(Exception):
    def __str__(self) -> str:
        raise SystemExit


class NotText(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no"), "ValueError: no"),
        (ValueError(), "ValueError"),
        (ValueError(""), "ValueError"),
        (KeyError("a"), "KeyError: 'a'"),
        (ValueError("a", 1), "ValueError: ('a', 1)"),
        (ValueError([1]), "ValueError: [1]"),
        (ValueError(UUID(int=1)), f"ValueError: {UUID(int=1)}"),
        (OSError(2, "gone"), "FileNotFoundError: [Errno 2] gone"),
        (ValueError("a\0\ud800"), "ValueError: a\\x00\\ud800"),
        (Mute(), "Mute: (its message cannot be shown: str() raised RuntimeError)"),
        (Quitting(), "Quitting: (its message cannot be shown: str() raised SystemExit)"),
        (NotText(), "NotText: (its message cannot be shown: str() raised TypeError)"),
        (
            ValueError(10**5_000),
            "ValueError: (its message cannot be shown: str() raised ValueError)",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_an_exception_is_described(error: Exception, text: str) -> None:
    assert describe_exception(error, 4_096) == text


@pytest.mark.parametrize(
    "error", [ValueError("x" * 10**7), ValueError([0] * 10**6, 1), ValueError({"a": "x" * 10**7})]
)
def test_a_giant_message_is_cut(error: Exception) -> None:
    started = time.perf_counter()
    assert len(describe_exception(error, 4_096)) <= 4_096
    assert time.perf_counter() - started < 0.5


def raised(error: BaseException) -> BaseException:
    secret = "hunter2"
    try:
        assert secret
        raise error
    except BaseException as caught:
        return caught


def test_a_traceback_names_file_line_and_function_but_no_values() -> None:
    text = format_traceback(raised(ValueError("no")), 4_096)
    assert text.startswith("Traceback (most recent call last):\n  File ")
    assert ", in raised\n" in text
    assert text.endswith("\nValueError: no")
    assert "hunter2" not in text


def test_causes_and_contexts_stand_before_what_they_led_to() -> None:
    error, cause, context = ValueError("late"), ValueError("middle"), ValueError("early")
    error.__cause__, cause.__context__ = cause, context
    text = format_traceback(error, 4_096)
    assert text.index("early") < text.index("middle") < text.index("late")
    error.__cause__, error.__context__, error.__suppress_context__ = None, cause, True
    assert format_traceback(error, 4_096) == "ValueError: late"


def endless() -> None:
    endless()


def too_deep() -> BaseException:
    try:
        endless()
    except RecursionError as error:
        return error
    raise AssertionError


def circular() -> BaseException:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def long_chain() -> BaseException:
    error = ValueError("0")
    for number in range(1, 5_000):
        later = ValueError(str(number))
        later.__cause__ = error
        error = later
    return error


def nested_groups() -> BaseException:
    error: Exception = ValueError("core")
    for _ in range(100):
        error = ExceptionGroup("wrapped", [error])
    return error


@pytest.mark.parametrize(
    "make",
    [
        too_deep,
        circular,
        long_chain,
        nested_groups,
        lambda: ExceptionGroup("many", [ValueError(str(n)) for n in range(10_000)]),
        lambda: raised(Mute()),
        lambda: ValueError("x" * 10**7),
        lambda: ValueError("\0" * 10_000),
    ],
    ids=["recursion", "circular", "chain", "nested", "group", "mute", "giant", "nul"],
)
@pytest.mark.parametrize("limit", [10, 500, 50_000])
def test_a_hostile_traceback_is_bounded(make: Callable[[], BaseException], limit: int) -> None:
    error = make()
    started = time.perf_counter()
    text = format_traceback(error, limit)
    assert time.perf_counter() - started < 0.5
    assert len(text) <= limit
    assert "\0" not in text


def test_a_cut_traceback_keeps_its_end() -> None:
    text = format_traceback(too_deep(), 500)
    assert text.startswith("[cut: ")
    assert text.endswith("RecursionError: maximum recursion depth exceeded")


def test_what_is_left_out_of_a_group_is_counted() -> None:
    error = ExceptionGroup("many", [ValueError(str(n)) for n in range(10_000)])
    assert "  | … 9,981 more" in format_traceback(error, 50_000)
