"""Writing down what the code declares, so that all workers agree on the ticks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import translation

from ..catchup import EDITED, GONE
from ..db import NewTick, current_clock, statements_for
from ..models import Schedule
from ..registry import Declaration
from ..states import TickOutcome
from .courses import anchor_of, course_of, course_of_row, first_fire
from .firing import locked
from .ledger import note_gaps

_COLUMNS = (
    *("kind", "when", "timezone", "rule", "declared_at", "retired_at"),
    *("anchor", "next_fire", "waiting"),
)
_PART = 500


def declare(
    connection: BaseDatabaseWrapper, namespace: str, declarations: Mapping[str, Declaration]
) -> None:
    """Store the declarations, in the leader's transaction; in the steady state nothing is written.

    An edited schedule has its next tick behind now. One that is gone from the code has none any
    more; ``retire`` marks it, once that is certain. What was due before that is in the ledger.
    """
    now = current_clock().now(connection)
    schedules = Schedule.objects.using(connection.alias).filter(namespace=namespace)
    rows = {row.name: row for row in schedules}
    new = [
        _declared(Schedule(namespace=namespace, name=name), declaration, now)
        for name, declaration in declarations.items()
        if name not in rows
    ]
    others = [row.pk for row in rows.values() if not _is_current(row, declarations, now)]
    # Locked: another worker's process may resume one meanwhile, or fire it by hand.
    changed = list(locked(connection, others)) if others else []
    _leave(connection, namespace, changed, declarations, now)
    for row in changed:
        if row.name in declarations:
            _declared(row, declarations[row.name], now)
        else:
            row.next_fire = row.waiting = None
    Schedule.objects.using(connection.alias).bulk_update(changed, _COLUMNS, batch_size=_PART)
    Schedule.objects.using(connection.alias).bulk_create(new, batch_size=_PART)


def retire(
    connection: BaseDatabaseWrapper, namespace: str, declarations: Mapping[str, Declaration]
) -> None:
    """Mark schedules that are gone from the code, in the leader's transaction."""
    schedules = Schedule.objects.using(connection.alias).filter(namespace=namespace)
    names = schedules.filter(retired_at__isnull=True).values_list("pk", "name")
    gone = [pk for pk, name in names if name not in declarations]
    now = current_clock().now(connection)
    for start in range(0, len(gone), _PART):
        schedules.filter(pk__in=gone[start : start + _PART]).update(retired_at=now)


def _is_current(row: Schedule, declarations: Mapping[str, Declaration], now: datetime) -> bool:
    declaration = declarations.get(row.name)
    if declaration is None:
        return row.next_fire is None and row.waiting is None
    if row.retired_at is not None or row.rule != declaration.rule:
        return False
    # One without a next tick was gone from the code for a while, or is over.
    over = row.next_fire is None and _first_fire(row, declaration, now) is None
    return over or row.next_fire is not None


def _leave(
    connection: BaseDatabaseWrapper,
    namespace: str,
    rows: Sequence[Schedule],
    declarations: Mapping[str, Declaration],
    now: datetime,
) -> None:
    """Write down that what was due by the rules that these rows have so far does not fire."""
    skips, missed = [], []
    for row in rows:
        reason = EDITED if row.name in declarations else GONE
        if row.waiting is not None:
            skips.append(NewTick(row.name, row.waiting, None, TickOutcome.SKIPPED, reason))
        first = row.next_fire
        if first is not None and first <= now and (course := course_of_row(row)) is not None:
            pauses = {"paused_at": row.paused_at, "resumed_at": row.resumed_at}
            gaps = course.missed(first, now, reason, **pauses)
            missed += [(row, course, gap) for gap in gaps]
    statements_for(connection).claim_ticks(namespace, None, skips)
    if missed:
        note_gaps(connection, namespace, missed)


def _declared(row: Schedule, declaration: Declaration, now: datetime) -> Schedule:
    """Return the row as the declaration has it from now on."""
    with translation.override(None):  # stored words are nobody's language
        when = declaration.when[:512]
    if row.anchor is None or row.when != when or declaration.start is not None:
        row.anchor = anchor_of(declaration, now)
    row.kind, row.when, row.timezone = declaration.kind, when, declaration.timezone
    row.rule, row.declared_at, row.retired_at = declaration.rule, now, None
    row.next_fire = _first_fire(row, declaration, now)
    row.waiting = None
    return row


def _first_fire(row: Schedule, declaration: Declaration, now: datetime) -> datetime | None:
    return first_fire(declaration, course_of(declaration, row.anchor), now)
