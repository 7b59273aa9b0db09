"""Retention: jobs that ended long ago are deleted, with their executions.

By their primary key, which needs no index beside it: ids are ordered by time, so what is old stands
together at the beginning (docs/decisions/retention.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from . import signals
from .conf import Settings, settings
from .db import FIRST, current_clock, retrying, statements_for, transaction
from .ids import first_uuid7_of
from .jobspec import namespace_name
from .namespaces import database

# How many jobs one transaction deletes, and how many rows one look for them reads, at most.
BATCH = 500
STRETCH = 5_000


def prune_jobs(
    older_than: float | timedelta | None = None,
    *,
    namespace: str | None = None,
    using: str | None = None,
) -> int:
    """Delete the namespace's jobs that ended more than ``older_than`` ago; return how many.

    ``older_than`` is in seconds, or a timedelta; 0 is every job that has ended, None the setting
    JOB_RETENTION (which may say that all are kept). By the database's clock. Their executions go
    with them and their idempotency keys are free; a schedule's last job stays, so does that of an
    occurrence which its loop record still points at, and what somebody else holds a lock on. Goes
    through the whole table in transactions of a few hundred jobs, or inside yours. Raises
    ValueError for an age that makes no sense, and InvalidJob.
    """
    age = Settings.JOB_RETENTION.unless(older_than, "older_than")
    name = settings.NAMESPACE if namespace is None else namespace_name(namespace)
    connection = connections[database(using)]
    if age is None:
        return 0
    step = _step(connection, name, age, after=FIRST)
    deleted = step.deleted
    while step.after is not None:
        step = _step(connection, name, age, after=step.after)
        deleted += step.deleted
    return deleted


class Pruner:
    """Prunes a namespace by JOB_RETENTION little by little, for whoever calls ``step`` often.

    Any number of them may do it at once: each leaves alone what another one holds.
    """

    def __init__(self, namespace: str, *, now: Callable[[], float] = time.monotonic) -> None:
        self._namespace = namespace
        self._now = now
        self._next_at = 0.0
        # What was made before the limit is mostly to be deleted. The rest is looked at slowly:
        # callers may give jobs ids of their own, which say nothing of their time.
        self._old_after: UUID | None = None
        self._rest_after: UUID | None = None

    def step(self, connection: BaseDatabaseWrapper) -> bool:
        """Delete a batch or two, once per PRUNE_INTERVAL; tell whether there is more right now.

        Call it outside of transactions.
        """
        age = settings.JOB_RETENTION
        if age is None or self._now() < self._next_at:
            return False
        # Before the attempt: one that fails is not made at every call.
        self._next_at = self._now() + settings.PRUNE_INTERVAL
        limit = first_uuid7_of(current_clock().now(connection) - timedelta(seconds=age))
        after = self._old_after or FIRST
        old = _step(connection, self._namespace, age, after=after, below=limit)
        after = max(self._rest_after or limit, limit)
        rest = _step(connection, self._namespace, age, after=after)
        self._old_after, self._rest_after = old.after, rest.after
        more = BATCH in (old.found, rest.found)
        if more:
            self._next_at = self._now()
        return more


class _Step(NamedTuple):
    """How many jobs a step found and deleted, and behind which id to go on (None: the end)."""

    found: int
    deleted: int
    after: UUID | None


def _step(
    connection: BaseDatabaseWrapper,
    namespace: str,
    age: float,
    *,
    after: UUID,
    below: UUID | None = None,
) -> _Step:
    """Look at the next stretch of jobs, as far as ``below``; delete a batch of them at most."""
    found, behind = statements_for(connection).ended_before(
        namespace, age, after=after, below=below, limit=BATCH, stretch=STRETCH
    )
    return _Step(len(found), _delete(connection, found, age) if found else 0, behind)


def _delete(connection: BaseDatabaseWrapper, ids: list[UUID], age: float) -> int:
    # Nothing comes to point at a job that has ended: what is not kept now need not be later.
    kept = {id for guard in signals.prune_guards for id in guard(ids, connection.alias)}
    ids = [id for id in ids if id not in kept]
    if not ids:
        return 0

    def delete() -> int:
        with transaction(connection.alias):
            return statements_for(connection).delete_ended(ids, age)

    # What is lost inside a transaction of the caller's is the caller's to try again.
    return delete() if connection.in_atomic_block else retrying(delete)


aprune_jobs = sync_to_async(prune_jobs)
