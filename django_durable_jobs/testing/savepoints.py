"""What stands in for commits where a test's transaction is open around everything."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from django.core.exceptions import ObjectDoesNotExist
from django.db import DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import set_rollback

from ..db import transaction
from ..errors import DurableJobsError, StaleClaim, TransactionLeftOpen
from ..worker.scribe import Scribe

logger = logging.getLogger(__name__)

T = TypeVar("T")


class BrokenTransaction(DurableJobsError):
    """A statement failed outside of atomic() in a test's transaction: put atomic() around it."""

    code = "broken-test-transaction"


class _Point:
    """A savepoint on one connection, as it was before a handler."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._connection: Any = connection
        self._sid = connection.savepoint()
        self._hooks = len(self._connection.run_on_commit)

    def keep(self) -> bool:
        """Keep what was written since, as it would be committed by now; tell whether it could be.

        Where a statement failed outside of atomic() PostgreSQL takes everything back up to here.
        The other databases take back the statement alone, and Django's mark is lifted.
        """
        connection = self._connection
        set_rollback(False, using=connection.alias)
        try:
            connection.savepoint_commit(self._sid)
        except DatabaseError:
            connection.savepoint_rollback(self._sid)
            connection.savepoint_commit(self._sid)
            del connection.run_on_commit[self._hooks :]
            return False
        return True

    def call_hooks(self) -> None:
        """Call what was given to ``on_commit`` since, and what that gives to it."""
        while len(self._connection.run_on_commit) > self._hooks:
            _, hook, robust = self._connection.run_on_commit.pop(self._hooks)
            try:
                hook()
            except Exception:
                if not robust:
                    raise
                logger.exception("on_commit hook failed")


def as_if_committed(function: Callable[[], T], *, on_commit: bool) -> T:
    """Call ``function`` as a worker calls a handler: what it writes is there, also if it raises.

    ``on_commit`` says whether what it gives to ``transaction.on_commit`` is called. Connections
    without an open transaction are as they are for a worker.
    """
    opened = connections.all(initialized_only=True)
    depths = {connection.alias: _depth(connection) for connection in opened}
    points = [_Point(connection) for connection in opened if connection.in_atomic_block]
    whole, left_open = True, False
    try:
        result = function()
    finally:
        for connection in connections.all(initialized_only=True):
            left_open = _leave(connection, depths.get(connection.alias, 0)) or left_open
        for point in points:
            whole = point.keep() and whole
        if on_commit:
            for point in points:
                point.call_hooks()
    if left_open:
        raise TransactionLeftOpen
    if not whole:
        raise BrokenTransaction
    return result


def _depth(connection: Any) -> int:
    """How many atomic blocks are open."""
    return len(connection.atomic_blocks)


def _leave(connection: Any, depth: int) -> bool:
    """Roll back the atomic blocks that a handler has left open; tell whether there were any."""
    left_open = _depth(connection) > depth
    while _depth(connection) > depth:
        connection.atomic_blocks[-1].__exit__(TransactionLeftOpen, TransactionLeftOpen(), None)
    return left_open


class CallersScribe(Scribe):
    """A scribe that writes at once, on the connection of the thread that calls."""

    thread_sensitive = True

    def __init__(self, using: str) -> None:
        self._using = using
        self._caller = threading.get_ident()
        self._level = 0
        self._written: list[Callable[[BaseDatabaseWrapper], object]] = []

    def begin(self) -> None:
        """A handler begins: what is written from now on outlasts the handler's rollbacks."""
        self._level = _depth(connections[self._using])
        self._written.clear()

    def write_again(self) -> None:
        """Write what was written since once more, in case it was rolled back."""
        for function in self._written:
            with suppress(StaleClaim, ObjectDoesNotExist):
                self._write(function)
        self._written.clear()

    def can_write(self) -> bool:
        if threading.get_ident() != self._caller:
            raise DurableJobsError(
                "In tests only the thread that runs a job can record for it: in an async handler"
                " use await context.arecord_metadata(…) and the like.",
                code="wrong-thread",
            )
        return (
            connections[self._using].vendor != "sqlite"
            or _depth(connections[self._using]) == self._level
        )

    def write(self, function: Callable[[BaseDatabaseWrapper], T]) -> T:
        result = self._write(function)
        self._written.append(function)
        return result

    def close(self) -> None:
        pass

    def _write(self, function: Callable[[BaseDatabaseWrapper], T]) -> T:
        with transaction(self._using) as connection:
            return function(connection)
