"""The pages of schedules."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import connections
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..db import current_clock
from ..models import Schedule, TickGap
from ..namespaces import database
from ..registry import schedules
from . import shown
from .base import ReadOnlyAdminMixin, link_to_job, may
from .filters import NamespaceFilter, StatusFilter
from .ledger import lines_of, ticks_of_gap
from .previews import preview_of_schedule
from .scheduledeeds import FIRE, MAKE_UP, PAUSE, RESUME
from .steering import SteeringAdminMixin, moment_of


class ScheduleAdminMixin(SteeringAdminMixin, ReadOnlyAdminMixin):
    """Show schedules; pause, resume and fire them, and make up for what they missed."""

    lookups = ("status", "kind__exact", "namespace")
    deeds = (PAUSE, RESUME, FIRE)
    none_such = _("No such schedule.")
    change_form_template = "admin/django_durable_jobs/schedule/change_form.html"

    list_display = [
        "shown_name", "listed_status", "listed_when", "listed_next_fire", "listed_run",
        "listed_counts",
    ]  # fmt: skip
    list_filter = [StatusFilter, "kind", NamespaceFilter]
    search_fields = ["name"]
    search_help_text = _("The exact name of a schedule")
    actions = ["pause_selected", "resume_selected", "fire_selected"]

    readonly_fields = [
        "shown_status", "shown_paused", "shown_when", "timezone", "shown_next_fire",
        "shown_waiting", "shown_last_run", "shown_last_finish", "shown_last_error",
        "shown_last_job", "fires", "misses", "failures_in_row", "tick_claim_lost",
        "non_leader_skips", "namespace", "kind", "shown_anchor", "shown_declared_at",
        "shown_resumed_at",
    ]  # fmt: skip
    fieldsets = [
        (
            None,
            {
                "fields": [
                    "shown_status", "shown_paused", "shown_when", "timezone", "shown_next_fire",
                    "shown_waiting", "shown_last_run", "shown_last_finish", "shown_last_error",
                    "shown_last_job",
                ]
            },
        ),
        (
            _("Counted and kept"),
            {
                "classes": ["collapse"],
                "fields": [
                    "fires", "misses", "failures_in_row", "tick_claim_lost", "non_leader_skips",
                    "namespace", "kind", "shown_anchor", "shown_declared_at", "shown_resumed_at",
                ],
            },
        ),
    ]  # fmt: skip
    # What is shown only where there is something to tell.
    optional_fields = {
        "shown_paused": "paused_at",
        "shown_waiting": "waiting",
        "shown_last_error": "last_error",
    }

    # Looking

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).order_by("name", "namespace")

    def search(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        return rows.filter(name=term)

    def note_on(self, row: Any) -> str:
        if row.paused_at is not None:
            return gettext("paused")
        return gettext("running") if row.running else ""

    @admin.display(description=_("name"))
    def shown_name(self, row: Schedule) -> str:
        return shown.isolated(row.name)

    @admin.display(description=_("status"))
    def shown_status(self, row: Schedule) -> SafeString:
        """Show what is to be known first: gone, paused, running, failing."""
        if row.retired_at is not None:
            told = shown.state("gone", _("gone from the code"))
            return format_html("{} {} {}", told, _("since"), shown.moment(row.retired_at))
        if row.paused_at is not None:
            told = shown.state("paused", _("paused"))
            by = row.paused_by or _("itself")
            return format_html("{} {} {}", told, _("by"), shown.isolated(by))
        if row.running:
            return shown.state("running", _("running"))
        if row.last_error:
            return shown.state("failed", _("failed last"))
        return shown.state("idle", _("waits for its time"))

    @admin.display(description=_("status"))
    def listed_status(self, row: Schedule) -> str:
        """Show the status, since when and why it is paused, and what it failed of last."""
        told: list[SafeString | str] = [self.shown_status(row)]
        if row.paused_at is not None and row.retired_at is None:
            told.append(format_html("{} {}", _("since"), shown.moment(row.paused_at)))
            told.append(shown.cut(shown.plain_text(row.paused_reason, secrets=False), 80))
        if row.last_error:
            told.append(shown.cut(shown.plain_text(row.last_error, secrets=False), 80))
        return shown.lines(told)

    @admin.display(description=_("when"))
    def shown_when(self, row: Schedule) -> str:
        """Show the rule in words as the code here has it, else as it is stored."""
        declaration = schedules.get(row.name)
        if declaration is None:
            return shown.isolated(row.when)
        words = declaration.recurrence.in_words()
        return format_html('<span title="{}">{}</span>', declaration.when, words)

    @admin.display(description=_("when"))
    def listed_when(self, row: Schedule) -> str:
        return shown.lines([self.shown_when(row), shown.quiet(row.timezone)])

    @admin.display(description=_("last run"))
    def listed_run(self, row: Schedule) -> str:
        told = [shown.moment(row.last_run)]
        if row.last_finish is not None:
            told.append(format_html("{} {}", _("ended"), shown.moment(row.last_finish)))
        return shown.lines(told)

    @admin.display(description=_("fires / misses"))
    def listed_counts(self, row: Schedule) -> str:
        return f"{row.fires} / {row.misses}"

    @admin.display(description=_("next fire"))
    def shown_next_fire(self, row: Schedule) -> str:
        return shown.moment(row.next_fire, shown.zone_of(row.timezone))

    @admin.display(description=_("next fire"))
    def listed_next_fire(self, row: Schedule) -> str:
        if row.paused_at is not None:
            return shown.quiet(_("not while it is paused"))
        return self.shown_next_fire(row)

    @admin.display(description=_("waits for the run before it"))
    def shown_waiting(self, row: Schedule) -> str:
        return shown.moment(row.waiting, shown.zone_of(row.timezone))

    @admin.display(description=_("last run"))
    def shown_last_run(self, row: Schedule) -> str:
        return shown.moment(row.last_run)

    @admin.display(description=_("last finish"))
    def shown_last_finish(self, row: Schedule) -> str:
        return shown.moment(row.last_finish)

    @admin.display(description=_("last error"))
    def shown_last_error(self, row: Any) -> str:
        text = shown.plain_text(row.last_error, secrets=getattr(row, "secrets", False))
        return shown.block(text, _("last error"))

    @admin.display(description=_("last job"))
    def shown_last_job(self, row: Any) -> str:
        return getattr(row, "last_job_link", None) or "-"

    @admin.display(description=_("paused"))
    def shown_paused(self, row: Any) -> str:
        since = shown.moment(row.paused_at)
        by = shown.isolated(row.paused_by or _("itself"))
        text = shown.plain_text(row.paused_reason, secrets=getattr(row, "secrets", False))
        why = shown.block(text, _("reason")) if text else ""
        return format_html("{} {} {}{}", since, _("by"), by, why)

    @admin.display(description=_("grid counts from"))
    def shown_anchor(self, row: Schedule) -> str:
        return shown.moment(row.anchor)

    @admin.display(description=_("declared at"))
    def shown_declared_at(self, row: Schedule) -> str:
        return shown.moment(row.declared_at)

    @admin.display(description=_("resumed at"))
    def shown_resumed_at(self, row: Schedule) -> str:
        return shown.moment(row.resumed_at)

    def get_fieldsets(self, request: HttpRequest, obj: Any | None = None) -> Any:
        columns = self.optional_fields.items()
        left_out = {name for name, column in columns if not getattr(obj, column, None)}
        return [
            (title, {**options, "fields": [f for f in options["fields"] if f not in left_out]})
            for title, options in self.fieldsets
        ]

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any | None:
        row = super().get_object(request, object_id, from_field)
        if row is not None:
            row.secrets = may(request, "view_payload") and may(request, "view_secrets")
            if row.last_job_id is not None:
                row.last_job_link = link_to_job(self.admin_site, row.last_job_id)
        return row

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        *args: Any,
        obj: Any = None,
        **kwargs: Any,
    ) -> HttpResponse:
        if obj is not None:
            now = current_clock().now(connections[database()])
            declaration = schedules.get(obj.name)
            asked = _asked_time(request.GET.get("at", ""), obj)
            until = moment_of(request.GET.get("until", "")) or asked
            lines, older = lines_of(obj, until)
            for line in lines:
                if line.job is not None and line.job_state:
                    line.job = link_to_job(self.admin_site, line.job)
            context |= {
                "deeds": self.deeds_for(request, obj),
                "preview": declaration and preview_of_schedule(obj, declaration, now),
                "lines": lines,
                "until": until,
                "older": older,
                "asked": request.GET.get("at", "")[:32] if asked else "",
                "may_make_up": declaration is not None and self.may_do(request, MAKE_UP),
                "make_up": MAKE_UP,
                "make_up_url": reverse(self.url_name(MAKE_UP.name), args=[obj.pk]),
            }
        kwargs["obj"] = obj
        return super().render_change_form(request, context, *args, **kwargs)

    # Steering

    def has_pause_permission(self, request: HttpRequest) -> bool:
        return self.may_do(request, PAUSE)

    def has_fire_permission(self, request: HttpRequest) -> bool:
        return self.may_do(request, FIRE)

    @admin.action(description=_("Pause selected schedules"), permissions=["pause"])
    def pause_selected(self, request: HttpRequest, rows: QuerySet[Any]) -> HttpResponse:
        return self.steer(request, PAUSE, rows, action="pause_selected")

    @admin.action(description=_("Resume selected schedules"), permissions=["pause"])
    def resume_selected(self, request: HttpRequest, rows: QuerySet[Any]) -> HttpResponse:
        return self.steer(request, RESUME, rows, action="resume_selected")

    @admin.action(description=_("Fire selected schedules now"), permissions=["fire"])
    def fire_selected(self, request: HttpRequest, rows: QuerySet[Any]) -> HttpResponse:
        return self.steer(request, FIRE, rows, action="fire_selected")

    def get_urls(self) -> list[URLPattern]:
        view = self.posted(self.make_up_view)
        name = self.url_name(MAKE_UP.name, "")
        return [path(f"<path:object_id>/{MAKE_UP.name}/", view, name=name), *super().get_urls()]

    def make_up_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Make up for a missed tick: the one that was sent, or one out of a stretch."""
        if not self.may_do(request, MAKE_UP):
            raise PermissionDenied
        row = self.get_object(request, object_id)
        if row is None:
            self.message_user(request, self.none_such, "error")
            return HttpResponseRedirect(reverse(self.url_name("changelist")))
        questions = {} if "confirmed" in request.POST else _ticks(request, row)
        if questions is None:
            self.message_user(request, _("There is no such missed tick any more."), "warning")
            return HttpResponseRedirect(self.page_of(row))
        return self.steer(request, MAKE_UP, [row], row=row, **questions)


def _ticks(request: HttpRequest, row: Any) -> dict[str, Any] | None:
    """Return which ticks the page offers, newest first; None where none is left."""
    declaration, left_out = schedules.get(row.name), False
    ticks: list[datetime] = []
    if (tick := moment_of(request.POST.get("tick", ""))) is not None:
        ticks = [tick]
    elif declaration is not None and request.POST.get("gap", "").isdecimal():
        own = Q(namespace=row.namespace, name=row.name)
        key = request.POST["gap"][:18]
        gap = TickGap.objects.using(database()).filter(own, pk=key).first()
        if gap is not None:
            found, left_out = ticks_of_gap(row, gap)
            ticks = list(found)
    zone = shown.zone_of(row.timezone)
    told = [{"value": each.isoformat(), "label": shown.plain_moment(each, zone)} for each in ticks]
    return {"ticks": told, "ticks_left_out": left_out} if told else None


def _asked_time(text: str, row: Any) -> datetime | None:
    """Return the time that somebody asks about, on the clock of the schedule."""
    try:
        moment = parse_datetime(text)
    except ValueError:
        return None
    if moment is None:
        return None
    zone = shown.zone_of(row.timezone) or ZoneInfo("UTC")
    return moment if moment.tzinfo else moment.replace(tzinfo=zone)


class ScheduleAdmin(ScheduleAdminMixin, admin.ModelAdmin):  # type: ignore[type-arg]
    """Schedules in Django's own admin."""
