"""The pages of ticks: those that were claimed, and stretches of those that were missed."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from ..conf import settings
from ..models import Schedule, TickClaim, TickGap
from ..namespaces import database
from ..states import TickOutcome
from . import shown
from .base import ReadOnlyAdminMixin, as_uuid, link_to_job
from .filters import GapScheduleFilter, NamespaceFilter, ScheduleFilter
from .ledger import reason_in_words, state_of, with_job_state


class _OfScheduleMixin(ReadOnlyAdminMixin):
    """What both have: the name of their schedule, linked where it is stored."""

    actions = None

    def search(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        # The index begins with the namespace.
        same = Schedule.objects.using(database()).filter(name=term)
        names = {settings.NAMESPACE, *same.values_list("namespace", flat=True)[:100]}
        return rows.filter(namespace__in=sorted(names), name=term)

    @admin.display(description=_("schedule"))
    def shown_name(self, row: Any) -> str:
        return shown.isolated(row.name)

    @admin.display(description=_("schedule"))
    def linked_name(self, row: Any) -> str:
        rows = Schedule.objects.using(database()).filter(namespace=row.namespace, name=row.name)
        key = rows.values_list("pk", flat=True).first()
        if key is None or not self.admin_site.is_registered(Schedule):
            return shown.isolated(row.name)
        url = reverse(f"{self.admin_site.name}:django_durable_jobs_schedule_change", args=[key])
        return format_html('<a href="{}"><bdi>{}</bdi></a>', url, row.name)

    @admin.display(description=_("because"))
    def because(self, row: Any) -> str:
        return reason_in_words(row.reason) or "-"


class TickClaimAdminMixin(_OfScheduleMixin):
    """Show the ticks that fired, were skipped, or were run by hand."""

    lookups = ("schedule", "namespace", "open__exact")
    list_display = [
        "shown_scheduled_at", "shown_name", "shown_outcome", "because", "shown_job",
        "shown_claimed_at", "shown_open",
    ]  # fmt: skip
    list_filter = [ScheduleFilter, NamespaceFilter, "open"]
    search_fields = ["name"]
    search_help_text = _("The exact name of a schedule, or the exact id of a job")
    readonly_fields = [
        "id", "linked_name", "shown_scheduled_at", "shown_outcome", "because", "shown_job",
        "shown_open", "shown_claimed_at", "claimed_by", "namespace",
    ]  # fmt: skip
    fields = tuple(readonly_fields)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return with_job_state(super().get_queryset(request))

    def search(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        job = as_uuid(term)
        return rows.filter(job_id=job) if job else super().search(rows, term)

    @admin.display(description=_("tick"))
    def shown_scheduled_at(self, row: TickClaim) -> str:
        return shown.moment(row.scheduled_at)

    @admin.display(description=_("claimed at"))
    def shown_claimed_at(self, row: TickClaim) -> str:
        return shown.moment(row.claimed_at)

    @admin.display(description=_("its run"))
    def shown_open(self, row: TickClaim) -> str:
        """Tell whether the run is over, as far as the leader has seen."""
        if row.outcome == TickOutcome.SKIPPED:
            return "-"
        return shown.state("running", _("not over")) if row.open else str(_("over"))

    @admin.display(description=_("outcome"))
    def shown_outcome(self, row: TickClaim) -> str:
        return shown.state(f"tick{row.outcome}", row.get_outcome_display())

    @admin.display(description=_("job"))
    def shown_job(self, row: Any) -> str:
        """Show the job and its state; that it is gone, where it was deleted since."""
        if row.job_id is None:
            fired = row.outcome != TickOutcome.SKIPPED
            return shown.quiet(_("deleted")) if fired else "-"
        if row.job_state is None:
            return shown.quiet(_("deleted"), title=str(row.job_id))
        link = link_to_job(self.admin_site, row.job_id)
        return format_html("{} {}", link, state_of(row.job_state))


class TickGapAdminMixin(_OfScheduleMixin):
    """Show the stretches of ticks that schedules missed, by a pause or a downtime."""

    lookups = ("schedule", "namespace")
    list_display = ["shown_first", "shown_last", "count", "shown_name", "because"]
    list_filter = [GapScheduleFilter, NamespaceFilter]
    search_fields = ["name"]
    search_help_text = _("The exact name of a schedule")
    readonly_fields = [
        "id", "linked_name", "shown_first", "shown_last", "count", "because", "namespace",
    ]  # fmt: skip
    fields = tuple(readonly_fields)

    @admin.display(description=_("first tick"))
    def shown_first(self, row: TickGap) -> str:
        return shown.moment(row.first)

    @admin.display(description=_("last tick"))
    def shown_last(self, row: TickGap) -> str:
        return shown.moment(row.last)


class TickClaimAdmin(TickClaimAdminMixin, admin.ModelAdmin):  # type: ignore[type-arg]
    """Tick claims in Django's own admin."""


class TickGapAdmin(TickGapAdminMixin, admin.ModelAdmin):  # type: ignore[type-arg]
    """Tick gaps in Django's own admin."""
