"""The overview's numbers and plots, each with its figures as a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from django.urls import reverse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from .. import figures
from ..models import Job, Worker
from ..states import State
from . import plots, shown
from .overviewparts import Scope, counted

_MOST_OWNERS = 10


def figures_of(scope: Scope, span: figures.Span, waits: figures.Backlog | None) -> dict[str, Any]:
    """Return the tiles, the plots and the lanes, without what this user may not see."""
    drawn: dict[str, Any] = {}
    recent = None
    if scope.may("view_execution"):
        recent = figures.recent(scope.namespace, span, using=scope.using)
        drawn |= {"plots": _plots(recent), "covers": _covers(recent)}
        if scope.may("view_worker"):
            drawn["lanes"] = [_lane(scope, lane, recent) for lane in recent.lanes]
            drawn |= {"lanes_left_out": recent.lanes_left_out, "lane_times": _lane_times(recent)}
    if waits is not None:
        drawn |= {"owners": _owners(waits), "owners_left_out": _left_out(waits)}
    drawn["tiles"] = list(_tiles(scope, waits, recent))
    return drawn


def _covers(recent: figures.Recent) -> str:
    """Say so where not all of the span was looked at."""
    if recent.covered_from is None:
        return ""
    return _(
        "These figures are of the newest %(count)s executions, and so of what was claimed since"
        " %(time)s only; the rest of the time is shaded."
    ) % {"count": f"{figures.NEWEST:,}", "time": f"{shown.local(recent.covered_from):%H:%M:%S}"}


# Counts


def _tiles(
    scope: Scope, waits: figures.Backlog | None, recent: figures.Recent | None
) -> Iterator[dict[str, Any]]:
    """Yield a number for each state: what lives as it is now, what ended as it was in the span."""
    if waits is not None:
        yield _tile(scope, "queued", _("due"), counted(waits.due, figures.MOST_WAITING))
        yield _tile(scope, "queued", _("for later"), counted(waits.later, figures.MOST_SOON))
        for state in State.CLAIMED, State.RUNNING:
            yield _tile(scope, state, state.label, f"{waits.active[state.value]:,}")
    if recent is not None:
        ended = recent.ended
        for state in State.COMPLETED, State.FAILED, State.INTERRUPTED:
            yield _tile(scope, state, state.label, f"{ended[state.value]:,}", in_span=True)


def _tile(
    scope: Scope, state: str, label: Any, number: str, *, in_span: bool = False
) -> dict[str, Any]:
    url = ""
    if scope.site.is_registered(Job) and scope.may("view_job"):
        name = f"{scope.site.name}:django_durable_jobs_job_changelist"
        url = f"{reverse(name)}?state__exact={state}"
    return {"label": shown.state(str(state), label), "number": number, "url": url,
            "in_span": in_span}  # fmt: skip


# Plots


def _plots(recent: figures.Recent) -> list[dict[str, Any]]:
    buckets = recent.buckets

    def frame(id: str, title: str, description: str) -> plots.Frame:
        return plots.Frame(
            id=f"ddj-plot-{id}",
            title=title,
            description=description,
            starts=[each.start for each in buckets],
            bucket=recent.span.bucket,
            covered=[each.covered for each in buckets],
        )

    ended = recent.ended
    total = _("%(completed)s completed, %(failed)s failed, %(interrupted)s interrupted") % {
        name: f"{ended[name]:,}" for name in ("completed", "failed", "interrupted")
    }
    outcomes = [
        plots.Series(state.value, state.label, [each.ended[state.value] for each in buckets])
        for state in (State.COMPLETED, State.FAILED, State.INTERRUPTED)
    ]
    found = [
        {
            "id": "ended",
            "title": _("Ended per minute"),
            "total": total,
            "svg": ended.total()
            and plots.bars(frame("ended", _("Executions that ended, per minute"), total), outcomes),
            "legend": [(each.kind, each.label) for each in outcomes],
            "heads": [each.label for each in outcomes],
            "rows": [
                (_start(each.start), list(each.ended.values()))
                for each in buckets
                if any(each.ended.values())
            ],
            "none": _("Nothing ended in this time."),
        }
    ]
    for id, title, longer, none in (
        ("waiting", _("Waiting time"), _("From the time a job could be claimed until it began"),
         _("Nothing began in this time.")),
        ("running", _("Run time"), _("From an execution's beginning to its end"),
         _("Nothing ended in this time.")),
    ):  # fmt: skip
        spreads = [getattr(each, id) for each in buckets]
        whole = getattr(recent, id)
        found.append(_durations(frame(id, longer, _spread(whole)), title, spreads, none))
    return found


def _durations(
    frame: plots.Frame, title: str, spreads: list[figures.Spread | None], none: str
) -> dict[str, Any]:
    series = [
        plots.Series(
            "p50", _("half took at most (p50)"), [each.p50 if each else None for each in spreads]
        ),
        plots.Series(
            "p95", _("95 % took at most (p95)"), [each.p95 if each else None for each in spreads]
        ),
    ]
    return {
        "id": frame.id.rpartition("-")[2],
        "title": title,
        "total": frame.description,
        "svg": any(spreads) and plots.lines(frame, series),
        "legend": [(each.kind, each.label) for each in series],
        "heads": ["p50", "p95", _("executions")],
        "rows": [
            (_start(at), [shown.duration(each.p50), shown.duration(each.p95), each.count])
            for at, each in zip(frame.starts, spreads, strict=True)
            if each is not None
        ],
        "none": none,
    }


def _spread(spread: figures.Spread | None) -> str:
    if spread is None:
        return ""
    return _("p50 %(p50)s, p95 %(p95)s") % {
        "p50": shown.duration(spread.p50), "p95": shown.duration(spread.p95),
    }  # fmt: skip


def _start(at: datetime) -> str:
    return f"{shown.local(at):%H:%M}"


# Who, and where


def _left_out(waits: figures.Backlog) -> int:
    return max(len(waits.owners) - _MOST_OWNERS, 0) + waits.owners_left_out


def _owners(waits: figures.Backlog) -> list[dict[str, Any]]:
    chosen = waits.owners[:_MOST_OWNERS]
    most = max((each.due + each.active for each in chosen), default=0)
    return [
        {
            "name": each.owner,
            "due": f"{each.due:,}",
            "active": f"{each.active:,}",
            "bar": plots.share_bar(each.due, each.active, most),
        }
        for each in chosen
    ]


def _lane(scope: Scope, lane: figures.Lane, recent: figures.Recent) -> dict[str, Any]:
    name: SafeString | str = lane.name or shown.short_id(lane.worker)
    ended = [run for run in lane.runs if run.end is not None]
    failed = sum(run.state in ("failed", "interrupted") for run in ended)
    return {
        "name": scope.link(Worker, lane.worker, name) if lane.name else name,
        "svg": plots.lane(lane, recent.start, recent.now),
        "ended": f"{len(ended):,}",
        "failed": f"{failed:,}",
        "running": f"{len(lane.runs) - len(ended):,}",
    }


def _lane_times(recent: figures.Recent) -> Iterable[str]:
    middle = recent.start + (recent.now - recent.start) / 2
    return [_start(recent.start), _start(middle), _("now")]
