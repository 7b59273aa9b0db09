"""How a sleeping worker notices that something was enqueued."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from .session import ENTRY, Session

logger = logging.getLogger(__name__)

# How often a sleeping worker looks at SQLite's change counter, in seconds: a look reads no page.
DATA_VERSION_INTERVAL = 0.02
RECONNECT_PAUSE = 1.0


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


class Listener:
    """LISTEN on PostgreSQL, in a thread and on a connection of its own.

    Behind a transaction-mode pooler nothing arrives and nothing says so, hence the polling that
    goes on beside it. A lost connection is opened again.
    """

    def __init__(
        self, using: str, channel: str, heard: Callable[[str], object], *, timeout: float = 0.5
    ) -> None:
        self._using = using
        self._channel = channel
        self._heard = heard
        self._timeout = timeout
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="listen", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop, and return when the connection is closed."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        warned = False
        while not self._stopped.is_set():
            try:
                self._listen()
                warned = False
            except Exception as error:
                if not warned:
                    logger.warning("listen failed, polling goes on error=%s", error)
                warned = True
                self._stopped.wait(RECONNECT_PAUSE)

    def _listen(self) -> None:
        wrapper: Any = connections[self._using]
        parameters = {**wrapper.get_connection_params(), "autocommit": True}
        # Not a connection of Django's: its pool, if there is one, loses no place to this.
        with wrapper.Database.connect(**parameters) as connection:
            connection.execute(f'LISTEN "{self._channel}"')
            # What was enqueued before the LISTEN was in force.
            self._heard("")
            while not self._stopped.is_set():
                for notification in connection.notifies(timeout=self._timeout, stop_after=1):
                    self._heard(notification.payload)
