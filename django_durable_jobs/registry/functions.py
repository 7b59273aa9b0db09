"""Declared jobs: functions that can be called in place and enqueued."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import (
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)
from uuid import UUID

from asgiref.sync import markcoroutinefunction, sync_to_async

from ..errors import DurableJobsError
from ..parameters import refuse_unknown
from .handler import Handler, HandlerOptions, make_handler, name_of
from .store import handlers

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")


class EnqueueOptions(TypedDict, total=False):
    """What `using` takes: the options of `enqueue`."""

    run_at: datetime | None
    owner_id: str
    project_id: str
    target: Mapping[str, Any] | None
    idempotency_key: str | None
    key_scope: Literal["ever", "live"]
    priority: int
    queue: str | None
    meta: Mapping[str, Any] | None
    id: UUID | str | None
    namespace: str | None
    using: str | None


class EnqueuedJob(Protocol):
    """The `Job` that enqueueing returns, as far as this row of the house knows it."""

    created: bool

    @property
    def id(self) -> UUID: ...
    @property
    def namespace(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def owner_id(self) -> str: ...
    @property
    def run_at(self) -> datetime: ...
    @property
    def payload(self) -> Any: ...
    @property
    def state(self) -> str: ...
    def refresh_from_db(self) -> None: ...


class EnqueueHook(Protocol):
    """Enqueue a job for a handler: `enqueueing.enqueue`."""

    def __call__(
        self, type: Any, payload: Any = None, /, **options: Unpack[EnqueueOptions]
    ) -> EnqueuedJob: ...


_enqueue: EnqueueHook | None = None


def set_enqueue(function: EnqueueHook | None) -> None:
    """Have declared jobs enqueue by this function, which gets the handler for a type."""
    global _enqueue
    _enqueue = function


def enqueue_now(handler: Handler, payload: Any, options: EnqueueOptions) -> EnqueuedJob:
    """Enqueue a job for the handler: as `enqueue` does, which is a room further down."""
    if _enqueue is None:
        raise DurableJobsError(
            f"{handler.type} cannot be enqueued yet: Django's apps are not ready, or "
            "'django_durable_jobs' is not in INSTALLED_APPS.",
            code="not-ready",
        )
    return _enqueue(handler, payload, **options)


class BoundJob(Generic[P]):
    """A declared job with options for enqueueing, made by `using`."""

    def __init__(self, handler: Handler, options: EnqueueOptions) -> None:
        refuse_unknown(options, EnqueueOptions.__annotations__)
        self.handler = handler
        self.options = options

    def using(self, /, **options: Unpack[EnqueueOptions]) -> BoundJob[P]:
        """Return the job with these options too; what was said before stays unless said anew."""
        return BoundJob[P](self.handler, {**self.options, **options})

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> EnqueuedJob:
        """Enqueue a call with these arguments; raise InvalidJob at once where they do not fit."""
        payload = self.handler.parameters.to_payload(args, kwargs)
        return enqueue_now(self.handler, payload, self.options)

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> EnqueuedJob:
        """Enqueue from async code."""
        payload = self.handler.parameters.to_payload(args, kwargs)
        return await sync_to_async(enqueue_now)(self.handler, payload, self.options)


class JobFunction(Generic[P, R]):
    """A declared job: call it to run it in place, now; enqueue it to have a worker run it."""

    __name__: str
    __wrapped__: Callable[..., R]

    def __init__(self, handler: Handler) -> None:
        functools.update_wrapper(self, handler.function)
        self.handler = handler
        if handler.is_async:
            markcoroutinefunction(self)

    @property
    def type(self) -> str:
        """Return the type that its jobs have."""
        return self.handler.type

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self.handler.function(*args, **kwargs)
        return result

    def __repr__(self) -> str:
        return f"<job {self.type!r}: {name_of(self.handler.function)}>"

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> EnqueuedJob:
        """Enqueue a call with these arguments; raise InvalidJob at once where they do not fit.

        Arguments left out take the defaults of the code that runs the job. The context of a
        handler that takes one is no argument here.
        """
        return BoundJob[P](self.handler, {}).enqueue(*args, **kwargs)

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> EnqueuedJob:
        """Enqueue from async code."""
        return await BoundJob[P](self.handler, {}).aenqueue(*args, **kwargs)

    def using(self, /, **options: Unpack[EnqueueOptions]) -> BoundJob[P]:
        """Return the job with these options, ready to be enqueued."""
        return BoundJob[P](self.handler, options)


class ContextJobFunction(JobFunction[P, R], Generic[C, P, R]):
    """A declared job whose function takes the context first, when called in place as well."""

    # Only its type differs: enqueueing takes what follows the context.
    def __call__(  # type: ignore[override]
        self, context: C, /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        result: R = self.handler.function(context, *args, **kwargs)
        return result


class _Declares(Protocol):
    def __call__(self, function: Callable[P, R], /) -> JobFunction[P, R]: ...


class _DeclaresWithContext(Protocol):
    def __call__(
        self, function: Callable[Concatenate[C, P], R], /
    ) -> ContextJobFunction[C, P, R]: ...


@overload
def job(function: Callable[P, R], /) -> JobFunction[P, R]: ...
@overload
def job(
    type: str | None = None, /, *, takes_context: Literal[True], **options: Unpack[HandlerOptions]
) -> _DeclaresWithContext: ...
@overload
def job(
    type: str | None = None,
    /,
    *,
    takes_context: Literal[False] = False,
    **options: Unpack[HandlerOptions],
) -> _Declares: ...
def job(type: Any = None, /, **options: Any) -> Any:
    """Declare a function as a job, bare or with a type and options.

    Without a type it is `module.function`, which ties stored jobs to these names: renaming needs
    an alias. Raises DuplicateHandler where the type is taken, TypeError or ValueError where
    something does not fit.
    """
    if type is not None and not isinstance(type, str):
        return _declare(type, None, options)

    def declare(function: Callable[..., Any], /) -> JobFunction[..., Any]:
        return _declare(function, type, options)

    return declare


def register_handler(
    type: str,
    function: Callable[..., Any],
    *,
    takes_context: bool = False,
    **options: Unpack[HandlerOptions],
) -> Callable[[], None]:
    """Register a function for a type, as `job` does; return a function that unregisters it.

    That one is idempotent and removes this registration only, not one that has replaced it.
    """
    bare = _bare(function)
    handler = make_handler(type, bare, takes_context=takes_context, **options)
    handlers.add(handler)

    def unregister() -> None:
        handlers.remove(handler)

    return unregister


def _declare(
    function: Callable[..., Any], type: str | None, options: dict[str, Any]
) -> JobFunction[..., Any]:
    function = _bare(function)
    handler = make_handler(_type_of(function) if type is None else type, function, **options)
    handlers.add(handler)
    made = ContextJobFunction if handler.takes_context else JobFunction
    return made(handler)


def _bare(function: Any) -> Any:
    return function.handler.function if isinstance(function, JobFunction) else function


def _type_of(function: object) -> str:
    name = name_of(function)
    if "<lambda>" in name or not getattr(function, "__qualname__", ""):
        raise TypeError(f'{function!r} has no name to make a type of: give one, @job("a.type").')
    return name.replace(".<locals>", "")
