"""Sleeping until there is something to do."""

from __future__ import annotations

import math
import os
import select
import threading
import time
import weakref
from collections.abc import Callable

from django.db import connections

from ..conf import settings
from ..db import has_psycopg3
from ..db.wakeups import DATA_VERSION_INTERVAL, DataVersion, Listening, anything_due
from ..namespaces import CHANNEL

# How long what has just begun is left alone, in seconds.
BREATH = 0.01


class Wake:
    """A flag that a thread can wait for beside a socket, as it cannot for an Event."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._set = False
        self._reader, self._writer = os.pipe()
        weakref.finalize(self, _close, self._reader, self._writer)

    def set(self) -> None:
        with self._lock:
            if not self._set:
                self._set = True
                os.write(self._writer, b"\0")

    def clear(self) -> None:
        with self._lock:
            if self._set:
                self._set = False
                os.read(self._reader, 1)

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float, *, beside: Listening | None = None) -> bool:
        """Wait ``timeout`` seconds at most, or until ``beside`` has something; tell if set."""
        if not self._set:
            poll = select.poll()
            poll.register(self._reader, select.POLLIN)
            if beside is not None:
                poll.register(beside.fileno(), select.POLLIN)
            poll.poll(max(0, math.ceil(timeout * 1_000)))
        return self._set


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


class Sleep:
    """Wait for a wake-up, with whatever the database has to send one, and polling behind it."""

    def __init__(
        self, using: str, namespace: str, wake: Wake, *, heard: Callable[[str], object]
    ) -> None:
        self._connection = connections[using]
        self._namespace = namespace
        self._wake = wake
        self._listening: Listening | None = None
        self._changes: DataVersion | None = None
        if settings.LISTEN and has_psycopg3(self._connection):
            self._listening = Listening(self._connection, CHANNEL, heard)
        if self._connection.vendor == "sqlite":
            # Read from here on, not from each sleep: what was committed while a turn looked
            # elsewhere would go unheard.
            self._changes = DataVersion(self._connection)

    def until(self, seconds: float | None) -> None:
        """Return when woken, when something is due, or after ``seconds``.

        None: only when woken (or after MAX_SLEEP), as a worker with no free slot or not started.
        """
        looks, longest = seconds is not None, settings.MAX_SLEEP
        end = time.monotonic() + (longest if seconds is None else min(seconds, longest))
        if self._listening is not None and self._listening.begin():
            return
        if self._changes is not None and looks:
            self._watch(self._changes, end)
        else:
            self._wait(end, polls=looks)

    def breathe(self) -> None:
        """Leave the processor to what has just begun; it may be over in a moment.

        What the database has to say is left for ``until`` to hear: it says so only once.
        """
        self._wake.wait(BREATH)

    def _wait(self, end: float, *, polls: bool) -> None:
        look_at = time.monotonic() + settings.POLL_INTERVAL
        while (now := time.monotonic()) < end:
            if polls and now >= look_at:
                if anything_due(self._connection, self._namespace):
                    return
                look_at = time.monotonic() + settings.POLL_INTERVAL
            until = min(end, look_at) if polls else end
            if self._wake.wait(until - time.monotonic(), beside=self._listening):
                return
            if self._listening is not None:
                self._listening.collect()
                if self._wake.is_set():
                    return

    def _watch(self, changes: DataVersion, end: float) -> None:
        while (left := end - time.monotonic()) > 0:
            if changes.changed() or self._wake.wait(min(left, DATA_VERSION_INTERVAL)):
                return
