"""What the overview says in words: workers, what comes next, what failed, what is stuck."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.contrib import admin
from django.db.models import Count, Q
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from .. import figures
from ..conf import settings
from ..loops.records import loop_models
from ..models import Leader, Namespace, Schedule, Worker
from ..states import HeldReason, InterruptionReason, State
from . import shown
from .base import link_to_job, may

MOST_WORKERS = 50
_MOST_LINES = 8
_MOST_ERRORS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What is looked at, when, and by whom. ``row`` is None where nothing was ever put in."""

    namespace: str
    row: Namespace | None
    now: datetime
    using: str
    site: admin.AdminSite
    request: HttpRequest

    def may(self, codename: str) -> bool:
        return may(self.request, codename)

    def link(self, model: Any, pk: Any, text: SafeString | str) -> SafeString | str:
        """Link something to its page, where the site has one that this user may see."""
        registered = self.site._registry.get(model)
        if registered is None or not registered.has_view_permission(self.request):
            return text
        name = f"{self.site.name}:{model._meta.app_label}_{model._meta.model_name}_change"
        return format_html('<a href="{}">{}</a>', reverse(name, args=[pk]), text)


def parts_of(scope: Scope) -> dict[str, Any]:
    """Return what the page says, without the parts that this user may not see."""
    workers = list(_workers(scope))
    live = [each for each in workers if _lives(each, scope.now)]
    said: dict[str, Any] = {"paused": scope.row if scope.row and scope.row.paused_at else None}
    waits = None
    if scope.may("view_job"):
        waits = figures.backlog(scope.namespace, scope.now, using=scope.using)
        said |= {"waits": waits, "failed": _failed(scope), "undecided": _undecided(scope)}
        said["stuck"] = list(_stuck(scope, waits, live))
        said["oldest_due"] = shown.span(waits.oldest, scope.now)
    if scope.may("view_worker"):
        said |= {"workers": _told(scope, workers), "leader": _leader(scope, live)}
        said["start_command"] = _command(scope.namespace)
        said["nobody"] = not any(each.state == Worker.Status.RUNNING for each in live)
        said["ill"] = list(_ill(live))
    if waits is not None or scope.may("view_schedule"):
        said["next"] = _next(scope, waits.soon if waits else ())
    if scope.may("view_schedule"):
        said["schedules"] = _schedules(scope)
    said["loops"] = list(_loops(scope))
    told = ("failed", "schedules")
    said["told_of_failures"] = any(name in said for name in told) or bool(said["loops"])
    return said


# Workers


def _workers(scope: Scope) -> Iterable[Worker]:
    states = [Worker.Status.RUNNING, Worker.Status.DRAINING]
    rows = Worker.objects.using(scope.using).filter(namespace=scope.namespace, state__in=states)
    return rows.order_by("-heartbeat_at")[:MOST_WORKERS]


def _lives(worker: Worker, now: datetime) -> bool:
    return bool((now - worker.heartbeat_at).total_seconds() <= settings.LEASE)


def _told(scope: Scope, workers: Iterable[Worker]) -> list[dict[str, Any]]:
    return [
        {
            "name": scope.link(Worker, worker.pk, str(worker)),
            "state": _state(worker, scope.now),
            "slots": f"{worker.active} / {worker.concurrency}",
            "seen": _ago(worker.heartbeat_at, scope.now),
        }
        for worker in sorted(workers, key=lambda each: (each.started_at, each.pk))
    ]


def _state(worker: Worker, now: datetime) -> SafeString:
    if not _lives(worker, now):
        return shown.state("lost", _("no heartbeat"))
    if not worker.healthy:
        return shown.state("failed", _("unhealthy"))
    return shown.state(worker.state, worker.get_state_display())


def _ago(at: datetime, now: datetime) -> str:
    return _("%(time)s ago") % {"time": _about(max((now - at).total_seconds(), 1))}


def _leader(scope: Scope, live: Iterable[Worker]) -> dict[str, Any] | None:
    """Tell who fires the schedules; None where nobody does.

    ``until`` is set where its worker is gone, and another may take over from then on only.
    """
    rows = Leader.objects.using(scope.using).filter(pk=scope.namespace, worker__isnull=False)
    row = rows.first()
    if row is None or row.expires_at is None or row.expires_at <= scope.now:
        return None
    worker = next((each for each in live if each.pk == row.worker), None)
    if worker is None:
        return {"until": clock_time(row.expires_at, scope.now)}
    since = clock_time(row.acquired_at, scope.now)
    return {"name": scope.link(Worker, worker.pk, str(worker)), "since": since}


def _command(namespace: str) -> str:
    chosen = "" if namespace == settings.NAMESPACE else f" --namespace {namespace}"
    return f"python manage.py runscheduler{chosen}"


def _ill(live: Iterable[Worker]) -> Iterator[SafeString]:
    for worker in live:
        if not worker.healthy:
            told = shown.plain_text(worker.error, secrets=False)
            yield format_html("{}: {} {}", worker, _("in trouble with the database."), told)
        if worker.stuck:
            text = ngettext(
                "%(count)d thread does not stop: its handler ran past its time limit.",
                "%(count)d threads do not stop: their handlers ran past their time limit.",
                worker.stuck,
            )
            yield format_html("{}: {}", worker, text % {"count": worker.stuck})


# What comes next


class Line(NamedTuple):
    """One thing that comes next: a job of a type (and how many of it wait), or a schedule."""

    at: datetime
    link: SafeString | str
    type: str = ""
    held: str = ""
    number: int = 1


def _next(scope: Scope, soon: Iterable[figures.Soon]) -> list[dict[str, Any]]:
    """Tell what becomes due next, schedules and jobs together."""
    lines = [
        Line(job.at, link_to_job(scope.site, job.job), job.type, job.held, job.count)
        for job in soon
    ]
    if scope.may("view_schedule"):
        rows = _schedule_rows(scope).filter(paused_at__isnull=True, next_fire__isnull=False)
        lines += [
            Line(row.next_fire, scope.link(Schedule, row.pk, shown.isolated(row.name)))
            for row in rows.order_by("next_fire")[:_MOST_LINES]
        ]
    lines.sort(key=lambda line: line.at)
    return [
        line._asdict()
        | {
            "at": clock_time(line.at, scope.now),
            "ahead": _ahead(line.at, scope.now),
            "note": dict(HeldReason.choices).get(line.held, ""),
        }
        for line in lines[:_MOST_LINES]
    ]


def _ahead(at: datetime, now: datetime) -> str:
    seconds = (at - now).total_seconds()
    if seconds < -1:
        return _("overdue for %(time)s") % {"time": _about(-seconds)}
    return _("in %(time)s") % {"time": _about(max(seconds, 1))}


def _about(seconds: float) -> str:
    """Tell a time to wait in whole units."""
    for limit, unit, text in (
        (120, 1, _("%(number)s s")),
        (7_200, 60, _("%(number)s min")),
        (172_800, 3_600, _("%(number)s h")),
    ):
        if seconds < limit:
            return text % {"number": round(seconds / unit)}
    return _("%(number)s d") % {"number": round(seconds / 86_400)}


def clock_time(at: datetime | None, now: datetime) -> SafeString | str:
    """Show a time, with its date where that is not today's, and its instant in UTC behind it."""
    if at is None:
        return "-"
    here = shown.local(at)
    today = here.date() == shown.local(now).date()
    return format_html(
        '<time class="ddj-nowrap" datetime="{}" title="{}">{}</time>',
        at.isoformat(),
        at.strftime("%Y-%m-%d %H:%M:%S.%f UTC"),
        here.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M"),
    )


# What failed


def _failed(scope: Scope) -> list[dict[str, Any]]:
    found = figures.failures(scope.namespace, using=scope.using)
    return [
        {
            "type": each.type,
            "count": each.count,
            "error": shown.cut(shown.plain_text(each.error, secrets=False), 160),
            "at": clock_time(each.at, scope.now),
            "link": link_to_job(scope.site, each.job),
            "state": shown.state(each.job_state, dict(State.choices).get(each.job_state, "")),
        }
        for each in found[:_MOST_ERRORS]
    ]


def _undecided(scope: Scope) -> dict[str, Any]:
    found = figures.undecided(scope.namespace, using=scope.using)
    return {
        "count": len(found),
        "number": counted(len(found), figures.MOST_UNDECIDED),
        "lines": [
            {
                "link": link_to_job(scope.site, each.job),
                "type": each.type,
                "why": dict(InterruptionReason.choices).get(each.reason, each.reason),
                "at": clock_time(each.at, scope.now),
            }
            for each in found[:_MOST_ERRORS]
        ],
    }


# What is stuck


_WHY = {
    "no_worker": gettext_lazy("no worker is alive that could run them."),
    "no_handler": gettext_lazy("no live worker knows their type: its code is not deployed."),
    "no_queue": gettext_lazy("no live worker that knows their type serves their queue."),
    "not_eligible": gettext_lazy("their can_run says not now; they are asked again."),
    "retry": gettext_lazy("they failed, and wait for their retry."),
    "owner_full": gettext_lazy("their owners run as many as OWNER_CONCURRENCY allows."),
    "namespace_full": gettext_lazy("the namespace runs as many as GLOBAL_CONCURRENCY allows."),
    "busy": gettext_lazy("all slots are taken: more workers, or more slots, would take them."),
}


def _stuck(
    scope: Scope, waits: figures.Backlog, live: Iterable[Worker]
) -> Iterator[dict[str, Any]]:
    """Tell what keeps due jobs from running, and how many each."""
    taking = [each for each in live if each.state == Worker.Status.RUNNING]
    for reason in figures.reasons(waits, taking, scope.now):
        yield {
            "count": counted(reason.count, figures.MOST_WAITING),
            "why": _WHY[reason.code],
            "names": [name or _("no owner") for name in reason.names],
        }
    if waits.silent:
        why = _("their lease ran out: a live worker will mark them as interrupted.")
        yield {"count": f"{waits.silent:,}", "why": why, "names": []}


def counted(number: int, most: int) -> str:
    """Tell a number that was counted to ``most``."""
    if number < most:
        return f"{number:,}"
    return _("%(number)s or more") % {"number": f"{most:,}"}


# What recurs


def _schedule_rows(scope: Scope) -> Any:
    rows = Schedule.objects.using(scope.using)
    return rows.filter(namespace=scope.namespace, retired_at__isnull=True)


def _schedules(scope: Scope) -> dict[str, Any]:
    """Count the schedules, and show those whose last run failed."""
    rows = _schedule_rows(scope)
    failing = ~Q(last_error="")
    counts: dict[str, Any] = rows.aggregate(
        total=Count("pk"),
        paused=Count("pk", filter=Q(paused_at__isnull=False)),
        running=Count("pk", filter=Q(running=True)),
        failing=Count("pk", filter=failing),
    )
    failed = rows.filter(failing).order_by("-last_finish")[:_MOST_ERRORS]
    counts["lines"] = [
        {
            "link": scope.link(Schedule, row.pk, shown.isolated(row.name)),
            "error": shown.cut(shown.plain_text(row.last_error, secrets=False)),
            "at": clock_time(row.last_finish, scope.now),
        }
        for row in (failed if counts["failing"] else ())
    ]
    return counts


def _loops(scope: Scope) -> Iterator[dict[str, Any]]:
    """Show the records that have an error, of each table that this user may view.

    They have no namespace. No index finds them: a table of some hundred thousand is read through.
    """
    for model in loop_models():
        options = model._meta
        if not scope.request.user.has_perm(f"{options.app_label}.view_{options.model_name}"):
            continue
        rows = model._default_manager.exclude(last_error="")
        lines = [
            {
                "link": scope.link(model, row.pk, shown.isolated(row)),
                "error": shown.cut(shown.plain_text(row.last_error, secrets=False)),
            }
            for row in rows[: _MOST_ERRORS + 1]
        ]
        if lines:
            more = len(lines) > _MOST_ERRORS
            name = options.verbose_name_plural
            yield {"name": name, "lines": lines[:_MOST_ERRORS], "more": more}
