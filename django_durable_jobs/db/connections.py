"""Connections and transactions of the machinery's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import atomic

from .limits import Limits, limit_answers, limit_session, limits_for, with_limits

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


def has_psycopg3(connection: Any) -> bool:
    """Tell whether psycopg 3 stands behind this connection: psycopg 2 does less of what we want."""
    return bool(connection.vendor == "postgresql" and connection.Database.__name__ == "psycopg")


def _own_settings(connection: BaseDatabaseWrapper, limits: Limits | None) -> dict[str, Any]:
    """Return the alias' settings as the machinery wants them, whatever the project chose."""
    settings = {**connection.settings_dict, "OPTIONS": {**connection.settings_dict["OPTIONS"]}}
    settings.update(
        CONN_MAX_AGE=None, CONN_HEALTH_CHECKS=False, ATOMIC_REQUESTS=False, AUTOCOMMIT=True
    )
    options = settings["OPTIONS"]
    if connection.vendor == "postgresql":
        options.pop("pool", None)
        options["isolation_level"] = READ_COMMITTED[0]
        if limits is not None and has_psycopg3(connection):
            # The same few statements again and again: half of what they cost is their planning.
            options["server_side_binding"] = True
            options.setdefault("prepare_threshold", 3)
    elif connection.vendor == "mysql":
        options["isolation_level"] = READ_COMMITTED[1]
    elif connection.vendor == "sqlite":
        options["transaction_mode"] = "IMMEDIATE"
        options["timeout"] = max(SQLITE_BUSY_TIMEOUT, float(options.get("timeout", 5.0)))
    if limits is not None:
        settings["OPTIONS"] = with_limits(connection.vendor, options, limits)
    return settings


def _limited(wrapper: type[Any], limits: Limits) -> type[Any]:
    """Return the wrapper class with the limits on every connection that it opens."""

    class DatabaseWrapper(wrapper):  # type: ignore[misc]
        behind_pooler = False

        def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
            driver = super().get_new_connection(conn_params)
            limit_answers(driver, limits)
            return driver

        def init_connection_state(self) -> None:
            super().init_connection_state()
            limit_session(self, limits)

        def _set_autocommit(self, autocommit: bool) -> None:
            try:
                super()._set_autocommit(autocommit)
            except Error:
                # On MySQL a statement of its own, behind the commit: what was confirmed stands.
                if not (autocommit and self.run_commit_hooks_on_set_autocommit_on):
                    raise
                with suppress(Error):
                    self._close()
                self.connection = None

    return DatabaseWrapper


@contextmanager
def own_connections(using: str, *, lease: float | None = None) -> Iterator[BaseDatabaseWrapper]:
    """Give the calling thread a connection of its own to ``using``, closed at the end.

    It is configured for the machinery (READ COMMITTED, IMMEDIATE on SQLite, kept open, outside
    any pool), and stands in for ``connections[using]`` in this thread, the ORM included. With
    ``lease``, in seconds, it waits for nothing for longer than that allows (``limits_for``): not
    for a lock, not for an answer, and the server does not wait for it in a transaction.
    """
    previous = connections[using]
    wrapper: type[Any] = type(previous)
    limits = None if lease is None else limits_for(lease)
    if limits is not None:
        wrapper = _limited(wrapper, limits)
    own: BaseDatabaseWrapper = wrapper(_own_settings(previous, limits), using)
    connections[using] = own
    try:
        yield own
    finally:
        own.close()
        connections[using] = previous
