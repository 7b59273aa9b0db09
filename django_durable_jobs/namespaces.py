"""Namespaces: where they live, pausing them, and waking their workers."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import connections, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import on_commit

from . import signals
from .claims import free_ineligible
from .conf import settings
from .db import now_expression, retrying, transaction
from .errors import InvalidJob
from .jobspec import namespace_name
from .models import Job, Namespace
from .parameters import shown
from .strictjson import storable_text, type_name

logger = logging.getLogger(__name__)

# What workers LISTEN to on PostgreSQL; the notification's payload is a namespace.
CHANNEL = "django_durable_jobs"
# Behind the namespace, which has no control characters: what follows is the claim to be stopped.
STOP = "\n"

P = ParamSpec("P")
R = TypeVar("R")


def database(using: str | None = None) -> str:
    """Return the alias of the database that jobs live in: the argument, DATABASE, or the router.

    Raises InvalidJob for an argument that is no alias of the project's.
    """
    given: object = using
    if given is None:
        return settings.DATABASE or router.db_for_write(Job)
    if not isinstance(given, str) or given not in connections:
        problem = f"{shown(given)} is no alias out of DATABASES; accepted: {', '.join(connections)}"
        raise InvalidJob(f"using: {problem}", field="using", path="using")
    return given


def retried(verb: Callable[P, R]) -> Callable[P, R]:
    """Try a verb again whose transaction was lost to a deadlock or the like.

    Inside a transaction of the caller's nothing is tried again: that transaction is what was lost,
    and the caller alone knows what else was in it. ``using`` is the verb's keyword.
    """

    @functools.wraps(verb)
    def tried(*args: P.args, **kwargs: P.kwargs) -> R:
        if connections[database(cast("str | None", kwargs.get("using")))].in_atomic_block:
            return verb(*args, **kwargs)
        return retrying(lambda: verb(*args, **kwargs))

    return tried


@retried
def pause(namespace: str, *, by: str = "", reason: str = "", using: str | None = None) -> None:
    """Let no job of the namespace be claimed until ``resume``; what runs goes on.

    A namespace that is paused already stays as it was paused first. Raises InvalidJob.
    """
    namespace, alias = namespace_name(namespace), database(using)
    paused_by, paused_reason = words(by, "by", 150), words(reason, "reason", 4_096)
    with transaction(alias) as connection:
        Namespace.objects.using(alias).bulk_create(
            [Namespace(name=namespace)], ignore_conflicts=True
        )
        Namespace.objects.using(alias).filter(pk=namespace, paused_at__isnull=True).update(
            paused_at=now_expression(connection),
            paused_by=paused_by,
            paused_reason=paused_reason,
        )


@retried
def resume(namespace: str, *, using: str | None = None) -> None:
    """Let the namespace's jobs be claimed again."""
    namespace, alias = namespace_name(namespace), database(using)
    with transaction(alias):
        Namespace.objects.using(alias).filter(pk=namespace).update(
            paused_at=None, paused_by="", paused_reason=""
        )
        announce(namespace, alias)


def wake(namespace: str | None = None, *, using: str | None = None) -> None:
    """Have the namespace's workers look for work now, and ask again whose can_run said no.

    Never raises: what goes wrong is logged, and workers look again by themselves.
    """
    try:
        name, alias = namespace or settings.NAMESPACE, database(using)
        with transaction(alias) as connection:
            free_ineligible(connection, name)
            announce(name, alias)
    except Exception:
        logger.exception("wake failed namespace=%r", namespace)


def words(value: object, field: str, limit: int) -> str:
    """Return what somebody says as storable text; raise InvalidJob for what is no text."""
    if not isinstance(value, str):
        problem = f"must be text (str), not {type_name(type(value))}"
        raise InvalidJob(f"{field}: {problem}", field=field, path=field)
    return storable_text(value, limit)


def announce(namespace: str, using: str) -> None:
    """Wake the namespace's workers when the caller's transaction commits."""
    _announce(namespace, using)


def announce_stop(namespace: str, claim_id: UUID, using: str) -> None:
    """Tell the worker that holds the claim to stop its job, when the caller's transaction commits.

    Where this does not reach it (another process, no LISTEN), its next heartbeat does.
    """
    _announce(f"{namespace}{STOP}{claim_id}", using)


def _announce(message: str, using: str) -> None:
    connection = connections[using]
    if settings.LISTEN:
        notify(connection, message)
    wake_here(message, using)


def notify(connection: BaseDatabaseWrapper, message: str) -> None:
    """Tell listening workers, where the database can (PostgreSQL); sent at commit."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, message])


def wake_here(message: str, using: str) -> None:
    """Wake the workers of this process, if there are any, when the transaction commits."""
    if signals.wake_listeners:
        on_commit(lambda: _tell(message), using=using, robust=True)


def _tell(message: str) -> None:
    for listener in list(signals.wake_listeners):
        listener(message)


apause = sync_to_async(pause)
aresume = sync_to_async(resume)
awake = sync_to_async(wake)
