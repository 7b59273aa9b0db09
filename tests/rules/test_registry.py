"""What this process can run, and how it is declared."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from django_durable_jobs import registry
from django_durable_jobs.errors import DuplicateHandler, DurableJobsError, InvalidJob
from django_durable_jobs.registry import (
    ContextJobFunction,
    Handler,
    Registry,
    handlers,
    job,
    register_handler,
)
from django_durable_jobs.registry import functions as registry_functions

CASES = Path(__file__).with_name("typing_cases.py")


@pytest.fixture(autouse=True)
def _own_handlers() -> Iterator[None]:
    with handlers.preserved():
        yield


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What was handed to the function that enqueues."""
    made: list[tuple[Any, ...]] = []

    def enqueue(handler: Handler, payload: Any = None, /, **options: Any) -> Any:
        made.append((handler.type, payload, options))
        return "the job"

    monkeypatch.setattr(registry_functions, "_enqueue", enqueue)
    return made


def send(invoice_id: int = 0) -> str:
    return f"sent {invoice_id}"


def other(invoice_id: int = 0) -> None: ...


async def asynchronous(invoice_id: int = 0) -> str:
    return f"sent {invoice_id}"


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


def with_context(context: object, invoice_id: int) -> tuple[object, int]:
    return context, invoice_id


class Sender:
    def __call__(self, invoice_id: int) -> None: ...

    def method(self, invoice_id: int) -> None: ...


class AsyncSender:
    async def __call__(self, invoice_id: int) -> None: ...


def twin(function: Any) -> FunctionType:
    """Return another function of the same name, as a reload of its module makes."""
    made = FunctionType(function.__code__, function.__globals__, function.__name__)
    made.__qualname__ = function.__qualname__
    return made


# Declaring


def test_a_declared_function_is_still_called_in_place() -> None:
    made = job("send")(send)
    assert made(7) == "sent 7"
    assert made.__name__ == "send"
    assert made.__wrapped__ is send
    assert repr(made) == f"<job 'send': {__name__}.send>"


def test_a_declared_function_is_found_by_its_type() -> None:
    made = job("send", aliases=["sent"])(send)
    assert made.type == "send"
    assert registry.get("send") is registry.get("sent") is made.handler
    assert {"send", "sent"} <= registry.types()
    assert handlers.handlers().count(made.handler) == 1
    assert registry.get("unknown") is None


def test_without_a_type_it_is_the_name_of_the_function() -> None:
    assert job(send).type == f"{__name__}.send"
    assert job()(other).type == f"{__name__}.other"

    @job
    def inner() -> None: ...

    assert inner.type == f"{__name__}.test_without_a_type_it_is_the_name_of_the_function.inner"


@pytest.mark.parametrize("nameless", [lambda: None, functools.partial(send, 7)])
def test_a_function_without_a_name_needs_a_type(nameless: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="has no name"):
        job(nameless)
    job("named")(nameless)


def test_the_options_are_on_the_handler() -> None:
    def can_run(job: object) -> bool:
        return True

    made = job(
        "send",
        can_run=can_run,
        max_attempts=3,
        backoff=5,
        retry_on=OSError,
        on_interrupt="requeue",
        timeout=timedelta(minutes=5),
        atomic=True,
        queue="mail",
        priority=-3,
    )(send)
    handler = made.handler
    assert (handler.type, handler.function, handler.types) == ("send", send, ("send",))
    policy = handler.policy
    assert (policy.max_attempts, policy.backoff, policy.retry_on) == (3, 5, (OSError,))
    assert (handler.on_interrupt, handler.timeout) == ("requeue", 300.0)
    assert (handler.can_run, handler.can_run_is_async) == (can_run, False)
    assert (handler.atomic, handler.queue, handler.priority) == (True, "mail", -3)
    assert (handler.raw, handler.takes_context, handler.is_async) == (False, False, False)


def test_the_defaults_promise_nothing() -> None:
    handler = job("send")(send).handler
    policy = handler.policy
    assert (policy.max_attempts, policy.backoff, policy.retry_on) == (1, None, (Exception,))
    assert (handler.on_interrupt, handler.timeout, handler.can_run) == (None, None, None)
    assert (handler.queue, handler.priority, handler.aliases) == (None, None, ())


@pytest.mark.parametrize(
    ("function", "is_async"),
    [
        (send, False),
        (asynchronous, True),
        (functools.partial(asynchronous, 7), True),
        (Sender(), False),
        (Sender().method, False),
        (AsyncSender(), True),
    ],
)
def test_async_functions_are_told_apart(function: Callable[..., Any], is_async: bool) -> None:
    made = job("send", can_run=function)(function)
    assert made.handler.is_async is is_async
    assert made.handler.can_run_is_async is is_async


def test_a_declared_async_function_is_awaited_in_place() -> None:
    assert asyncio.run(job("send")(asynchronous)(7)) == "sent 7"


def test_a_function_that_takes_the_context_gets_it_in_place_too() -> None:
    made = job("send", takes_context=True)(with_context)
    assert isinstance(made, ContextJobFunction)
    assert made("context", 7) == ("context", 7)


@pytest.mark.parametrize(
    ("type", "function", "options", "words"),
    [
        ("", send, {}, "type holds ''; accepted: 1 to 256 characters"),
        (" ", send, {}, "not blank"),
        ("a" * 257, send, {}, "accepted: 1 to 256"),
        ("a\x00b", send, {}, "no control characters"),
        (7, send, {}, "type holds 7; accepted: text"),
        ("a", 7, {}, "The handler is 7; accepted: a function"),
        ("a", Sender, {}, "Sender is a class; accepted: a function"),
        ("a", generator, {}, "is a generator; accepted: a function that does its work"),
        ("a", async_generator, {}, "is a generator"),
        ("a", send, {"aliases": "old"}, "aliases is the text 'old'; accepted: a list of types"),
        ("a", send, {"aliases": [""]}, "aliases holds ''"),
        ("a", send, {"can_run": True}, "can_run is True; accepted: a function of the job"),
        ("a", send, {"max_attempts": 0}, "max_attempts is 0"),
        ("a", send, {"retry_on": ["x"]}, "accepted: exception classes"),
        ("a", send, {"backoff": "x"}, "backoff is of type str"),
        ("a", send, {"timeout": 0}, "timeout is 0; accepted: more than 0 s"),
        ("a", send, {"timeout": float("nan")}, "timeout is nan"),
        ("a", send, {"timeout": True}, "timeout is True; accepted: a timedelta, seconds, or None"),
        ("a", send, {"timeout": "5"}, "timeout is '5'"),
        ("a", send, {"raw": 1}, "raw is 1; accepted: True or False"),
        ("a", send, {"takes_context": 1}, "takes_context is 1"),
        ("a", send, {"atomic": 1}, "atomic is 1"),
        ("a", asynchronous, {"atomic": True}, "is async and cannot be atomic"),
        ("a", send, {"queue": "q" * 65}, "queue holds 'q+'; accepted: 1 to 64 characters"),
        ("a", send, {"priority": 101}, "priority is 101; accepted: -100 to 100"),
        ("a", send, {"priority": "high"}, "priority is 'high'; accepted: a whole number"),
        (
            "a",
            send,
            {"timeouts": 3},
            "'timeouts' .did you mean 'timeout'.*accepted: aliases, atomic",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_where_it_is_declared(
    type: Any, function: Any, options: dict[str, Any], words: str
) -> None:
    before = registry.types()
    with pytest.raises((TypeError, ValueError), match=words):
        register_handler(type, function, **options)
    assert registry.types() == before


# Enqueueing


def test_enqueue_hands_over_the_payload(calls: list[tuple[Any, ...]]) -> None:
    made = job("send")(send)
    assert made.enqueue(invoice_id=7) == "the job"  # type: ignore[comparison-overlap]
    made.enqueue(8)
    made.using(owner_id="acme", priority=3).enqueue(9)
    assert calls == [
        ("send", {"invoice_id": 7}, {}),
        ("send", {"invoice_id": 8}, {}),
        ("send", {"invoice_id": 9}, {"owner_id": "acme", "priority": 3}),
    ]


def test_enqueue_from_async_code_hands_over_the_payload(calls: list[tuple[Any, ...]]) -> None:
    made = job("send")(asynchronous)

    async def main() -> None:
        await made.aenqueue(7)
        await made.using(queue="mail").aenqueue(invoice_id=8)

    asyncio.run(main())
    assert calls == [
        ("send", {"invoice_id": 7}, {}),
        ("send", {"invoice_id": 8}, {"queue": "mail"}),
    ]


def test_the_context_is_no_argument_of_enqueue(calls: list[tuple[Any, ...]]) -> None:
    job("send", takes_context=True)(with_context).enqueue(7)
    assert calls == [("send", {"invoice_id": 7}, {})]


def test_an_argument_may_be_called_self(calls: list[tuple[Any, ...]]) -> None:
    def strange(**names: Any) -> None: ...

    job("send")(strange).enqueue(self=1, handler=2)
    assert calls == [("send", {"self": 1, "handler": 2}, {})]


def test_a_call_that_does_not_fit_is_refused_at_once(calls: list[tuple[Any, ...]]) -> None:
    with pytest.raises(InvalidJob, match="does not take 'invoice'"):
        job("send")(send).enqueue(invoice=7)  # type: ignore[call-arg]
    assert calls == []


def test_an_unknown_option_is_refused_at_once() -> None:
    made: Any = job("send")(send)
    with pytest.raises(TypeError, match=r"Unknown option 'owner'.*; accepted: run_at, owner_id"):
        made.using(owner="acme")
    with pytest.raises(TypeError, match=r"option 'prioritty' \(did you mean 'priority'\?\)"):
        made.using(prioritty=1)
    with pytest.raises(TypeError, match=r"'ownerid' \(did you mean 'owner_id'\?\)"):
        made.using(owner_id="acme").using(ownerid="acme")
    with pytest.raises(TypeError, match=r"'max_attemps' \(did you mean 'max_attempts'\?\)"):
        job("send", max_attemps=3)(send)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"'retry_one' \(did you mean 'retry_on'\?\)"):
        register_handler("send", send, retry_one=OSError)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"'time_limit' \('timeout' is an option of @job\); acc"):
        made.using(time_limit=3)
    with pytest.raises(TypeError, match=r"'owner' \('owner_id' is given when a job is enqueued\)"):
        job("send", owner="acme")(send)  # type: ignore[call-overload]
    with pytest.raises(TypeError) as caught:
        made.using(**{"x" * 10**6: 1})
    assert len(str(caught.value)) < 400


def test_options_add_up_and_the_last_word_counts(calls: list[tuple[Any, ...]]) -> None:
    first = job("send")(send).using(owner_id="acme", priority=1)
    first.using(priority=2, queue="mail").enqueue(7)
    first.enqueue(8)
    assert calls == [
        ("send", {"invoice_id": 7}, {"owner_id": "acme", "priority": 2, "queue": "mail"}),
        ("send", {"invoice_id": 8}, {"owner_id": "acme", "priority": 1}),
    ]


def test_enqueueing_too_early_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_functions, "_enqueue", None)
    with pytest.raises(DurableJobsError, match=r"send cannot be enqueued yet: ") as caught:
        job("send")(send).enqueue()
    assert caught.value.code == "not-ready"


# Registering


def test_a_type_has_one_handler() -> None:
    register_handler("send", send, aliases=["sent"])
    for type, options in [("send", {}), ("sent", {}), ("new", {"aliases": ["sent"]})]:
        with pytest.raises(DuplicateHandler, match=r"has the handler .*\.send; .*\.other needs"):
            register_handler(type, other, **options)  # type: ignore[arg-type]
    assert registry.get("new") is None


def test_functions_without_names_of_their_own_are_told_apart() -> None:
    register_handler("send", lambda: 1)
    with pytest.raises(DuplicateHandler):
        register_handler("send", lambda: 2)


def test_a_reloaded_function_replaces_its_older_self() -> None:
    register_handler("send", send, aliases=["sent"])
    again = twin(send)
    register_handler("send", again, aliases=["posted"])
    handler = registry.get("send")
    assert handler is not None
    assert handler.function is again
    assert registry.get("posted") is handler
    assert registry.get("sent") is None


def test_one_function_may_serve_two_types() -> None:
    first = job("first")(send)
    second = job("second")(first)
    register_handler("third", second)
    for type in ("first", "second", "third"):
        handler = registry.get(type)
        assert handler is not None
        assert handler.function is send


def test_unregister_is_idempotent_and_takes_only_its_own() -> None:
    first = register_handler("send", send, aliases=["sent"])
    second = register_handler("send", send)
    first()
    assert registry.get("send") is not None
    second()
    second()
    assert registry.get("send") is None
    register_handler("send", other)
    first()
    second()
    assert registry.get("send") is not None


def test_a_bound_method_registered_twice_is_one() -> None:
    sender = Sender()
    register_handler("send", sender.method)
    register_handler("send", sender.method)


def test_changes_are_counted_and_told() -> None:
    told: list[int] = []
    stop = registry.on_change(lambda: told.append(registry.version()))
    before = registry.version()
    unregister = register_handler("send", send)
    unregister()
    unregister()
    assert told == [before + 1, before + 2]
    stop()
    stop()
    register_handler("send", send)
    assert len(told) == 2


def test_a_listener_may_use_the_registry_and_may_fail(caplog: pytest.LogCaptureFixture) -> None:
    told: list[frozenset[str]] = []

    def fail() -> None:
        raise RuntimeError("broken")

    stops = [registry.on_change(fail), registry.on_change(lambda: told.append(registry.types()))]
    register_handler("send", send)
    assert "send" in told[0]
    assert "registry.listener_failed" in caplog.text
    for stop in stops:
        stop()


def test_racing_registrations_leave_one_handler() -> None:
    own = Registry()
    lost: list[str] = []
    start = threading.Barrier(8)

    def make() -> Handler:
        with handlers.preserved():
            return job("race")(lambda: None).handler

    def register(handler: Handler) -> None:
        start.wait()
        try:
            own.add(handler)
        except DuplicateHandler as error:
            lost.append(error.code)

    threads = [threading.Thread(target=register, args=(make(),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lost == ["duplicate-handler"] * 7
    assert own.version == 1


# Typing


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_mypy_finds_wrong_calls_of_declared_jobs() -> None:
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--hide-error-context", str(CASES)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    ours = {int(line.split(":")[1]) for line in errors if CASES.name in line}
    lines = CASES.read_text().splitlines()
    expected = {number for number, line in enumerate(lines, 1) if line.endswith("# E")}
    assert ours == expected, done.stdout + done.stderr
