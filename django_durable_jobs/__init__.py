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
    from .explaining import aexplain, explain
    from .insight import astatus, status
    from .jobs import (
        acancel,
        areplace_queued,
        arequest_stop,
        arequeue,
        aresolve,
        cancel,
        replace_queued,
        request_stop,
        requeue,
        resolve,
    )
    from .lookup import aget_job, aget_receipt, await_job, get_job, get_receipt, list_jobs, wait
    from .loops import async_loops, sync_loops
    from .namespaces import apause, aresume, awake, pause, resume, wake
    from .registry import job, register, register_handler, schedule
    from .retention import aprune_jobs, prune_jobs
    from .retry import Discard, Retry
    from .ticks import (
        afire_now,
        apause_schedule,
        aprune_tick_claims,
        aresume_schedule,
        fire_now,
        pause_schedule,
        prune_tick_claims,
        resume_schedule,
    )
    from .worker import JobContext, Scheduler

_HOMES = {
    "enqueueing": ("aenqueue", "aenqueue_many", "enqueue", "enqueue_many"),
    "errors": ("JobStopped", "JobTimedOut"),
    "explaining": ("aexplain", "explain"),
    "insight": ("astatus", "status"),
    "jobs": (
        "acancel",
        "areplace_queued",
        "arequest_stop",
        "arequeue",
        "aresolve",
        "cancel",
        "replace_queued",
        "request_stop",
        "requeue",
        "resolve",
    ),
    "lookup": (
        *("aget_job", "aget_receipt", "await_job"),
        *("get_job", "get_receipt", "list_jobs", "wait"),
    ),
    "loops": ("async_loops", "sync_loops"),
    "namespaces": ("apause", "aresume", "awake", "pause", "resume", "wake"),
    "registry": ("job", "register", "register_handler", "schedule"),
    "retention": ("aprune_jobs", "prune_jobs"),
    "retry": ("Discard", "Retry"),
    "ticks": (
        *("afire_now", "apause_schedule", "aprune_tick_claims", "aresume_schedule"),
        *("fire_now", "pause_schedule", "prune_tick_claims", "resume_schedule"),
    ),
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
    "aexplain",
    "afire_now",
    "aget_job",
    "aget_receipt",
    "apause",
    "apause_schedule",
    "aprune_jobs",
    "aprune_tick_claims",
    "areplace_queued",
    "arequest_stop",
    "arequeue",
    "aresolve",
    "aresume",
    "aresume_schedule",
    "astatus",
    "async_loops",
    "await_job",
    "awake",
    "cancel",
    "enqueue",
    "enqueue_many",
    "explain",
    "fire_now",
    "get_job",
    "get_receipt",
    "job",
    "list_jobs",
    "pause",
    "pause_schedule",
    "prune_jobs",
    "prune_tick_claims",
    "register",
    "register_handler",
    "replace_queued",
    "request_stop",
    "requeue",
    "resolve",
    "resume",
    "resume_schedule",
    "schedule",
    "status",
    "sync_loops",
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
