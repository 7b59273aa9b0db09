"""When something recurs, as pages tell it: in words, the next times, and what looks like a slip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from django.utils.dates import WEEKDAYS_ABBR
from django.utils.translation import gettext as _

from ..errors import InvalidRecurrence
from ..models import LoopRecord, Schedule
from ..recurrence import Every, PreviewLine, Recurrence, lint, preview_lines
from ..registry import Declaration
from ..ticks import course_of
from . import shown

NUMBER = 10
_INSTANT = datetime.resolution


@dataclass(slots=True)
class Line:
    """One coming time: on the clock of the rule's zone, in UTC, in how long, and a note."""

    weekday: str
    local: str
    utc: str
    ahead: str
    mark: str = ""


@dataclass(slots=True)
class Preview:
    """What a page tells of a rule; ``problem`` where it is none."""

    words: str = ""
    zone: str = ""
    lines: Sequence[Line] = ()
    slips: Sequence[str] = ()
    notes: list[str] = field(default_factory=list)
    problem: str = ""


def preview_of_schedule(row: Schedule, declaration: Declaration, now: datetime) -> Preview:
    """Preview a schedule as this process declares it, on the grid that its row keeps."""
    rule = _rule_of(declaration, row.anchor)
    after = now
    preview = Preview(words=rule.in_words(), zone=rule.zone.key, slips=_slips(rule, now))
    if row.paused_at is not None:
        preview.notes.append(_("It is paused: it fires at none of these times."))
    if row.rule != declaration.rule:
        preview.notes.append(
            _("The code here declares it in another way than the workers have it so far.")
        )
    if declaration.start is not None and declaration.start > now:
        after = declaration.start - _INSTANT
    fires = _fires(rule, after)
    end = declaration.end
    preview.lines = _lines([each for each in fires if end is None or each.utc <= end], now)
    if end is not None:
        at = shown.local(end).strftime("%Y-%m-%d %H:%M:%S")
        preview.notes.append(_("It ends at %(time)s.") % {"time": at})
    return preview


def _rule_of(declaration: Declaration, anchor: datetime | None) -> Recurrence:
    rule: Any = course_of(declaration, anchor).recurrence
    assert isinstance(rule, Recurrence)
    return rule


def preview_of_record(record: LoopRecord, now: datetime, *, edited: bool = False) -> Preview:
    """Preview a loop record as it is in memory.

    With ``edited`` its recurrence is another than the stored one: an interval counts from now.
    """
    try:
        rule = record.get_recurrence()
        preview = _of_rule(record, rule, now, edited=edited)
    except InvalidRecurrence as error:
        return Preview(problem=str(error))
    if not record.enabled:
        preview.notes.insert(0, _("It is disabled: it runs at none of these times."))
    return preview


def _of_rule(
    record: LoopRecord, rule: Recurrence | None, now: datetime, *, edited: bool
) -> Preview:
    if rule is None:
        return _single(record.next_run_at, now)
    kept = None if edited else record.next_run_at
    first = kept and kept.astimezone(UTC)
    preview = Preview(words=rule.in_words(), zone=rule.zone.key, slips=_slips(rule, now))
    if isinstance(rule, Every):
        rule = rule.with_anchor(first or now)
    fires: list[PreviewLine] = []
    if first is not None and first > now:
        fires.append(PreviewLine(first.astimezone(rule.zone), first, ""))
    elif first is not None:
        preview.notes.append(_("It is due already."))
    fires += _fires(rule, max(first or now, now))[: NUMBER - len(fires)]
    preview.lines = _lines(fires, now)
    return preview


def _single(at: datetime | None, now: datetime) -> Preview:
    if at is None:
        return Preview(
            words=_("never"),
            notes=[_("It has neither a cron expression, nor an interval, nor a time to run at.")],
        )
    here = shown.local(at)
    zone = getattr(here.tzinfo, "key", None) or "UTC"
    preview = Preview(words=_("once"), zone=zone)
    preview.lines = _lines([PreviewLine(here, at.astimezone(UTC), "")], now)
    return preview


def _fires(rule: Recurrence, after: datetime) -> list[PreviewLine]:
    """Return the next fires; as many as there are before the calendar ends."""
    try:
        return preview_lines(rule, NUMBER, after)
    except InvalidRecurrence:
        found: list[PreviewLine] = []
        try:
            while len(found) < NUMBER:
                found += preview_lines(rule, 1, found[-1].utc if found else after)
        except InvalidRecurrence:
            pass
        return found


def _slips(rule: Recurrence, now: datetime) -> list[str]:
    return [slip.message for slip in lint(rule, now)]


def _lines(fires: Sequence[PreviewLine], now: datetime) -> list[Line]:
    marks = {
        "gap": _("the clocks go forward"),
        "overlap": _("the clocks go back: this time comes twice"),
    }
    return [
        Line(
            weekday=str(WEEKDAYS_ABBR[fire.local.weekday()]),
            local=fire.local.strftime("%Y-%m-%d %H:%M:%S"),
            utc=fire.utc.strftime("%Y-%m-%d %H:%M:%S"),
            ahead=shown.span(now, fire.utc) if fire.utc > now else _("now"),
            mark=marks.get(fire.mark, ""),
        )
        for fire in fires
    ]
