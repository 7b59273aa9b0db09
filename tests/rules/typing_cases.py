"""What mypy must say about declared jobs: each line marked E is an error, no other is."""

from __future__ import annotations

from typing import Any, assert_type

from django_durable_jobs.registry import EnqueuedJob, JobFunction, job


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
