"""Handlers of the test app; imported by django_durable_jobs when apps are ready.

They serve the tests that run workers in processes of their own, and write to the ledger what
they do.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django_durable_jobs import job
from django_durable_jobs.worker.context import JobContext
from django_durable_jobs.worker.keeper import Keeper
from tests import ledger


@contextmanager
def recorded(context: JobContext, note: Any = None) -> Iterator[None]:
    """Write the start of the handler and, however it comes about, its end."""
    ledger.write("start", context.job.pk, context.claim_id, note)
    try:
        yield
    finally:
        ledger.write("end", context.job.pk, context.claim_id)


@job("ledger.work", takes_context=True)
def work(context: JobContext, seconds: float = 0.0, how: str = "return", note: Any = None) -> Any:
    """Take ``seconds`` and end in the way that ``how`` names."""
    with recorded(context, note):
        time.sleep(seconds)
        if how == "record":
            _record(context)
        elif how == "raise":
            raise ValueError("as asked")
        elif how == "exit":
            raise SystemExit(3)
        elif how == "too large":
            return "x" * 100_000
        elif how.startswith("die"):
            os._exit(int(how.removeprefix("die") or 9))
    return None


@job("ledger.await", takes_context=True)
async def work_async(context: JobContext, seconds: float = 0.0, note: Any = None) -> None:
    """Take ``seconds`` on the event loop."""
    with recorded(context, note):
        await asyncio.sleep(seconds)


@job("ledger.hang", takes_context=True, max_attempts=2)
def hang(context: JobContext, ignores_stop: bool = True) -> None:
    """Never end, or only when it is asked to stop."""
    with recorded(context):
        while ignores_stop or not context.should_stop:
            time.sleep(0.05)


@job("ledger.stuck", takes_context=True, timeout=0.3)
def stuck(context: JobContext, inside: str) -> None:
    """Never end, whatever is raised: ``inside`` C code or a loop that swallows it."""
    with recorded(context):
        if inside == "C":
            time.sleep(3_600)
        while True:
            try:
                time.sleep(0.05)
            except BaseException:
                continue


@job("ledger.thread", takes_context=True)
def leave_thread(context: JobContext) -> None:
    """Return, and leave a thread behind that is no daemon and does not end."""
    with recorded(context):
        threading.Thread(target=lambda: time.sleep(3_600), daemon=False).start()


@job("ledger.block", takes_context=True)
def block(context: JobContext, whom: str) -> None:
    """Have a thread of the worker's own, the "scribe" or the "keeper", never end."""
    with recorded(context):
        if whom == "keeper":
            Keeper.stop = lambda self: time.sleep(3_600)  # type: ignore[method-assign]
            return
        # Not in a transaction, which on SQLite would hold the one write lock.
        context._scribe._calls.put(lambda: time.sleep(3_600))


@job("ledger.late", takes_context=True)
def late(context: JobContext, gate: str) -> str:
    """Wait until the file ``gate`` is there, then write with a claim that may be lost by now."""
    with recorded(context):
        while not Path(gate).exists():
            time.sleep(0.02)
        _record(context)
        ledger.write("should stop", context.job.pk, context.claim_id, context.should_stop)
    return "late"


def _slow_to_say(job: Any) -> bool:
    time.sleep(float(job.payload["slow"]))
    return True


@job("ledger.asked", takes_context=True, can_run=_slow_to_say)
def asked(context: JobContext, slow: float) -> None:
    """Run only after a can_run that takes its time."""
    with recorded(context):
        pass


def _record(context: JobContext) -> None:
    for name, record in (
        ("metadata", context.record_metadata),
        ("receipt", context.record_receipt),
    ):
        try:
            record({"claim": str(context.claim_id)})
        except Exception as error:
            ledger.write("refused", context.job.pk, context.claim_id, [name, type(error).__name__])
        else:
            ledger.write("recorded", context.job.pk, context.claim_id, name)
