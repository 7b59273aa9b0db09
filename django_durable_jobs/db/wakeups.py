"""How a sleeping worker notices that something was enqueued."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from .session import ENTRY, Session

# How often a sleeping worker looks at SQLite's change counter, in seconds: a look reads no page.
DATA_VERSION_INTERVAL = 0.02


def anything_due(connection: BaseDatabaseWrapper, namespace: str) -> bool:
    """Tell whether an entry is due or waits for the next claim to be: two looks at an index."""
    session = Session(connection)
    due = f"SELECT 1 FROM {ENTRY} WHERE namespace = %s AND due = TRUE LIMIT 1"
    becomes = (
        f"SELECT 1 FROM {ENTRY} WHERE namespace = %s AND due = FALSE"
        f" AND claimable_at <= {session.now} LIMIT 1"
    )
    return any(session.execute(sql, [namespace]) for sql in (due, becomes))


class DataVersion:
    """SQLite's counter of commits by other connections."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._connection = connection
        self._seen = self._read()

    def changed(self) -> bool:
        """Tell whether another connection has committed since the last call."""
        seen, self._seen = self._seen, self._read()
        return seen != self._seen

    def _read(self) -> int:
        with self._connection.cursor() as cursor:
            cursor.execute("PRAGMA data_version")
            return int(cursor.fetchone()[0])


class Listening:
    """LISTEN on PostgreSQL, on the connection that the caller works with.

    ``heard`` is called with the payload of each notification: by ``collect``, and in the middle of
    a statement if one comes with its answer. Behind a transaction-mode pooler nothing arrives,
    hence the polling that goes on beside it.
    """

    def __init__(
        self, connection: BaseDatabaseWrapper, channel: str, heard: Callable[[str], object]
    ) -> None:
        self._connection: Any = connection
        self._channel = channel
        self._heard = heard
        self._driver: Any = None

    def begin(self) -> bool:
        """Listen, on a connection that was opened since the last call; tell whether it was.

        What was enqueued before that went unheard.
        """
        connection = self._connection
        connection.ensure_connection()
        if connection.connection is self._driver:
            return False
        driver = connection.connection
        if not connection.behind_pooler:
            driver.add_notify_handler(lambda notification: self._heard(notification.payload))
            with connection.cursor() as cursor:
                cursor.execute(f'LISTEN "{self._channel}"')
        self._driver = driver
        return True

    def fileno(self) -> int:
        """Return what becomes readable when there is something to collect."""
        return int(self._driver.fileno())

    def collect(self) -> None:
        """Take what has arrived. Raises what Django raises for a connection that is lost."""
        with self._connection.wrap_database_errors:
            self._driver.pgconn.consume_input()
            while notification := self._driver.pgconn.notifies():
                self._heard(notification.extra.decode())
