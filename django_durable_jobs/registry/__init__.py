"""What this process can run, and when: handlers by type, schedules by name.

    @job("invoice.send", timeout=300)
    def send_invoice(invoice_id: int): ...

    send_invoice.enqueue(invoice_id=7)

    @schedule("nightly-cleanup", cron="0 2 * * *")
    def cleanup(): ...

Enqueueing is done by a room further down, which hands its function to `set_enqueue`.
"""

from __future__ import annotations

from collections.abc import Callable

from .declaration import Declaration, JobOptions, JobScheduleOptions, ScheduleOptions
from .functions import (
    BoundJob,
    ContextJobFunction,
    EnqueuedJob,
    EnqueueOptions,
    JobFunction,
    enqueue_now,
    job,
    register_handler,
    set_enqueue,
)
from .handler import Handler, HandlerOptions
from .schedules import ScheduleStore, register, schedule, schedules
from .store import Registry, handlers

__all__ = [
    "BoundJob",
    "ContextJobFunction",
    "Declaration",
    "EnqueueOptions",
    "EnqueuedJob",
    "Handler",
    "HandlerOptions",
    "JobFunction",
    "JobOptions",
    "JobScheduleOptions",
    "Registry",
    "ScheduleOptions",
    "ScheduleStore",
    "enqueue_now",
    "get",
    "handlers",
    "job",
    "on_change",
    "register",
    "register_handler",
    "schedule",
    "schedules",
    "set_enqueue",
    "types",
    "version",
]


def get(type: str) -> Handler | None:
    """Return the handler of this type or alias."""
    return handlers.get(type)


def types() -> frozenset[str]:
    """Return all types and aliases that are registered."""
    return handlers.types()


def version() -> int:
    """Return a number that grows with each change."""
    return handlers.version


def on_change(callback: Callable[[], object]) -> Callable[[], None]:
    """Call back after each change; return a function that ends this, idempotent."""
    return handlers.on_change(callback)
