"""Whoever watches a worker from outside, such as the terminal."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol
from uuid import UUID

from .desk import Turn
from .running import Run

logger = logging.getLogger(__name__)


class Observer(Protocol):
    """Somebody who is told of what a worker does.

    Of each turn; of trouble with the database; of each handler that does not end although it was
    told to, with how many are ``stuck`` now, and the ``most`` with which the worker goes on.
    """

    def turned(self, turn: Turn) -> None: ...
    def troubled(self, error: str) -> None: ...
    def stuck(self, run: Run, stuck: int, most: int) -> None: ...


class Audience:
    """Tell an observer, if there is one; one that fails (a closed terminal) holds up no job."""

    def __init__(self, observer: Observer | None, worker: UUID) -> None:
        self._observer = observer
        self._worker = worker

    def tell(self, what: Callable[[Observer], object]) -> None:
        if self._observer is not None:
            try:
                what(self._observer)
            except Exception:
                logger.exception("observer failed worker=%s", self._worker)
                self._observer = None
