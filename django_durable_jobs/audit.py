"""The audit trail: what happened is told to a signal and to a logger, once it is committed."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeAlias
from uuid import UUID

from django.db import connections
from django.db.transaction import atomic, on_commit

from .conf import settings
from .signals import audit_event
from .signals import logger as troubles

logger = logging.getLogger(__name__)  # django_durable_jobs.audit

SUCCESS, FAILURE, DENIED = "success", "failure", "denied"

_SPECIAL = re.compile(r"""[ "=\\]""")
_FAILURES = ("job.failed", "job.interrupted")
_PLAIN = (str, int, float, bool)


@dataclass(frozen=True, slots=True, eq=False)
class AuditEvent:
    """One transition that is committed.

    ``outcome`` is "success", "failure" or "denied"; ``reason`` is "" where there is none.
    ``metadata`` is JSON (ids as text) and never holds a payload; ``at`` is by this host's clock.
    """

    action: str
    outcome: str = SUCCESS
    reason: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __str__(self) -> str:
        """Return the event as one line, whatever is in its texts."""
        told = {"outcome": self.outcome, "reason": self.reason, **self.metadata}
        pairs = (f"{name}={_word(value)}" for name, value in told.items() if value != "")
        return " ".join((self.action, *pairs))


Put: TypeAlias = Callable[[Sequence[AuditEvent]], object]


# Who tells of what is sent in a context; None: whoever sends it. A worker has a thread for it.
messenger: ContextVar[Put | None] = ContextVar("messenger", default=None)


def audited() -> bool:
    """Tell whether anybody would hear of an event; cheap, to be asked before making one."""
    # The list alone may hold receivers that are gone.
    heard = audit_event.receivers and audit_event.has_listeners(AuditEvent)
    return bool(heard or logger.isEnabledFor(logging.INFO)) and settings.AUDIT


def audit(
    action: str,
    *,
    outcome: str = SUCCESS,
    reason: str = "",
    metadata: Mapping[str, Any] | None = None,
    using: str | None = None,
) -> None:
    """Send one event: at once, or with ``using`` when that connection's transaction commits.

    Values of ``metadata`` become JSON: ids their text, times ISO 8601; None is left out. Never
    put a payload in. Where nobody hears nothing is sent; ask ``audited`` before you go to any
    length for metadata. What receivers raise goes to the log, never to the caller.
    """
    if audited():
        send([event(action, outcome=outcome, reason=reason, metadata=metadata)], using=using)


def event(
    action: str,
    *,
    outcome: str = SUCCESS,
    reason: str = "",
    metadata: Mapping[str, Any] | None = None,
) -> AuditEvent:
    """Return an event, to be sent with others by ``send``."""
    told = {name: _json(value) for name, value in (metadata or {}).items() if value is not None}
    return AuditEvent(action, outcome, reason, told)


def job_event(
    action: str,
    *,
    job_id: UUID,
    type: str | None,
    owner_id: str | None,
    claim_id: UUID | None = None,
    attempt: int | None = None,
    reason: str = "",
    **more: Any,
) -> AuditEvent:
    """Return an event of one job."""
    told: dict[str, Any] = {"job_id": str(job_id)}
    if type is not None:
        told["type"] = type
    if owner_id is not None:
        told["owner_id"] = owner_id
    if claim_id is not None:
        told["claim_id"] = str(claim_id)
    if attempt is not None:
        told["attempt"] = attempt
    for name, value in more.items():
        if value is not None:
            told[name] = _json(value)
    return AuditEvent(action, FAILURE if action in _FAILURES else SUCCESS, reason, told)


def send(events: Sequence[AuditEvent], *, using: str | None = None) -> None:
    """Send events in their order: at once, or when the connection's transaction commits."""
    if not events:
        return
    if using is None:
        _put(events)
    elif connections[using].in_atomic_block or connections[using].get_autocommit():
        on_commit(partial(_put, events), using=using, robust=True)
    else:
        # Out of autocommit and of atomic() Django takes no hook, though it would call it: once the
        # project has committed and turned autocommit on again.
        with atomic(using=using, savepoint=False):
            on_commit(partial(_put, events), using=using, robust=True)


@contextmanager
def sent_by(put: Put | None) -> Iterator[None]:
    """Have what is sent in here given to ``put`` instead, so that no receiver holds it up."""
    token = messenger.set(put)
    try:
        yield
    finally:
        messenger.reset(token)


def tell(events: Sequence[AuditEvent]) -> None:
    """Log events and call the receivers, in this thread, whatever these raise."""
    for each in events:
        for way in (_log, _signal):
            try:
                way(each)
            except Exception as error:  # a filter of logging's, an event loop in the way
                with suppress(Exception):
                    troubles.error("audit event not told action=%s", each.action, exc_info=error)


def _log(event: AuditEvent) -> None:
    if logger.isEnabledFor(logging.INFO):
        logger.info("%s", event, extra=_extra(event))


def _signal(event: AuditEvent) -> None:
    audit_event.send_robust(AuditEvent, event=event)


def _put(events: Sequence[AuditEvent]) -> None:
    (messenger.get() or tell)(events)


def _extra(event: AuditEvent) -> dict[str, Any]:
    """Return what formatters find as attributes of the log's record, for JSON and the like."""
    return {
        "action": event.action,
        "outcome": event.outcome,
        "reason": event.reason,
        "metadata": event.metadata,
        "at": event.at.isoformat(),
    }


def _json(value: Any) -> Any:
    """Return a value of metadata as JSON has it."""
    if isinstance(value, datetime):
        return value.isoformat()
    return value if type(value) in _PLAIN else str(value)


def _word(value: object) -> str:
    """Return a value as it stands behind an equals sign: quoted where it is not one plain word."""
    text = value if isinstance(value, str) else json.dumps(value)
    plain = text.isprintable()
    if plain and not _SPECIAL.search(text):
        return text
    return json.dumps(text, ensure_ascii=not plain)
