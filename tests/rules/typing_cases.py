"""What mypy must say about declared jobs: each line marked E is an error, no other is."""

from __future__ import annotations

from typing import Any, assert_type

from django_durable_jobs.registry import (
    Declaration,
    EnqueuedJob,
    JobFunction,
    job,
    register,
    schedule,
)


class Context: ...


@job
def bare(invoice_id: int) -> str:
    return ""


@job("typing.send", max_attempts=3, timeout=300)
def send(invoice_id: int, *, copies: int = 1) -> str:
    return ""


@job("typing.with-context", takes_context=True)
def with_context(context: Context, invoice_id: int) -> str:
    return ""


@job()
async def asynchronous(invoice_id: int) -> str:
    return ""


@schedule("typing.nightly", cron="0 2 * * *", overlap="queue", jitter=5)
def nightly(copies: int = 1) -> str:
    return ""


@schedule("typing.send", every=60, payload={"invoice_id": 7}, owner_id="acme")
@job("typing.scheduled")
def scheduled(invoice_id: int) -> str:
    return ""


@schedule("typing.context", every=60)
@job("typing.scheduled-context", takes_context=True)
def scheduled_with_context(context: Context, invoice_id: int = 0) -> str:
    return ""


@schedule("typing.own-context", every=60, takes_context=True)
def own_context(context: Context, copies: int = 1) -> str:
    return ""


async def cases() -> None:
    assert_type(bare(7), str)
    assert_type(send(7, copies=2), str)
    assert_type(with_context(Context(), 7), str)
    assert_type(await asynchronous(7), str)
    assert_type(send.enqueue(invoice_id=7, copies=2), EnqueuedJob)
    assert_type(await send.aenqueue(7), EnqueuedJob)
    assert_type(send.using(owner_id="acme", priority=3).enqueue(7), EnqueuedJob)
    assert_type(await bare.using(queue="mail").aenqueue(invoice_id=7), EnqueuedJob)
    assert_type(with_context.enqueue(7), EnqueuedJob)
    assert_type(with_context.using(owner_id="acme").enqueue(invoice_id=7), EnqueuedJob)
    any_job: JobFunction[..., Any] = send
    any_job.enqueue("whatever")

    assert_type(nightly(copies=2), str)
    assert_type(nightly.enqueue(copies=2), EnqueuedJob)
    assert_type(scheduled(7), str)
    assert_type(scheduled.enqueue(invoice_id=7), EnqueuedJob)
    assert_type(scheduled_with_context(Context(), 7), str)
    assert_type(own_context(Context(), 2), str)
    assert_type(own_context.enqueue(2), EnqueuedJob)
    assert_type(schedule("typing.a", every=60, job=send, payload={}), Declaration)
    assert_type(schedule("typing.b", every=60, job="typing.send", queue="mail"), Declaration)
    assert_type(schedule("typing.c", every=60, run=nightly.__wrapped__), Declaration)
    schedule("typing.d", every=60, run=own_context.__wrapped__, takes_context=True)
    assert_type(register("typing.e", 60, lambda: None), Declaration)

    nightly.enqueue(copies="x")  # E
    scheduled.enqueue(invoice_id="x")  # E
    scheduled()  # E
    scheduled_with_context(7)  # E
    own_context(2)  # E
    schedule("typing.f", every=60, run=Context, payload={})  # E
    schedule("typing.g", every=60, job=send, run=Context)  # E
    schedule("typing.h", every="60", job=send)  # E
    schedule("typing.i", evry=60, job=send)  # E
    schedule("typing.j", every=60, job=send, overlap="wait")  # E
    schedule("typing.k", every=60, job=3)  # E
    register("typing.l", "60", lambda: None)  # E
    register("typing.m", 60, lambda needed: None)  # E

    bare.enqueue(invoice_id="x")  # E
    send.enqueue(invoice_id="x")  # E
    send.enqueue()  # E
    send.enqueue(7, 2)  # E
    send.enqueue(7, copy=2)  # E
    send("x")  # E
    await send.aenqueue("x")  # E
    send.using(owner_id="acme").enqueue("x")  # E
    send.using(owner_id=7)  # E
    send.using(owner="acme")  # E
    with_context.enqueue(Context(), 7)  # E
    with_context.enqueue("x")  # E
    with_context(7)  # E
    asynchronous.enqueue("x")  # E


@job("typing.bad-option", timeouts=3)  # E
def bad_option() -> None: ...


@job("typing.bad-value", on_interrupt="retry")  # E
def bad_value() -> None: ...
