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
        self._changes: DataVersion | None = None
        vendor = connections[using].vendor
        if vendor == "postgresql" and settings.LISTEN:
            self._listener = Listener(using, CHANNEL, heard)
        if vendor == "sqlite":
            # Read from here on, not from each sleep: what was committed while a turn looked
            # elsewhere would go unheard.
            self._changes = DataVersion(connections[using])

    def __enter__(self) -> Sleep:
        if self._listener is not None:
            self._listener.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._listener is not None:
            self._listener.stop()

    def until(self, seconds: float | None) -> None:
        """Return when woken, when something is due, or after ``seconds``.

        None: only when woken (or after MAX_SLEEP), as a worker with no free slot or not started.
        """
        if seconds is None:
            self._wake.wait(settings.MAX_SLEEP)
            return
        end = time.monotonic() + min(seconds, settings.MAX_SLEEP)
        if self._changes is not None:
            self._watch(self._changes, end)
            return
        connection = connections[self._using]
        while (left := end - time.monotonic()) > 0:
            if self._wake.wait(min(left, settings.POLL_INTERVAL)):
                return
            if anything_due(connection, self._namespace):
                return

    def _watch(self, changes: DataVersion, end: float) -> None:
        while (left := end - time.monotonic()) > 0:
            if changes.changed() or self._wake.wait(min(left, DATA_VERSION_INTERVAL)):
                return
