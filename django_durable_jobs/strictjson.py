"""Strict, bounded JSON, and text that every database can store.

What callers hand in is copied or refused by name, never coerced silently: `normalise`. What the
machinery itself has to store (errors, tracebacks, reasons) is made storable and cut, never
refused: `storable_text`. Neither is slow or hungry on hostile input.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import reprlib
from collections import deque
from decimal import Decimal
from enum import Enum
from types import TracebackType
from typing import Any, TypeAlias, overload
from uuid import UUID

from django.utils.datastructures import MultiValueDict
from django.utils.functional import LazyObject, Promise

from .errors import InvalidJob

__all__ = [
    "MAX_LEVELS",
    "Json",
    "canonical",
    "describe_exception",
    "dumps",
    "format_traceback",
    "normalise",
    "storable_text",
    "type_name",
]

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None

MAX_LEVELS = 20  # MariaDB refuses 32
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1

_NAME_IN_MESSAGE_CHARS = 100

_FRAMES_PER_EXCEPTION = 30
_EXCEPTIONS_PER_TRACEBACK = 20
_MESSAGE_IN_TRACEBACK_CHARS = 1_000

# Every character of category Cc but newline and tab, and lone surrogates.
_UNSTORABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")

_HINTS: tuple[tuple[type, str], ...] = (  # the first class that fits
    (Enum, "pass its .value"),
    (Promise, "lazy text: pass str(value)"),
    (LazyObject, "pass a plain value, for a model instance its pk"),
    (MultiValueDict, "pass its .dict()"),
    (bytes, "pass text"),
    (dt.timedelta, "pass its .total_seconds()"),
    *((kind, "pass a list") for kind in (tuple, set, frozenset)),
    *((kind, "pass str(value)") for kind in (Decimal, UUID)),
    *((kind, "pass its .isoformat()") for kind in (dt.date, dt.time)),
)


class _Refused(Exception):
    """Carry what is wrong, and the steps from the wrong value out to the root."""

    def __init__(self, problem: str, *steps: str | int) -> None:
        self.problem = problem
        self.steps: list[str | int] = list(steps)


class _TooLarge(Exception):
    """The value is certainly over its budget."""


class _Room:
    """Count down a budget in bytes; a lower bound, so that the walk stops early."""

    __slots__ = ("left",)

    def __init__(self, max_bytes: int) -> None:
        self.left = max_bytes

    def take(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise _TooLarge


@overload
def normalise(value: object, field: str, *, max_bytes: int, require: None = None) -> Json: ...
@overload
def normalise(
    value: object, field: str, *, max_bytes: int, require: type[dict[Any, Any]]
) -> dict[str, Json]: ...
def normalise(
    value: Any, field: str, *, max_bytes: int, require: type[dict[Any, Any]] | None = None
) -> Any:
    """Return a deep, plain copy of a JSON value; refuse everything else.

    Plain: subclasses of str, int, float, list and dict (SafeString, OrderedDict) become the base
    type. Enum members are refused all the same, because what was meant is not certain, and
    tuples, because they would come back as lists. `max_bytes` counts compact UTF-8 JSON.
    `require=dict` takes JSON objects only. No code of the value's own is called: a lazy object
    is not evaluated.

    Raises InvalidJob with `field` and the path: "payload.items[3].price: Decimal is not JSON".
    """
    if require is not None and not issubclass(type(value), require):
        message = f"{field}: must be a JSON object (dict), not {type_name(type(value))}"
        raise InvalidJob(message, field=field, path=field)
    try:
        plain = _copy(value, _Room(max_bytes), 1)
    except _TooLarge:
        raise _too_large("more than", field, max_bytes=max_bytes) from None
    except _Refused as refused:
        path = _render_path(field, refused.steps)
        raise InvalidJob(f"{path}: {refused.problem}", field=field, path=path) from None
    # The walk counted a lower bound, so this text is at most a few times the limit.
    text = dumps(plain)
    size = len(text) if text.isascii() else len(text.encode())
    if size > max_bytes:
        raise _too_large(f"{size:,} bytes, more than", field, max_bytes=max_bytes)
    return plain


def _too_large(found: str, field: str, *, max_bytes: int) -> InvalidJob:
    message = f"{field}: too large: {found} the {max_bytes:,} bytes of JSON that are accepted"
    return InvalidJob(message, field=field, path=field)


# `type(value)` is asked throughout, never isinstance: that looks at `value.__class__`, which is
# code of the value's own (a SimpleLazyObject would query the database).
def _copy(value: Any, room: _Room, level: int) -> Json:
    kind = type(value)
    if kind is str:
        return _copy_text(value, room)
    if value is None or kind is bool:
        room.take(4)
        return None if value is None else bool(value)
    if issubclass(kind, (Enum, Promise, MultiValueDict)):
        raise _not_json(kind)
    if issubclass(kind, str):
        return _copy_text(value, room)
    if issubclass(kind, int):
        room.take(1)
        if not _INT64_MIN <= int.__int__(value) <= _INT64_MAX:
            raise _Refused("an integer beyond signed 64 bits is not accepted; pass it as text")
        return int.__int__(value)
    if issubclass(kind, float):
        room.take(3)
        number = float.__float__(value)
        if not math.isfinite(number):
            raise _Refused(f"{json.dumps(number)} is not JSON")  # NaN, Infinity, -Infinity
        return number
    if issubclass(kind, list):
        return _copy_list(value, room, level)
    if issubclass(kind, dict):
        return _copy_dict(value, room, level)
    raise _not_json(kind)


def _copy_text(value: str, room: _Room) -> str:
    room.take(str.__len__(value) + 2)
    text = str.__str__(value)
    if problem := _text_problem(text):
        raise _Refused(f"text with {problem} is not accepted")
    return text


def _copy_list(value: list[Any], room: _Room, level: int) -> list[Json]:
    _check_level(level)
    room.take(1 + max(1, list.__len__(value)))  # brackets and commas
    result: list[Json] = []
    for index, item in enumerate(list.__iter__(value)):
        try:
            result.append(_copy(item, room, level + 1))
        except _Refused as refused:
            refused.steps.append(index)
            raise
    return result


def _copy_dict(value: dict[Any, Any], room: _Room, level: int) -> dict[str, Json]:
    _check_level(level)
    size = dict.__len__(value)
    room.take(1 + max(1, 2 * size))  # braces, colons and commas
    result: dict[str, Json] = {}
    # A list first: another thread may be writing to the caller's dict.
    for key, item in list(dict.items(value)):
        kind = type(key)
        if not issubclass(kind, str) or issubclass(kind, Enum):
            raise _Refused(f"a key of type {type_name(kind)} is not JSON; keys are text")
        room.take(str.__len__(key) + 2)
        text = str.__str__(key)
        if problem := _text_problem(text):
            raise _Refused(f"a key with {problem} is not accepted", text)
        try:
            result[text] = _copy(item, room, level + 1)
        except _Refused as refused:
            refused.steps.append(text)
            raise
    if len(result) < size:
        raise _Refused("two keys are the same text")
    return result


def _check_level(level: int) -> None:
    if level > MAX_LEVELS:
        raise _Refused(f"nested too deep, or refers to itself; {MAX_LEVELS} levels are accepted")


def _text_problem(text: str) -> str:
    """Say what keeps the text out of a database, "" for nothing."""
    if "\0" in text:
        return "a NUL character"
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return "a lone surrogate"
    return ""


def _not_json(kind: type) -> _Refused:
    hint = next((hint for base, hint in _HINTS if issubclass(kind, base)), "")
    if not hint and _defines(kind, "_meta") and _defines(kind, "pk"):
        hint = "pass its pk"
    elif not hint and _defines(kind, "__dataclass_fields__"):
        hint = "pass dataclasses.asdict(value)"
    return _Refused(f"{type_name(kind)} is not JSON" + (f"; {hint}" if hint else ""))


def _defines(kind: type, name: str) -> bool:
    """Look without calling: a metaclass may define attribute access."""
    return any(name in vars(base) for base in type.mro(kind))


def type_name(kind: type) -> str:
    return storable_text(type.__dict__["__name__"].__get__(kind), _NAME_IN_MESSAGE_CHARS)


def _render_path(field: str, steps: list[str | int]) -> str:
    """Write `payload.items[3]["odd key"]`; the steps come from the inside out."""
    parts = [field]
    for step in reversed(steps):
        if isinstance(step, int):
            parts.append(f"[{step}]")
        elif len(step) <= _NAME_IN_MESSAGE_CHARS and step.isascii() and step.isidentifier():
            parts.append(f".{step}")
        else:
            cut = "…" if len(step) > _NAME_IN_MESSAGE_CHARS else ""
            parts.append(f"[{json.dumps(step[:_NAME_IN_MESSAGE_CHARS])}{cut}]")
    return "".join(parts)


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_encode_sorted = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, sort_keys=True
).encode


def dumps(value: Json) -> str:
    """Write a normalised value as compact JSON."""
    return _encode(value)


def canonical(value: Json) -> str:
    """Write a normalised value so that equal JSON values, and only they, give equal text.

    Key order does not matter, 1 and 1.0 and 0.0 and -0.0 are equal, 1 and true differ.
    """
    return _encode_sorted(_with_integers(value))


def _with_integers(value: Json) -> Json:
    """Turn floats of integral value into integers, within 64 bits.

    A larger one equals no integer that is accepted, and its shortest repr is stable.
    """
    if isinstance(value, float):
        return int(value) if value.is_integer() and -(2.0**63) <= value < 2.0**63 else value
    if isinstance(value, dict):
        return {key: _with_integers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_integers(item) for item in value]
    return value


def storable_text(text: str, limit: int) -> str:
    r"""Return text that every database stores, at most `limit` characters long.

    Control characters but newline and tab, and lone surrogates, are escaped visibly (\x00,
    \ud800). What is cut is noted at the end, inside the limit: "… [cut: 10,000,000 characters]",
    the length of the original.
    """
    head, length = _escaped(str.__getitem__(text, slice(limit))), str.__len__(text)
    if length <= limit and len(head) <= limit:
        return head
    note = f"… [cut: {length:,} characters]"
    # A limit too small for the note keeps text: it says more than the note.
    return head[: limit - len(note)] + note if len(note) < limit else head[:limit]


def _escaped(text: str) -> str:
    return _UNSTORABLE.sub(_escape, str.__str__(text))


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def describe_exception(exc: BaseException, limit: int) -> str:
    """Say "ClassName: message" in storable text; the class alone where it has no message.

    Never fails on the exception's account: one whose `str()` raises is described as such.
    """
    name = type_name(type(exc))
    try:
        message = _message(exc, limit)
        text = f"{name}: {message}" if message else name
    except (Exception, SystemExit) as error:  # foreign code: __str__ and __repr__
        text = f"{name}: (its message cannot be shown: str() raised {type_name(type(error))})"
    return storable_text(text, limit)


def _message(exc: BaseException, limit: int) -> str:
    """Return str(exc), bounded where it is the default: the args, however large they are."""
    args = exc.args
    if type(exc).__str__ is not BaseException.__str__ or not args:
        return str(exc)
    if len(args) == 1 and type(args[0]) not in (list, tuple, dict, set, frozenset):
        return str(args[0])
    bounded = reprlib.Repr()
    bounded.maxstring = bounded.maxother = bounded.maxlong = limit
    bounded.maxtuple = bounded.maxlist = bounded.maxdict = bounded.maxset = 50
    return bounded.repr(args[0] if len(args) == 1 else args)


def format_traceback(exc: BaseException, limit: int) -> str:
    """Write the traceback as Python does, bounded: file, line and function of each frame.

    Neither locals nor source lines: no secrets, no reading of files. Of each exception the last
    30 frames, of causes and groups 20 exceptions. Where `limit` characters are too few the
    beginning is cut, for the end says what happened.
    """
    lines: list[str] = []
    _add_chain(exc, lines, indent="", seen=set())
    text = _escaped("\n".join(lines))
    if len(text) <= limit:
        return text
    note = f"[cut: {len(text):,} characters] …"
    return note + text[len(note) - limit :] if len(note) < limit else text[:limit]


def _add_chain(exc: BaseException, lines: list[str], *, indent: str, seen: set[int]) -> None:
    """Write an exception after those that led to it; `seen` ends circles and counts."""
    chain: list[BaseException] = []
    link: BaseException | None = exc
    while link is not None and id(link) not in seen and len(seen) < _EXCEPTIONS_PER_TRACEBACK:
        seen.add(id(link))
        chain.append(link)
        suppressed = link.__cause__ is not None or link.__suppress_context__
        link = link.__cause__ if suppressed else link.__context__
    if link is not None:
        lines.append(f"{indent}… further exceptions left out")
    for link in reversed(chain):
        _add_frames(link.__traceback__, lines, indent=indent)
        message = describe_exception(link, _MESSAGE_IN_TRACEBACK_CHARS)
        lines.extend(indent + line for line in message.split("\n"))
        if isinstance(link, BaseExceptionGroup):
            for index, member in enumerate(link.exceptions):
                if len(seen) >= _EXCEPTIONS_PER_TRACEBACK:
                    lines.append(f"{indent}  | … {len(link.exceptions) - index:,} more")
                    break
                _add_chain(member, lines, indent=f"{indent}  | ", seen=seen)
        if link is not exc:
            lines.append(f"{indent}which led to:")


def _add_frames(tb: TracebackType | None, lines: list[str], *, indent: str) -> None:
    if tb is None:
        return
    lines.append(f"{indent}Traceback (most recent call last):")
    last: deque[TracebackType] = deque(maxlen=_FRAMES_PER_EXCEPTION)
    count = 0
    while tb is not None:
        last.append(tb)
        count += 1
        tb = tb.tb_next
    if count > len(last):
        lines.append(f"{indent}  … {count - len(last):,} frames left out")
    for frame in last:
        code = frame.tb_frame.f_code
        place = f'File "{code.co_filename}", line {frame.tb_lineno}, in {code.co_qualname}'
        lines.append(f"{indent}  {place}")
