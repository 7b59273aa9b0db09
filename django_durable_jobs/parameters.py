"""Bind payloads to the parameters of handlers.

The keys of a payload are the handler's keyword arguments. Parameters annotated `UUID`, `Decimal`,
`datetime`, `date`, `time` or `timedelta`, or optional of one of these, take such values, although
JSON has no form for them: they are stored as plain strings and given back as the annotated type.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import reprlib
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from inspect import Parameter
from typing import Any
from uuid import UUID

from django.utils.dateparse import parse_date, parse_datetime, parse_duration, parse_time
from django.utils.duration import duration_iso_string

from .errors import InvalidJob

__all__ = ["Parameters", "did_you_mean", "refuse_unknown", "shown"]

_SHOWN_CHARS = 100
_shown = reprlib.Repr()
_shown.maxstring = _shown.maxother = _shown.maxlong = _SHOWN_CHARS

# What other systems call our options. Of several of ours the first counts that is accepted.
_ELSEWHERE: Mapping[str, tuple[str, ...]] = {
    name: ours
    for names, ours in (
        ("owner user user_id tenant tenant_id account", ("owner_id",)),
        ("project", ("project_id",)),
        ("eta scheduled scheduled_at scheduled_for schedule_at schedule_in", ("run_at",)),
        ("run_in run_after start_at not_before when after", ("run_at",)),
        ("countdown delay defer", ("run_at", "backoff")),
        ("args kwargs arguments params data input", ("payload",)),
        ("unique unique_key unique_id unique_for dedupe dedupe_key", ("idempotency_key",)),
        ("dedup_key job_key lock queueing_lock key", ("idempotency_key",)),
        ("labels tags metadata headers extra context", ("meta",)),
        ("task task_name job job_type handler function func name", ("type",)),
        ("job_id task_id uuid pk", ("id",)),
        ("queue_name routing_key", ("queue",)),
        ("db database alias", ("using",)),
        ("time_limit soft_time_limit max_run job_timeout timeout_seconds", ("timeout",)),
        ("retries max_retries retry tries attempts max_tries", ("max_attempts",)),
        ("retry_delay retry_backoff default_retry_delay retry_wait", ("backoff",)),
        ("autoretry_for retry_for retry_exceptions", ("retry_on",)),
        ("bind pass_context with_context", ("takes_context",)),
    )
    for name in names.split()
}
# Which of the two, the declaration or the enqueueing, an option belongs to.
_OF_ENQUEUE = frozenset({"run_at", "owner_id", "project_id", "payload", "idempotency_key", "meta"})
_OF_JOB = frozenset(
    {"timeout", "max_attempts", "backoff", "retry_on", "on_interrupt", "can_run", "takes_context"}
    | {"atomic", "raw", "aliases"}
)

# Any day will do: only times of a fixed offset are moved to UTC, and theirs does not change.
_ANY_DAY = date(2000, 1, 2)


@dataclass(frozen=True, slots=True)
class _Form:
    """Write values of one annotated type as strings, and read them back."""

    kind: type
    write: Callable[[Any], str]
    read: Callable[[str], object | None]  # None or ValueError or ArithmeticError: not of the form

    def holds(self, value: object) -> bool:
        # A datetime is a date in Python, but its time of day would be lost on the way.
        if self.kind is date and isinstance(value, datetime):
            return False
        return isinstance(value, self.kind)


def _write_datetime(value: datetime) -> str:
    return (value if value.utcoffset() is None else value.astimezone(UTC)).isoformat()


def _write_time(value: time) -> str:
    if value.tzinfo is None:
        return value.isoformat()
    if value.utcoffset() is None:
        raise ValueError("its offset from UTC depends on the day")
    return datetime.combine(_ANY_DAY, value).astimezone(UTC).timetz().isoformat()


def _read_time(text: str) -> time | None:
    # Django's own parser comes second because it drops the offset.
    try:
        return time.fromisoformat(text)
    except ValueError:
        return parse_time(text)


def _read_duration(text: str) -> timedelta | None:
    # Django's parser takes no text at all for a duration of nothing.
    return parse_duration(text) if text.strip() else None


_FORMS: Mapping[type, _Form] = {
    form.kind: form
    for form in (
        _Form(UUID, str, UUID),
        _Form(Decimal, str, Decimal),
        _Form(datetime, _write_datetime, parse_datetime),
        _Form(date, date.isoformat, parse_date),
        _Form(time, _write_time, _read_time),
        _Form(timedelta, duration_iso_string, _read_duration),
    )
}


def shown(value: object) -> str:
    """Return what a message shows of a caller's value: its repr, cut to 100 characters."""
    try:
        return _shown.repr(value)[:_SHOWN_CHARS]
    except Exception:  # an int too long for a text, or foreign code
        return f"a value of type {type(value).__name__}"[:_SHOWN_CHARS]


def did_you_mean(name: object, accepted: Iterable[str]) -> str:
    """Return " (did you mean 'the nearest name'?)", "" where none is near.

    Nearest is what other systems' name for it means here, then what is spelled alike. One that
    belongs to the declaration, or to enqueueing, and is given to the other is told so.
    """
    text, names = str(name)[:_SHOWN_CHARS], list(accepted)
    meant = (*_ELSEWHERE.get(text, ()), text)
    near = [ours for ours in meant if ours in names] or difflib.get_close_matches(text, names, n=1)
    if near:
        return f" (did you mean {near[0]!r}?)"
    return next(filter(None, (_belongs(ours, names) for ours in meant)), "")


def _belongs(name: str, accepted: Collection[str]) -> str:
    if name in _OF_JOB and "idempotency_key" in accepted:
        return f" ({name!r} is an option of @job)"
    if name in _OF_ENQUEUE and "max_attempts" in accepted:
        return f" ({name!r} is given when a job is enqueued)"
    return ""


def refuse_unknown(options: Iterable[str], accepted: Iterable[str]) -> None:
    """Raise TypeError that names the first unknown option and the nearest that there is."""
    accepted = list(accepted)
    if unknown := set(options).difference(accepted):
        name = min(unknown)
        found = f"Unknown option {shown(name)}{did_you_mean(name, accepted)}"
        raise TypeError(f"{found}; accepted: {', '.join(accepted)}.")


class Parameters:
    """Know which arguments a handler takes, apart from a `JobContext` that comes first.

    Raises TypeError for a function that cannot be a handler: one with positional-only parameters
    or `*args`, which a payload has no names for; with `raw`, one that does not take exactly one
    argument; with `takes_context`, one without a first positional parameter.
    """

    def __init__(
        self, function: Callable[..., Any], *, raw: bool = False, takes_context: bool = False
    ) -> None:
        self.function = function
        self.raw = raw
        self.takes_context = takes_context
        self.name: str = getattr(function, "__qualname__", None) or repr(function)
        signature = _signature(function)
        parameters = list(signature.parameters.values())
        # The name of the context is taken where a keyword argument could collide with it.
        self._taken = ""
        if takes_context:
            context = self._take_context(parameters)
            self._taken = context.name if context.kind is Parameter.POSITIONAL_OR_KEYWORD else ""
        self._signature = signature.replace(parameters=parameters)
        self._refuse_unbindable(parameters)
        self._extra = next((p.name for p in parameters if p.kind is Parameter.VAR_KEYWORD), None)
        named = [p for p in parameters if p.kind is not Parameter.VAR_KEYWORD]
        self._names = tuple(p.name for p in named)
        self._required = tuple(p.name for p in named if p.default is Parameter.empty)

    def to_payload(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the payload that stands for a call with these arguments, not yet encoded.

        Arguments that were left out stay out: defaults are those of the code that runs the job.
        Raises InvalidJob where the call does not fit.
        """
        try:
            bound = self._signature.bind_partial(*args, **kwargs)
        except TypeError as error:
            if not self.raw:
                self._fit(kwargs, given=self._names[: len(args)])  # it names all that is wrong
            raise self._invalid(f"cannot be called so: {error}; {self._accepted()}") from error
        arguments = dict(bound.arguments)
        if self.raw:
            if len(args) + len(kwargs) != 1:
                raise self._invalid(f"takes one payload, got {len(args) + len(kwargs)}")
            return next(iter(arguments.values()))
        if self._extra:
            arguments |= arguments.pop(self._extra, {})
        self._fit(arguments)
        return arguments

    def check(self, payload: object) -> None:
        """Raise InvalidJob unless this payload, in its stored form, fits the parameters."""
        if not self.raw:
            self.decode(payload)

    def encode(self, payload: object) -> object:
        """Return the payload with values of annotated types as strings: its stored form.

        All else stays as it is, for the check of the JSON to judge.
        """
        if self.raw or not isinstance(payload, dict):
            return payload
        return {name: self._write(name, value) for name, value in payload.items()}

    def decode(self, payload: object) -> dict[str, Any]:
        """Return the keyword arguments that a stored payload stands for; None stands for none.

        Raises InvalidJob where the payload does not fit, and for a string that is not of the
        form its parameter is annotated with. TypeError for a raw handler: it has no names.
        """
        if self.raw:
            raise TypeError(f"{self.name} takes its payload whole: see arguments().")
        if payload is None:
            payload = {}
        if not isinstance(payload, dict):
            kind = type(payload).__name__
            raise self._invalid(
                f"takes keyword arguments, so the payload must be an object, not {kind}; "
                "declare the handler raw=True to get it whole"
            )
        self._fit(payload)
        return {name: self._read(name, value) for name, value in payload.items()}

    def arguments(self, payload: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return args and kwargs to call the handler with, after its context if it takes one."""
        return ((payload,), {}) if self.raw else ((), self.decode(payload))

    def _take_context(self, parameters: list[Parameter]) -> Parameter:
        positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        if not parameters or parameters[0].kind not in positional:
            raise TypeError(f"{self.name} takes the context, so it needs a first parameter for it.")
        return parameters.pop(0)

    def _refuse_unbindable(self, parameters: Iterable[Parameter]) -> None:
        if self.raw:
            try:
                self._signature.bind(None)
            except TypeError as error:
                message = f"{self.name} is raw, so it must take one argument, the payload: {error}."
                raise TypeError(message) from error
            return
        for parameter in parameters:
            if parameter.kind in (Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL):
                star = "*" if parameter.kind is Parameter.VAR_POSITIONAL else ""
                raise TypeError(
                    f"{self.name} has the positional-only parameter {star}{parameter.name}: "
                    "payloads are passed as keyword arguments."
                )

    def _fit(self, names: Iterable[object], *, given: tuple[str, ...] = ()) -> None:
        """Raise InvalidJob that names each missing and each unexpected argument."""
        known = {*names, *given}
        wrong = [f"needs {name!r}" for name in self._required if name not in known]
        wrong += [self._unexpected(name) for name in names if not self._takes(name)]
        if wrong:
            raise self._invalid(f"{', '.join(wrong)}; {self._accepted()}")

    def _takes(self, name: object) -> bool:
        if name in self._names:
            return True
        return self._extra is not None and isinstance(name, str) and name != self._taken

    def _unexpected(self, name: object) -> str:
        return f"does not take {shown(name)}{did_you_mean(name, self._names)}"

    def _accepted(self) -> str:
        # Names only: a default could be a secret.
        names = [n if n in self._required else f"{n} (optional)" for n in self._names]
        names += ["any other name"] if self._extra else []
        return f"it accepts {', '.join(names) or 'no arguments'}"

    def _invalid(self, message: str, *, path: str = "payload") -> InvalidJob:
        return InvalidJob(f"payload: {self.name} {message}.", field="payload", path=path)

    def _write(self, name: str, value: object) -> object:
        form = self._form(name)
        if form is None or not form.holds(value):
            return value
        try:
            return form.write(value)
        except (ValueError, ArithmeticError) as error:
            kind = form.kind.__name__
            message = f"payload.{name}: a {kind} that cannot be stored as text: {error}."
            raise InvalidJob(message, field="payload", path=f"payload.{name}") from error

    def _read(self, name: str, value: object) -> object:
        form = self._form(name)
        if form is None:
            return value
        if form.kind is Decimal and isinstance(value, int) and not isinstance(value, bool):
            return Decimal(value)
        if not isinstance(value, str):
            return value
        try:
            result = form.read(value)
        except (ValueError, ArithmeticError):
            result = None
        if result is None:
            # Not the value: messages go to logs, payloads never do.
            message = f"payload.{name}: not the text of a {form.kind.__name__}, which"
            message += f" {self.name} is annotated with."
            raise InvalidJob(message, field="payload", path=f"payload.{name}")
        return result

    def _form(self, name: str) -> _Form | None:
        return self._forms.get(name if name in self._names else self._extra or "")

    @functools.cached_property
    def _forms(self) -> dict[str, _Form]:
        # Late, because an annotation may name what its module defines or imports further down.
        if self.raw:
            return {}
        hints = _hints(self.function)
        forms = {name: _FORMS.get(_bare(hint)) for name, hint in hints.items()}
        return {name: form for name, form in forms.items() if form is not None}


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        if sys.version_info >= (3, 14):
            # Annotations are evaluated when asked for; names under TYPE_CHECKING do not exist.
            import annotationlib

            lazy = annotationlib.Format.FORWARDREF
            return inspect.signature(function, annotation_format=lazy)
        return inspect.signature(function)
    except ValueError as error:
        raise TypeError(f"{function!r} does not tell its parameters.") from error


def _hints(function: Callable[..., Any]) -> dict[str, object]:
    """Return the resolved annotations; one that cannot be resolved is left out."""
    target: Any = function
    while isinstance(target, functools.partial):
        target = target.func
    target = inspect.unwrap(target)
    if not hasattr(target, "__code__") and not inspect.ismethod(target):
        target = type(target).__call__  # an object that can be called
    try:
        return typing.get_type_hints(target)
    except Exception:  # noqa: S110 - annotations run foreign code; those that work are found below
        pass
    hints: dict[str, object] = {}
    for name, parameter in _signature(function).parameters.items():
        try:
            hints |= _hint(name, parameter.annotation, getattr(target, "__globals__", {}))
        except Exception:  # noqa: S112 - as above
            continue
    return hints


def _hint(name: str, annotation: object, names: dict[str, Any]) -> dict[str, object]:
    def bearer() -> None: ...

    bearer.__annotations__ = {name: annotation}
    return typing.get_type_hints(bearer, globalns=names)


def _bare(hint: object) -> Any:
    """Return the type inside Optional, Annotated, NewType and type aliases; None for others."""
    while True:
        if hasattr(hint, "__supertype__"):  # NewType
            hint = hint.__supertype__
        elif hasattr(hint, "__value__"):  # type X = …, from Python 3.12
            hint = hint.__value__
        elif hasattr(hint, "__metadata__"):  # Annotated, inside an alias
            hint = hint.__origin__  # type: ignore[attr-defined]
        elif typing.get_origin(hint) in (typing.Union, types.UnionType):
            inner = [arg for arg in typing.get_args(hint) if arg is not type(None)]
            if len(inner) != 1:
                return None
            hint = inner[0]
        else:
            return hint if isinstance(hint, type) else None
