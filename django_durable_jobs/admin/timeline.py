"""A job's executions, as its page tells them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db.models import CharField, OuterRef, Q, QuerySet, Subquery, Value
from django.db.models.functions import Cast, Concat
from django.utils.translation import gettext as _

from ..models import Execution, Worker
from ..namespaces import database
from ..states import ENDED_AT, ExecutionState
from . import shown
from .base import as_texts

JSON_COLUMNS = ("metadata", "receipt", "result", "progress")
MOST_ATTEMPTS = 50
MOST_SAID = 500  # characters of what a handler says of its progress


@dataclass(slots=True)
class Attempt:
    """One execution, ready to be shown."""

    execution: Any
    state: str
    worker: str
    claimed: str
    waited: str
    ran: str
    ended: str
    reason: str
    error: str
    resolved: str
    texts: list[tuple[str, str]]


def with_worker(executions: QuerySet[Any]) -> QuerySet[Any]:
    """Add ``worker_name``; not by a join, which would lose those whose worker was pruned."""
    named = Concat("host", Value(":"), Cast("pid", CharField(max_length=20)))
    workers = Worker.objects.filter(pk=OuterRef("worker_id")).values(name=named)
    name = Subquery(workers[:1], output_field=CharField())
    named_ones: QuerySet[Any] = executions.annotate(worker_name=name)
    return named_ones


def ended_at(execution: Any) -> datetime | None:
    column = ENDED_AT.get(execution.state)
    return getattr(execution, column) if column else None


def reason_of(execution: Any) -> str:
    """Tell why an execution was interrupted, in words and by its code."""
    code = execution.interruption_reason
    return f"{execution.get_interruption_reason_display()} ({code})" if code else ""


def progress_of(text: str | None) -> str:
    """Tell how far a handler says it is."""
    try:
        value = json.loads(text or "null")
        done, total = value["done"], value["total"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""
    message = str(value.get("message") or "")
    said = _("%(done)s of %(total)s") % {"done": done, "total": total}
    return f"{said}: {message}" if message else said


def texts_of(execution: Any, *, payloads: bool, secrets: bool) -> Iterator[tuple[str, str]]:
    """Yield (label, text) for what the execution holds; nothing of it without ``payloads``."""
    if not payloads:
        return
    for label, text in (
        (_("result"), execution.result_text),
        (_("receipt"), execution.receipt_text),
        (_("metadata"), execution.metadata_text),
    ):
        if text is not None:
            yield label, shown.block(shown.json_text(text, secrets=secrets), label)
    if execution.traceback:
        text = shown.plain_text(execution.traceback, secrets=secrets)
        yield _("traceback"), shown.block(text, _("traceback"))


def attempts_of(which: Q, *, payloads: bool, secrets: bool) -> list[Attempt]:
    """Return the executions, newest first, MOST_ATTEMPTS at most."""
    rows = Execution.objects.using(database()).filter(which).defer(*JSON_COLUMNS)
    rows = with_worker(rows.annotate(**as_texts(JSON_COLUMNS))).order_by("-pk")
    return [_attempt(row, payloads, secrets) for row in rows[:MOST_ATTEMPTS]]


def _attempt(row: Any, payloads: bool, secrets: bool) -> Attempt:
    end = ended_at(row)
    resolved = ""
    if row.resolved_at:
        resolved = _("Resolved by %(by)s: %(note)s") % {
            "by": row.resolved_by or "-",
            "note": shown.plain_text(row.resolved_note, secrets=secrets),
        }
    return Attempt(
        execution=row,
        state=shown.state(row.state, row.get_state_display()),
        worker=row.worker_name or str(row.worker_id),
        claimed=shown.moment(row.claimed_at),
        waited=shown.span(row.claimed_at, row.started_at),
        ran=_ran(row, end),
        ended=shown.moment(end),
        reason=reason_of(row) or shown.plain_text(_progress(row), secrets=secrets)[:MOST_SAID],
        error=shown.plain_text(row.error, secrets=secrets),
        resolved=resolved,
        texts=list(texts_of(row, payloads=payloads, secrets=secrets)),
    )


def _ran(row: Any, end: datetime | None) -> str:
    if row.state == ExecutionState.RUNNING:
        return _("%(time)s so far") % {"time": shown.span(row.started_at, datetime.now(UTC))}
    return shown.span(row.started_at, end)


def _progress(row: Any) -> str:
    return progress_of(row.progress_text) if row.state == ExecutionState.RUNNING else ""
