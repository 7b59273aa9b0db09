"""A schedule's ledger as its page tells it: what became of each tick, newest first.

Claims of ticks and stretches of missed ones, merged; it answers why a schedule did not run at two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db.models import OuterRef, QuerySet, Subquery
from django.utils.translation import gettext as _

from ..catchup import DOWNTIME, EDITED, GONE, PAUSED
from ..models import Job, Schedule, TickClaim, TickGap
from ..namespaces import database
from ..states import State, TickOutcome
from ..ticks import recurrence_of_gap
from ..ticks.deciding import DEADLINE, OVERLAP
from . import shown

MOST_LINES = 50
# How many missed ticks of one stretch are offered to be made up for, the newest.
MOST_TICKS = 200
_INSTANT = datetime.resolution


@dataclass(slots=True)
class Line:
    """One line of the ledger; ``make_up`` names the form field that asks for a missed tick."""

    at: Any
    until: Any
    outcome: str
    told: str
    job: Any = None
    job_state: str = ""
    make_up: tuple[str, str] | None = None


def reason_in_words(reason: str) -> str:
    """Tell why a tick did not become a job; an unknown reason as it is stored."""
    words = {
        OVERLAP: _("the run before it was not over"),
        DEADLINE: _("it could not be fired in time"),
        PAUSED: _("the schedule was paused"),
        DOWNTIME: _("no worker was leading"),
        EDITED: _("the schedule was edited before it could fire"),
        GONE: _("the schedule was gone from the code before it could fire"),
    }
    return words.get(reason, reason)


def with_job_state(claims: QuerySet[Any]) -> QuerySet[Any]:
    """Add ``job_state``: None where the job is gone, whatever the claim says."""
    job = Job.objects.filter(pk=OuterRef("job_id")).values("state")[:1]
    annotated: QuerySet[Any] = claims.annotate(job_state=Subquery(job))
    return annotated


def state_of(job_state: str) -> str:
    """Show the state of a job; the stored word where it is none that we know."""
    label = State(job_state).label if job_state in State.values else job_state
    return shown.state(job_state, label)


def lines_of(row: Schedule, until: datetime | None = None) -> tuple[list[Line], datetime | None]:
    """Return the newest lines (from ``until`` back), and where the older ones begin, if any."""
    alias, own = database(), {"namespace": row.namespace, "name": row.name}
    claims = TickClaim.objects.using(alias).filter(**own).order_by("-scheduled_at")
    gaps = TickGap.objects.using(alias).filter(**own).order_by("-first", "-pk")
    if until is not None:
        claims, gaps = claims.filter(scheduled_at__lte=until), gaps.filter(first__lte=until)
    found: list[tuple[datetime, Any]] = [
        *((each.scheduled_at, each) for each in with_job_state(claims)[: MOST_LINES + 1]),
        *((each.first, each) for each in gaps[: MOST_LINES + 1]),
    ]
    found.sort(key=lambda pair: pair[0], reverse=True)
    zone = shown.zone_of(row.timezone)
    lines = [_line(each, zone) for _at, each in found[:MOST_LINES]]
    return lines, found[MOST_LINES][0] if len(found) > MOST_LINES else None


def _line(each: Any, zone: Any) -> Line:
    if isinstance(each, TickGap):
        several = each.count > 1
        return Line(
            at=shown.moment(each.first, zone),
            until=shown.moment(each.last, zone) if several else None,
            outcome=shown.state("missed", _("missed")),
            told=(_("%(count)d ticks: ") % {"count": each.count} if several else "")
            + reason_in_words(each.reason),
            make_up=("gap", str(each.pk)),
        )
    skipped = each.outcome == TickOutcome.SKIPPED
    return Line(
        at=shown.moment(each.scheduled_at, zone),
        until=None,
        outcome=shown.state(f"tick{each.outcome}", each.get_outcome_display()),
        told=reason_in_words(each.reason),
        job=each.job_id,
        job_state=state_of(each.job_state) if each.job_state else "",
        make_up=("tick", each.scheduled_at.isoformat()) if skipped else None,
    )


def ticks_of_gap(row: Schedule, gap: TickGap) -> tuple[Sequence[datetime], bool]:
    """Return the ticks of a stretch that can be made up for, newest first, and whether there are
    older ones.
    """
    rule = recurrence_of_gap(gap)
    if rule is None:
        return [], False
    claimed = TickClaim.objects.using(database()).filter(namespace=row.namespace, name=row.name)
    taken = {
        at.astimezone(UTC)
        for at in claimed.filter(scheduled_at__gte=gap.first, scheduled_at__lte=gap.last)
        .exclude(outcome=TickOutcome.SKIPPED)
        .values_list("scheduled_at", flat=True)[:10_000]
    }
    found: list[datetime] = []
    tick = rule.last_fire(gap.first - _INSTANT, gap.last)
    while tick is not None and len(found) < MOST_TICKS:
        if tick not in taken:
            found.append(tick)
        tick = rule.last_fire(gap.first - _INSTANT, tick - _INSTANT)
    return found, tick is not None
