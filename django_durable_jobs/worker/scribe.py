"""The scribe: writes what happens during executions, on a connection of the worker's own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from ..conf import settings
from ..db import own_connections, transaction
from ..errors import ShutDown

T = TypeVar("T")


class Scribe:
    """One thread with one connection, at the service of every handler.

    Starts, metadata, receipts and progress are committed at once and never over the handler's
    connection, which may be inside a transaction, broken or closed.
    """

    def __init__(self, using: str) -> None:
        self._using = using
        self._pool = ThreadPoolExecutor(1, "scribe")
        self._own = own_connections(using, idle_limit=settings.LEASE)
        self._opened = False

    def write(self, function: Callable[[BaseDatabaseWrapper], T]) -> T:
        """Run ``function`` in a transaction of the scribe's and return what it returns.

        Raises ShutDown once the scribe was closed.
        """
        try:
            future = self._pool.submit(self._run, function)
        except RuntimeError as error:  # the pool's way to say that it was shut down
            raise ShutDown from error
        return future.result()

    def close(self) -> None:
        """Close the connection and end the thread, once it has written what it was given."""
        self._pool.submit(self._close)
        self._pool.shutdown(wait=True)

    def _run(self, function: Callable[[BaseDatabaseWrapper], T]) -> T:
        if not self._opened:
            self._own.__enter__()
            self._opened = True
        try:
            with transaction(self._using) as connection:
                return function(connection)
        finally:
            # A connection that the database has dropped is opened again by the next write.
            connections[self._using].close_if_unusable_or_obsolete()

    def _close(self) -> None:
        if self._opened:
            self._own.__exit__(None, None, None)
