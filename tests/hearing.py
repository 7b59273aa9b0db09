"""Somebody who hears the audit trail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from django_durable_jobs.audit import AuditEvent
from django_durable_jobs.signals import audit_event


@contextmanager
def connected(receiver: Callable[..., Any]) -> Iterator[None]:
    """Connect a receiver for as long as the ``with`` lasts."""
    audit_event.connect(receiver)
    try:
        yield
    finally:
        audit_event.disconnect(receiver)


class Ear:
    """A receiver that keeps every event, connected for as long as the ``with`` lasts."""

    def __init__(self) -> None:
        self.events: list[AuditEvent] = []

    def __enter__(self) -> Self:
        audit_event.connect(self._hear)
        return self

    def __exit__(self, *error: object) -> None:
        audit_event.disconnect(self._hear)

    def _hear(self, event: AuditEvent, **kwargs: Any) -> None:
        self.events.append(event)

    @property
    def actions(self) -> list[str]:
        """What was heard of, in its order."""
        return [event.action for event in self.events]

    def of(self, job: Any) -> list[AuditEvent]:
        """What was heard of one job."""
        id = str(getattr(job, "pk", job))
        return [event for event in self.events if event.metadata.get("job_id") == id]
