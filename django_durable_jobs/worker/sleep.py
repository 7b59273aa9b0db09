"""Sleeping until there is something to do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from django.db import connections

from ..conf import settings
from ..db.wakeups import DATA_VERSION_INTERVAL, DataVersion, Listener, anything_due
from ..namespaces import CHANNEL


class Sleep:
    """Wait for a wake-up, with whatever the database has to send one, and polling behind it."""

    def __init__(
        self, using: str, namespace: str, wake: threading.Event, *, heard: Callable[[str], object]
    ) -> None:
        self._using = using
        self._namespace = namespace
        self._wake = wake
        self._listener: Listener | None = None
        if connections[using].vendor == "postgresql" and settings.LISTEN:
            self._listener = Listener(using, CHANNEL, heard)

    def __enter__(self) -> Sleep:
        if self._listener is not None:
            self._listener.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._listener is not None:
            self._listener.stop()

    def until(self, seconds: float | None) -> None:
        """Return when woken, when something is due, or after ``seconds``.

        None: only when woken, as a worker with no free slot or one that is not started.
        """
        if seconds is None:
            self._wake.wait(settings.MAX_SLEEP)
            return
        end = time.monotonic() + min(seconds, settings.MAX_SLEEP)
        connection = connections[self._using]
        if connection.vendor == "sqlite":
            self._watch_file(end)
            return
        while (left := end - time.monotonic()) > 0:
            if self._wake.wait(min(left, settings.POLL_INTERVAL)):
                return
            if anything_due(connection, self._namespace):
                return

    def _watch_file(self, end: float) -> None:
        changes = DataVersion(connections[self._using])
        while (left := end - time.monotonic()) > 0:
            if self._wake.wait(min(left, DATA_VERSION_INTERVAL)) or changes.changed():
                return
