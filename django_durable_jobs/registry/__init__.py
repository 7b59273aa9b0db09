"""What this process can run: handlers by type, and how they are declared.

    @job("invoice.send", timeout=300)
    def send_invoice(invoice_id: int): ...

    send_invoice.enqueue(invoice_id=7)

Enqueueing is done by a room further down, which hands its function to `set_enqueue`.
"""

from __future__ import annotations

from collections.abc import Callable

from .functions import (
    BoundJob,
    ContextJobFunction,
    EnqueuedJob,
    EnqueueOptions,
    JobFunction,
    job,
    register_handler,
    set_enqueue,
)
from .handler import Handler, HandlerOptions
from .store import Registry, handlers

__all__ = [
    "BoundJob",
    "ContextJobFunction",
    "EnqueueOptions",
    "EnqueuedJob",
    "Handler",
    "HandlerOptions",
    "JobFunction",
    "Registry",
    "get",
    "handlers",
    "job",
    "on_change",
    "register_handler",
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
