"""Declared schedules: how they are declared, and those that this process has."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, Unpack, overload

from ..errors import AlreadyStarted, DuplicateHandler, DuplicateSchedule, InvalidJob
from ..parameters import refuse_unknown, shown
from .declaration import (
    Declaration,
    JobScheduleOptions,
    ScheduleOptions,
    job_values,
    name_of_schedule,
    refusal,
    refuse_job_options,
    timing,
)
from .functions import ContextJobFunction, JobFunction
from .handler import Handler, make_handler, name_of
from .store import handlers, is_same

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")
J = TypeVar("J", bound=JobFunction[..., Any])

_OPTIONS = ("job", "run", "takes_context", *JobScheduleOptions.__annotations__)


class ScheduleStore:
    """Know the declared schedules by name; any thread may declare and look up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._declarations: dict[str, Declaration] = {}
        self._unfinished: dict[object, str] = {}
        self._takers = 0
        self._version = 0

    @property
    def version(self) -> int:
        """Return a number that grows with each change."""
        return self._version

    def get(self, name: str) -> Declaration | None:
        """Return the schedule of this name."""
        with self._lock:
            return self._declarations.get(name)

    def all(self) -> list[Declaration]:
        """Return the schedules by name."""
        with self._lock:
            return [self._declarations[name] for name in sorted(self._declarations)]

    def unfinished(self) -> list[str]:
        """Return the names given to `schedule` as a decorator that no function was put under."""
        with self._lock:
            return sorted(self._unfinished.values())

    def add(self, declaration: Declaration) -> None:
        """Declare the schedule, or raise DuplicateSchedule or AlreadyStarted and change nothing.

        One that is equal, or whose function is the same by name after its module was reloaded, is
        replaced.
        """
        name = declaration.name
        with self._lock:
            if self._takers:
                raise AlreadyStarted(
                    f"The schedule {name!r} was declared after a worker of this process had "
                    "started; declare it before, as in the jobs.py of an installed app."
                )
            other = self._declarations.get(name)
            if other is not None and not _is_renewed(other, declaration):
                raise DuplicateSchedule(
                    f"The schedule {name!r} is declared already, for {_work_of(other)}; "
                    f"another, here for {_work_of(declaration)}, needs a name of its own."
                )
            self._declarations[name] = declaration
            self._version += 1

    def remove(self, declaration: Declaration) -> bool:
        """Forget this very schedule; return False where it was gone or replaced already."""
        with self._lock:
            if self._declarations.get(declaration.name) is not declaration:
                return False
            del self._declarations[declaration.name]
            self._version += 1
            return True

    def begin(self, name: str) -> object:
        """Note a decorator that has yet to be put on a function; return what `finish` takes."""
        mark = object()
        with self._lock:
            self._unfinished[mark] = name
        return mark

    def finish(self, mark: object) -> None:
        """Note that this decorator was put on a function."""
        with self._lock:
            self._unfinished.pop(mark, None)

    def take(self) -> list[Declaration]:
        """Return the schedules to a worker; declaring raises AlreadyStarted until `release`."""
        with self._lock:
            self._takers += 1
            return [self._declarations[name] for name in sorted(self._declarations)]

    def release(self) -> None:
        """Let schedules be declared again, once each worker that took them has called this."""
        with self._lock:
            self._takers = max(0, self._takers - 1)

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """Restore the schedules of now at the end: for tests."""
        with self._lock:
            before = (self._declarations, self._unfinished, self._takers)
            self._declarations, self._unfinished = dict(before[0]), dict(before[1])
        try:
            yield
        finally:
            with self._lock:
                self._declarations, self._unfinished, self._takers = before
                self._version += 1


schedules = ScheduleStore()


class _Schedules(Protocol):
    @overload
    def __call__(self, function: J, /) -> J: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> JobFunction[P, R]: ...


class _SchedulesWithContext(Protocol):
    def __call__(
        self, function: Callable[Concatenate[C, P], R], /
    ) -> ContextJobFunction[C, P, R]: ...


@overload
def schedule(
    name: str,
    *,
    job: str | Handler | JobFunction[..., Any],
    **options: Unpack[JobScheduleOptions],
) -> Declaration: ...
@overload
def schedule(
    name: str,
    *,
    run: Callable[[], Any],
    takes_context: Literal[False] = False,
    **options: Unpack[ScheduleOptions],
) -> Declaration: ...
@overload
def schedule(
    name: str,
    *,
    run: Callable[[Any], Any],
    takes_context: Literal[True],
    **options: Unpack[ScheduleOptions],
) -> Declaration: ...
@overload
def schedule(
    name: str, *, takes_context: Literal[True], **options: Unpack[ScheduleOptions]
) -> _SchedulesWithContext: ...
@overload
def schedule(
    name: str, *, takes_context: Literal[False] = False, **options: Unpack[JobScheduleOptions]
) -> _Schedules: ...
def schedule(
    name: Any, *, job: Any = None, run: Any = None, takes_context: Any = False, **options: Any
) -> Any:
    """Declare a schedule: of a declared job, of a function, or as a decorator of either.

    With ``job``, a type or a function declared by ``@job``, each tick enqueues that job; with
    ``run``, a function without arguments (or with the context), it enqueues a job that calls it,
    of type ``schedule:<name>``. Both return the `Declaration`. With neither it is a decorator,
    which makes a function a job and leaves one that is a job already as it is.

    Options: exactly one of ``cron`` and ``every`` (seconds or a timedelta), and those of
    `ScheduleOptions`; with a declared job those of `JobOptions` too.

    Raises InvalidSchedule, InvalidRecurrence, DuplicateSchedule, AlreadyStarted (a worker of this
    process has taken the schedules), and TypeError for an unknown option.
    """
    refuse_unknown(options, _OPTIONS)
    name = name_of_schedule(name)
    when = timing(name, options)
    if job is not None and run is not None:
        raise refusal(name, "has both job and run; accepted: one of them.")
    if not isinstance(takes_context, bool):
        raise refusal(name, f"takes_context is {shown(takes_context)}; accepted: True or False.")
    if job is not None:
        return _declare_job(name, job, takes_context, when, options)
    if run is not None:
        return _declare_own(name, _own_handler(name, run, takes_context, options), when)
    mark = schedules.begin(name)

    def declare(function: Any, /) -> Any:
        made = function
        if isinstance(function, JobFunction):
            _declare_job(name, function, takes_context, when, options)
        else:
            handler = _own_handler(name, function, takes_context, options)
            _declare_own(name, handler, when)
            made = (ContextJobFunction if takes_context else JobFunction)(handler)
        schedules.finish(mark)
        return made

    return declare


def register(name: str, interval: float | timedelta, function: Callable[[], Any]) -> Declaration:
    """Declare that a function is to run every so many seconds (or every timedelta).

    The seed's shorthand for ``schedule(name, every=interval, run=function)``; raises the same.
    """
    options = {"every": interval}
    name = name_of_schedule(name)
    when = timing(name, options)
    return _declare_own(name, _own_handler(name, function, False, options), when)


def _declare_job(
    name: str, job: Any, takes_context: bool, when: Mapping[str, Any], options: Mapping[str, Any]
) -> Declaration:
    if takes_context:
        raise refusal(name, "takes_context goes with run=; a declared job says it in @job.")
    if isinstance(job, JobFunction):
        job = job.handler
    if not isinstance(job, (str, Handler)):
        wants = "a type, or a function declared by @job; run= takes plain functions"
        raise refusal(name, f"job is {shown(job)}; accepted: {wants}.")
    function = job.function if isinstance(job, Handler) else None
    values = job_values(name, job.type if isinstance(job, Handler) else job, options)
    declaration = Declaration(name=name, via_job=True, function=function, **when, **values)
    schedules.add(declaration)
    return declaration


def _own_handler(
    name: str, function: Any, takes_context: bool, options: Mapping[str, Any]
) -> Handler:
    """Return the handler of a schedule with a function of its own."""
    refuse_job_options(name, options)
    if isinstance(function, JobFunction):
        raise refusal(name, f"run is {function!r}; accepted: a plain function. Pass it as job=.")
    try:
        handler = make_handler(f"schedule:{name}", function, takes_context=takes_context)
        handler.parameters.check({})
    except InvalidJob as error:
        wants = "a function without arguments, or with the context (takes_context=True)"
        raise refusal(name, f"{error} Accepted: {wants}.") from None
    except (TypeError, ValueError) as error:
        raise refusal(name, str(error)) from error
    return handler


def _declare_own(name: str, handler: Handler, when: Mapping[str, Any]) -> Declaration:
    declaration = Declaration(
        name=name, type=handler.type, via_job=False, function=handler.function, **when
    )
    schedules.add(declaration)
    try:
        handlers.add(handler)
    except DuplicateHandler:
        schedules.remove(declaration)
        raise
    return declaration


def _is_renewed(old: Declaration, new: Declaration) -> bool:
    """Tell whether the new one may take the place of the old one, and no schedule is lost by it."""
    if old.function is None or new.function is None or old.function is new.function:
        return old == new and old.function is new.function
    return is_same(old.function, new.function)


def _work_of(declaration: Declaration) -> str:
    if declaration.function is not None:
        return name_of(declaration.function)
    return f"jobs of type {declaration.type!r}"
