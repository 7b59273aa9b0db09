"""Nothing leaks from one handler into the next."""

from __future__ import annotations

import contextvars
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from django.db import connections, reset_queries
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.dispatch import receiver

from ..audit import messenger

T = TypeVar("T")

# A connection that has been idle for longer may have been dropped by a server or a firewall.
IDLE_SECONDS = 5.0

# Statements whose effect outlives the transaction: after one the connection is thrown away.
_LEAVES_TRACES = re.compile(
    r"\s*(SET\b|RESET\b|LISTEN\b|PREPARE\b|DECLARE\b|LOAD\b|USE\b|LOCK\s+TABLES|PRAGMA\b|ATTACH\b"
    r"|CREATE\s+(GLOBAL\s+|LOCAL\s+)?TEMP|SELECT\b.*\b(pg_(try_)?advisory_lock|set_config|get_lock)\b)",
    re.IGNORECASE | re.DOTALL,
)


# Django begins none of its own in this way on MySQL.
_BEGINS = re.compile(r"\s*(BEGIN|START\s+TRANSACTION)\b", re.IGNORECASE)


def in_fresh_context(function: Callable[[], T]) -> T:
    """Call ``function`` without the context variables (language, time zone, tenant) of others.

    But for that by which a worker's events are told of.
    """
    fresh = contextvars.Context()
    fresh.run(messenger.set, messenger.get())
    return fresh.run(function)


@dataclass(slots=True)
class Lent:
    """What came back: ``left_open`` says that a transaction was, and what it wrote is lost."""

    left_open: bool = False


@contextmanager
def clean_connections() -> Iterator[Lent]:
    """Lend the thread's connections to a handler; keep those that come back as they went.

    Thrown away are connections that come back closed inside a transaction, in a transaction, out
    of autocommit, broken, or after a statement that leaves traces in the session.
    """
    lent = Lent()
    marks = _watched()
    marks.clear()
    now = time.monotonic()
    for connection in _opened():
        if now - getattr(connection, "_durable_jobs_used", 0.0) > IDLE_SECONDS:
            _throw_away(connection)
    reset_queries()
    try:
        yield lent
    finally:
        for connection in _opened():
            lent.left_open = lent.left_open or _in_transaction(connection)
            if connection.alias in marks or _is_soiled(connection):
                _throw_away(connection)
            else:
                connection._durable_jobs_used = time.monotonic()  # type: ignore[attr-defined]


def soiled_connections() -> bool:
    """Tell whether a connection of this thread is in no state to be used by others."""
    return any(_is_soiled(connection) for connection in _opened())


def close_connections() -> None:
    """Close every connection of this thread."""
    for connection in connections.all(initialized_only=True):
        _throw_away(connection)


class _Thread(threading.local):
    """What watches one thread's connections, by alias, and the aliases marked in this job."""

    def __init__(self) -> None:
        self.marks: set[str] = set()
        self.watches: dict[str, _Watch] = {}


class _Watch:
    """Note the aliases on which a statement ran that leaves traces."""

    def __init__(self, alias: str, marks: set[str]) -> None:
        self._alias = alias
        self._marks = marks

    def __call__(self, execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        text = str(sql)
        begins = context["connection"].vendor == "mysql" and _BEGINS.match(text)
        if begins or _LEAVES_TRACES.match(text):
            self._marks.add(self._alias)
        return execute(sql, params, many, context)


_thread = _Thread()


@receiver(connection_created, dispatch_uid="django_durable_jobs.isolation")
def _opened_anew(connection: BaseDatabaseWrapper, **kwargs: object) -> None:
    # What ran before is gone with the old session; Django sets up a new one by SET on MySQL.
    _thread.marks.discard(connection.alias)


def _watched() -> set[str]:
    """Have each connection of this thread watched, also one not yet opened; return the marks.

    What watches stays there from job to job, unless a job has put another connection in place.
    """
    marks, watches = _thread.marks, _thread.watches
    for alias in connections:
        if alias not in watches:
            watches[alias] = _Watch(alias, marks)
        wrappers = connections[alias].execute_wrappers
        if watches[alias] not in wrappers:
            wrappers.append(watches[alias])
    return marks


def _opened() -> list[BaseDatabaseWrapper]:
    return [
        connection
        for connection in connections.all(initialized_only=True)
        if connection.connection is not None or connection.in_atomic_block
    ]


def _in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Tell whether a transaction is open, also one that Django does not know of.

    By raw SQL, that is. With autocommit off there always is one, and that is told apart. MySQL's
    driver does not say: there ``_Watch`` looks for what begins one.
    """
    driver: Any = connection.connection
    if connection.in_atomic_block:
        return True
    if driver is None or not connection.get_autocommit():
        return False
    if connection.vendor == "postgresql":
        return bool(driver.info.transaction_status)  # 0 is IDLE
    return bool(getattr(driver, "in_transaction", False))


def _is_soiled(connection: BaseDatabaseWrapper) -> bool:
    return (
        _in_transaction(connection)
        or connection.needs_rollback
        or connection.closed_in_transaction
        or connection.errors_occurred
        or bool(connection.run_on_commit)
        or not connection.get_autocommit()
    )


def _throw_away(connection: BaseDatabaseWrapper) -> None:
    """Close for good: a wrapper left inside an atomic block refuses to be used again."""
    connection.in_atomic_block = False
    connection.savepoint_ids = []
    connection.atomic_blocks = []
    connection.needs_rollback = False
    connection.closed_in_transaction = False
    connection.run_on_commit = []
    try:
        connection.close()
    except Exception:
        # MySQL's driver refuses to close twice.
        connection.connection = None
