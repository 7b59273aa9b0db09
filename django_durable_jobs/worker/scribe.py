"""The scribe: writes what happens during executions, on a connection of the worker's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar, cast

from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from ..conf import settings
from ..db import is_trouble, own_connections, transaction
from ..errors import ShutDown
from .trouble import Backoff

T = TypeVar("T")


class Scribe:
    """One thread with one connection, at the service of every handler.

    Starts, metadata, receipts and progress are committed at once and never over the handler's
    connection, which may be inside a transaction, broken or closed.

    Handlers wait for it, and into their threads an error may be raised at any instruction. So
    both sides meet over queues and a plain lock, which are left unlocked then: the locks of a
    Future, an executor or a Condition are not, and nobody would be served any more.
    """

    thread_sensitive = False  # whether async code has to call it in the thread of its connections

    def __init__(self, using: str) -> None:
        self._using = using
        self._own = own_connections(using, lease=settings.LEASE)
        self._lock = threading.Lock()
        self._closed = False
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="scribe", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def write(self, function: Callable[[BaseDatabaseWrapper], T]) -> T:
        """Run ``function`` in a transaction of the scribe's and return what it returns.

        While the database is in trouble it is tried again, for one lease: an outage that costs
        no claim costs no handler either. Since the reply to a commit may have been lost,
        ``function`` must bear to be run twice. Raises ShutDown once the scribe was closed, and
        what the database raised.
        """
        last_try = time.monotonic() + settings.LEASE
        backoff = Backoff()
        while True:
            try:
                return self._ask(function)
            except Error as error:
                if not is_trouble(error) or time.monotonic() >= last_try:
                    raise
            time.sleep(backoff.next())

    def can_write(self) -> bool:
        """Tell whether a write can get through while the calling thread waits for it.

        Not where that thread may hold SQLite's one write lock.
        """
        handler = connections[self._using]
        return not (handler.vendor == "sqlite" and handler.in_atomic_block)

    def close(self) -> None:
        """Close the connection and end the thread, once it has written what it was given.

        One that hangs is left to itself after a lease: what it writes then, nobody holds.
        """
        with self._lock:
            self._closed = True
            self._calls.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout=settings.LEASE)

    def _ask(self, function: Callable[[BaseDatabaseWrapper], T]) -> T:
        """Have the thread run ``function``; return what it returns, raise what it raises."""
        answer: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

        def call() -> None:
            try:
                answer.put((self._run(function), None))
            except BaseException as error:
                answer.put((None, error))

        with self._lock:
            if self._closed:
                raise ShutDown
            self._calls.put(call)
        result, error = answer.get()
        if error is not None:
            raise error
        return cast(T, result)

    # The scribe's thread

    def _serve(self) -> None:
        with self._own:
            while (call := self._calls.get()) is not None:
                call()

    def _run(self, function: Callable[[BaseDatabaseWrapper], T]) -> T:
        try:
            with transaction(self._using) as connection:
                return function(connection)
        finally:
            # A connection that the database has dropped is opened again by the next write.
            connections[self._using].close_if_unusable_or_obsolete()
