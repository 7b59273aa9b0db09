"""Reconciling loop records with their jobs, again and again, for the worker that leads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from django.db.backends.base.base import BaseDatabaseWrapper

from ..conf import settings
from .syncing import sync_steps


class Reconciler:
    """Reconciles by some hundred records at a time, at once and then every LOOP_SYNC_INTERVAL."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._next_at = 0.0
        self._steps: Iterator[int] | None = None

    def step(self, connection: BaseDatabaseWrapper) -> bool:
        """Do the next part, where it is time; tell whether there is more right now."""
        if self._steps is None:
            if self._now() < self._next_at:
                return False
            # Before the attempt: one that fails is not made at every call.
            self._next_at = self._now() + settings.LOOP_SYNC_INTERVAL
            self._steps = sync_steps(using=connection.alias)
        try:
            if next(self._steps, None) is not None:
                return True
        except BaseException:
            self._steps = None
            raise
        self._steps = None
        return False
