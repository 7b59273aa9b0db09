"""Connections and transactions of the machinery's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import atomic

# How long a statement of ours waits for SQLite's one write lock, in seconds.
SQLITE_BUSY_TIMEOUT = 30.0
# As OPTIONS may name it: psycopg.IsolationLevel.READ_COMMITTED, and Django's name on MySQL.
READ_COMMITTED = (2, "read committed")


@contextmanager
def transaction(using: str) -> Iterator[BaseDatabaseWrapper]:
    """Open a transaction (or a savepoint inside the caller's) and yield its connection.

    A transaction of ours is READ COMMITTED, since a claim that waited for a lock must count what
    is there now, and on SQLite takes the write lock first: a transaction that reads and then
    writes dies of "database is locked" without waiting. Inside one that is already open nothing
    is set.
    """
    connection = connections[using]
    if connection.in_atomic_block:
        with atomic(using=using):
            yield connection
        return
    with _begin_immediate(connection), atomic(using=using):
        _read_committed(connection)
        yield connection


@contextmanager
def _begin_immediate(connection: Any) -> Iterator[None]:
    if connection.vendor != "sqlite":
        yield
        return
    connection.ensure_connection()  # which is when Django reads the mode
    previous = connection.transaction_mode
    connection.transaction_mode = "IMMEDIATE"
    try:
        yield
    finally:
        connection.transaction_mode = previous


def _read_committed(connection: Any) -> None:
    """Lower the isolation of the transaction just begun where the project's OPTIONS raise it."""
    level = connection.settings_dict["OPTIONS"].get("isolation_level", READ_COMMITTED[0])
    if connection.vendor in ("postgresql", "mysql") and level not in READ_COMMITTED:
        with connection.cursor() as cursor:
            # On MySQL nothing has begun yet: autocommit is off, and this is the first statement.
            cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")


def _own_settings(connection: BaseDatabaseWrapper) -> dict[str, Any]:
    """Return the alias' settings as the machinery wants them, whatever the project chose."""
    settings = {**connection.settings_dict, "OPTIONS": {**connection.settings_dict["OPTIONS"]}}
    settings.update(
        CONN_MAX_AGE=None, CONN_HEALTH_CHECKS=False, ATOMIC_REQUESTS=False, AUTOCOMMIT=True
    )
    options = settings["OPTIONS"]
    if connection.vendor == "postgresql":
        options.pop("pool", None)
        options["isolation_level"] = READ_COMMITTED[0]
    elif connection.vendor == "mysql":
        options["isolation_level"] = READ_COMMITTED[1]
    elif connection.vendor == "sqlite":
        options["transaction_mode"] = "IMMEDIATE"
        options["timeout"] = max(SQLITE_BUSY_TIMEOUT, float(options.get("timeout", 5.0)))
    return settings


def _limit_idling(connection: Any, seconds: float) -> None:
    """Have MariaDB roll back a transaction that stands still for longer.

    A process that is stopped in the middle of one (a paused machine) would hold its locks for as
    long. On PostgreSQL the claim says so for its own transaction (``lock_namespace``): said to a
    session it would reach the host's, behind a pooler. MySQL knows no such limit, and SQLite's
    lock is the process's own.
    """
    if connection.vendor == "mysql" and connection.mysql_is_mariadb:
        with connection.cursor() as cursor:
            cursor.execute(f"SET SESSION idle_transaction_timeout = {max(1, round(seconds))}")


def _limited(wrapper: type[Any], seconds: float) -> type[Any]:
    """Return the wrapper class with the limit set on every connection it opens."""

    class DatabaseWrapper(wrapper):  # type: ignore[misc]
        def init_connection_state(self) -> None:
            super().init_connection_state()
            _limit_idling(self, seconds)

    return DatabaseWrapper


@contextmanager
def own_connections(
    using: str, *, idle_limit: float | None = None
) -> Iterator[BaseDatabaseWrapper]:
    """Give the calling thread a connection of its own to ``using``, closed at the end.

    It is configured for the machinery (READ COMMITTED, IMMEDIATE on SQLite, kept open, outside
    any pool), and stands in for ``connections[using]`` in this thread, the ORM included. A
    transaction on it that stands still for ``idle_limit`` seconds is rolled back by MariaDB.
    """
    previous = connections[using]
    wrapper: type[Any] = type(previous)
    if idle_limit is not None:
        wrapper = _limited(wrapper, idle_limit)
    own: BaseDatabaseWrapper = wrapper(_own_settings(previous), using)
    connections[using] = own
    try:
        yield own
    finally:
        own.close()
        connections[using] = previous
