"""A handler: a function, the types it serves, and how it is to be run."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypedDict

from asgiref.sync import iscoroutinefunction

from ..parameters import Parameters, refuse_unknown
from ..retry import Backoff, OnInterrupt, RetryPolicy

CanRun = Callable[[Any], bool | Awaitable[bool]]

_CONTROL_OR_SURROGATE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_LONGEST = 366 * 86_400
_OPTIONS = ("can_run", "takes_context", "raw", "atomic", "queue", "priority")
_POLICY = ("max_attempts", "backoff", "retry_on", "on_interrupt")


class HandlerOptions(TypedDict, total=False):
    """The options of a handler, all but `takes_context`."""

    aliases: Sequence[str]
    can_run: CanRun | None
    max_attempts: int
    backoff: Backoff
    retry_on: type[BaseException] | Sequence[type[BaseException]]
    on_interrupt: OnInterrupt | None
    timeout: float | timedelta | None
    raw: bool
    atomic: bool
    queue: str | None
    priority: int | None


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Handler:
    """Hold a function and how it is to be run: compared by identity, a new one at each reload.

    `timeout` is in seconds. `queue` and `priority` are the defaults of its jobs, None for
    enqueue's own. `parameters` binds payloads.
    """

    type: str
    function: Callable[..., Any]
    parameters: Parameters
    is_async: bool
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    aliases: tuple[str, ...] = ()
    can_run: CanRun | None = None
    timeout: float | None = None
    takes_context: bool = False
    raw: bool = False
    atomic: bool = False
    queue: str | None = None
    priority: int | None = None

    @property
    def types(self) -> tuple[str, ...]:
        """Return all types it serves: its own and those it had before."""
        return (self.type, *self.aliases)

    @property
    def max_attempts(self) -> int:
        return self.policy.max_attempts

    @property
    def on_interrupt(self) -> OnInterrupt | None:
        return self.policy.on_interrupt

    @property
    def can_run_is_async(self) -> bool:
        return self.can_run is not None and is_async(self.can_run)


def make_handler(type: str, function: Callable[..., Any], /, **options: Any) -> Handler:
    """Return the handler that these options (`HandlerOptions`, `takes_context`) declare.

    Raises TypeError or ValueError that says what is wrong and what is accepted.
    """
    refuse_unknown(options, sorted({*_OPTIONS, *_POLICY, "aliases", "timeout"}))
    _check_function(function)
    aliases = options.get("aliases", ())
    if isinstance(aliases, str):
        raise TypeError(f"aliases is the text {aliases!r}; accepted: a list of types.")
    handler = Handler(
        type=identifier(type, "type"),
        function=function,
        parameters=Parameters(
            function,
            raw=_flag(options, "raw"),
            takes_context=_flag(options, "takes_context"),
        ),
        is_async=is_async(function),
        policy=RetryPolicy(**{name: options[name] for name in _POLICY if name in options}),
        aliases=tuple(identifier(alias, "aliases") for alias in aliases),
        timeout=_timeout(options.get("timeout")),
        **{name: options[name] for name in _OPTIONS if name in options},
    )
    _check_options(handler)
    return handler


def name_of(function: object) -> str:
    """Return `module.qualname` of the function, its repr where it has none."""
    qualname = getattr(function, "__qualname__", None)
    return f"{getattr(function, '__module__', '')}.{qualname}" if qualname else repr(function)


def is_async(function: Any) -> bool:
    """Tell whether calling this function, or object, returns something to await."""
    bare = function.func if isinstance(function, functools.partial) else function
    return iscoroutinefunction(bare) or iscoroutinefunction(type(bare).__call__)


def _check_function(function: Any) -> None:
    if not callable(function):
        raise TypeError(f"The handler is {function!r}; accepted: a function.")
    if isinstance(function, type):
        raise TypeError(f"The handler {name_of(function)} is a class; accepted: a function.")
    for each in (function, type(function).__call__):
        if inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each):
            message = f"The handler {name_of(function)} is a generator; accepted: a function"
            raise TypeError(f"{message} that does its work when called, or async def.")


def _check_options(handler: Handler) -> None:
    if handler.can_run is not None and not callable(handler.can_run):
        raise TypeError(f"can_run is {handler.can_run!r}; accepted: a function of the job.")
    if not isinstance(handler.atomic, bool):
        raise TypeError(f"atomic is {handler.atomic!r}; accepted: True or False.")
    if handler.atomic and handler.is_async:
        raise ValueError(
            f"The handler {name_of(handler.function)} is async and cannot be atomic: "
            "Django has no transactions in async code."
        )
    if handler.queue is not None:
        identifier(handler.queue, "queue", at_most=64)
    priority: object = handler.priority
    if priority is not None:
        if not isinstance(priority, int) or isinstance(priority, bool):
            raise TypeError(f"priority is {priority!r}; accepted: a whole number, -100 to 100.")
        if not -100 <= priority <= 100:
            raise ValueError(f"priority is {priority}; accepted: -100 to 100.")


def _flag(options: dict[str, Any], name: str) -> bool:
    value = options.get(name, False)
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; accepted: True or False.")
    return value


def identifier(value: object, name: str, *, at_most: int = 256) -> str:
    """Return the text as given; raise TypeError or ValueError where it cannot be a name."""
    if not isinstance(value, str):
        raise TypeError(f"{name} holds {value!r}; accepted: text.")
    if not value.strip() or len(value) > at_most or _CONTROL_OR_SURROGATE.search(value):
        wants = f"1 to {at_most} characters, not blank, no control characters"
        raise ValueError(f"{name} holds {value[:300]!r}; accepted: {wants}.")
    return value


def _timeout(value: object) -> float | None:
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool):
        raise TypeError(f"timeout is {value!r}; accepted: a timedelta, seconds, or None.")
    if not 0 < seconds <= _LONGEST:
        raise ValueError(f"timeout is {value!r}; accepted: more than 0 s, at most a year.")
    return float(seconds)
