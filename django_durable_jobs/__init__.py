"""Durable jobs, schedules and loops for Django, kept in the database you already have.

The public names are loaded when they are first used, so that this package can be imported before
Django's apps are ready (in an app's ``jobs.py`` as well as in a settings file).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .enqueueing import aenqueue, aenqueue_many, enqueue, enqueue_many
    from .errors import JobStopped, JobTimedOut
    from .jobs import (
        acancel,
        aget_job,
        aget_receipt,
        areplace_queued,
        arequeue,
        aresolve,
        await_job,
        cancel,
        get_job,
        get_receipt,
        list_jobs,
        replace_queued,
        requeue,
        resolve,
        wait,
    )
    from .namespaces import apause, aresume, awake, pause, resume, wake
    from .registry import job, register_handler
    from .retry import Discard, Retry
    from .worker import JobContext, Scheduler

_HOMES = {
    "enqueueing": ("aenqueue", "aenqueue_many", "enqueue", "enqueue_many"),
    "errors": ("JobStopped", "JobTimedOut"),
    "jobs": (
        "acancel",
        "aget_job",
        "aget_receipt",
        "areplace_queued",
        "arequeue",
        "aresolve",
        "await_job",
        "cancel",
        "get_job",
        "get_receipt",
        "list_jobs",
        "replace_queued",
        "requeue",
        "resolve",
        "wait",
    ),
    "namespaces": ("apause", "aresume", "awake", "pause", "resume", "wake"),
    "registry": ("job", "register_handler"),
    "retry": ("Discard", "Retry"),
    "worker": ("JobContext", "Scheduler"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Discard",
    "JobContext",
    "JobStopped",
    "JobTimedOut",
    "Retry",
    "Scheduler",
    "acancel",
    "aenqueue",
    "aenqueue_many",
    "aget_job",
    "aget_receipt",
    "apause",
    "areplace_queued",
    "arequeue",
    "aresolve",
    "aresume",
    "await_job",
    "awake",
    "cancel",
    "enqueue",
    "enqueue_many",
    "get_job",
    "get_receipt",
    "job",
    "list_jobs",
    "pause",
    "register_handler",
    "replace_queued",
    "requeue",
    "resolve",
    "resume",
    "wait",
    "wake",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
