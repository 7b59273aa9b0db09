"""The signal that projects hear; hooks by which lower rooms set something off in higher ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from django.dispatch import Signal

logger = logging.getLogger(__name__)

# Workers of this process, to be woken (with a namespace) when a job was committed for them.
wake_listeners: list[Callable[[str], None]] = []

# Who syncs loop records that were written: their model, their keys, and where they are.
loop_listeners: list[Callable[[type[Any], Sequence[Any], str], object]] = []


def loops_written(model: type[Any], keys: Sequence[Any], using: str) -> None:
    """Have the jobs of these loop records made what the records say."""
    for listener in loop_listeners:
        listener(model, keys, using)


# Who is told of jobs (ids, and where they are) that ended without their handler's doing.
ended_listeners: list[Callable[[Sequence[Any], str], object]] = []
# Who may refuse, by raising, that an operator requeues a job.
requeue_guards: list[Callable[[Any], object]] = []
# Who says which of these jobs (ids, and where they are) are not to be pruned yet.
prune_guards: list[Callable[[Sequence[Any], str], set[Any]]] = []


def jobs_ended(ids: Sequence[Any], using: str) -> None:
    """Tell of jobs that were cancelled or interrupted; what listeners raise is logged."""
    for listener in ended_listeners:
        try:
            listener(ids, using)
        except Exception:
            logger.exception("listener failed jobs=%s", ", ".join(map(str, ids)))


class _AuditSignal(Signal):
    """A signal whose receivers may fail at every event, and are told of once until they work."""

    def __init__(self) -> None:
        super().__init__()
        self._failing: set[str] = set()  # receivers by name

    def send_robust(self, sender: Any, **named: Any) -> list[tuple[Any, Any]]:
        answers = super().send_robust(sender, **named)
        for receiver, answer in answers if self._failing else ():
            if not isinstance(answer, Exception):
                self._failing.discard(_name(receiver))
        return answers

    def _log_robust_failure(self, receiver: Any, err: Exception) -> None:
        """Take the place of Django's, which logs each failure."""
        name = _name(receiver)
        if name not in self._failing:
            self._failing.add(name)
            logger.error("audit receiver failed receiver=%s", name, exc_info=err)


def _name(receiver: Any) -> str:
    named = receiver if hasattr(receiver, "__qualname__") else type(receiver)
    return f"{named.__module__}.{named.__qualname__}"


# Sent for each transition, after its commit, with one argument ``event``: an AuditEvent.
audit_event = _AuditSignal()
