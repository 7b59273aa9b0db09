"""The pages of workers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from ..conf import settings
from ..models import Execution, Job, Worker
from ..namespaces import database
from ..states import ExecutionState, State
from . import shown
from .base import ReadOnlyAdminMixin, as_uuid, may
from .filters import NamespaceFilter

MOST_TOLD = 999


class WorkerAdminMixin(ReadOnlyAdminMixin):
    """Show workers."""

    json_columns = ("queues", "excluded_queues", "types")
    lookups = ("state__exact", "namespace")

    list_display = [
        "__str__", "namespace", "shown_state", "slots", "shown_heartbeat_at", "shown_started_at",
        "shown_stopped_at", "version",
    ]  # fmt: skip
    list_filter = ["state", NamespaceFilter]
    search_fields = ["id"]
    search_help_text = _("An exact id or host")
    actions = None

    readonly_fields = [
        "id", "namespace", "host", "pid", "version", "shown_state", "healthy", "shown_error",
        "slots", "stuck", "shown_interrupted", "shown_started_at", "shown_heartbeat_at",
        "shown_stopped_at", "shown_queues", "shown_excluded_queues", "shown_types",
    ]  # fmt: skip
    fieldsets = [
        (None, {"fields": ["id", "namespace", "host", "pid", "version"]}),
        (
            _("How it is"),
            {
                "fields": [
                    "shown_state", "healthy", "shown_error", "slots", "stuck", "shown_interrupted",
                ]
            },
        ),
        (_("When"), {"fields": ["shown_started_at", "shown_heartbeat_at", "shown_stopped_at"]}),
        (_("What it runs"), {"fields": ["shown_queues", "shown_excluded_queues", "shown_types"]}),
    ]  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).order_by("-started_at", "-pk")

    def search(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        pk = as_uuid(term)
        return rows.filter(pk=pk) if pk else rows.filter(host=term)

    @admin.display(description=_("state"))
    def shown_state(self, worker: Worker) -> str:
        """Show the state, and whether to believe it: a killed worker could not change it."""
        label = worker.get_state_display()
        if worker.state not in (Worker.Status.RUNNING, Worker.Status.DRAINING):
            return shown.state(worker.state, label)
        silent = (datetime.now(UTC) - worker.heartbeat_at).total_seconds()
        if silent > settings.LEASE:
            return shown.state("lost", _("no heartbeat (was %(state)s)") % {"state": label})
        if not worker.healthy:
            return shown.state("failed", _("unhealthy"))
        return shown.state(worker.state, label)

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any | None:
        worker = super().get_object(request, object_id, from_field)
        if worker is not None:
            worker.secrets = may(request, "view_payload") and may(request, "view_secrets")
            worker.jobs_linked = may(request, "view_job") and self.admin_site.is_registered(Job)
        return worker

    @admin.display(description=_("error"))
    def shown_error(self, worker: Any) -> str:
        return shown.block(shown.plain_text(worker.error, secrets=worker.secrets), _("error"))

    @admin.display(description=_("attempts interrupted"))
    def shown_interrupted(self, worker: Any) -> str:
        """Tell how many of its attempts were interrupted, linked to their jobs."""
        found = Execution.objects.using(database()).filter(
            namespace=worker.namespace, state=ExecutionState.INTERRUPTED, worker_id=worker.pk
        )
        number = found[: MOST_TOLD + 1].count()
        told = str(number) if number <= MOST_TOLD else _("more than %d") % MOST_TOLD
        if not number or not worker.jobs_linked:
            return told
        url = reverse(f"{self.admin_site.name}:django_durable_jobs_job_changelist")
        return format_html(
            '{} · <a href="{}?interrupted_by={}&amp;state__exact={}">{}</a>',
            told,
            url,
            worker.pk,
            State.INTERRUPTED,
            _("jobs that are still interrupted"),
        )

    @admin.display(description=_("active / slots"))
    def slots(self, worker: Worker) -> str:
        return format_html("{} / {}", worker.active, worker.concurrency)

    @admin.display(description=_("heartbeat at"))
    def shown_heartbeat_at(self, worker: Worker) -> str:
        return shown.moment(worker.heartbeat_at)

    @admin.display(description=_("started at"))
    def shown_started_at(self, worker: Worker) -> str:
        return shown.moment(worker.started_at)

    @admin.display(description=_("stopped at"))
    def shown_stopped_at(self, worker: Worker) -> str:
        return shown.moment(worker.stopped_at)

    @admin.display(description=_("queues"))
    def shown_queues(self, worker: Any) -> str:
        if worker.queues_text in (None, "null"):
            return str(_("every queue"))
        return shown.block(shown.json_text(worker.queues_text, secrets=True), _("queues"))

    @admin.display(description=_("excluded queues"))
    def shown_excluded_queues(self, worker: Any) -> str:
        text = shown.json_text(worker.excluded_queues_text, secrets=True)
        return "-" if text == "[]" else shown.block(text, _("excluded queues"))

    @admin.display(description=_("handler types"))
    def shown_types(self, worker: Any) -> str:
        return shown.block(shown.json_text(worker.types_text, secrets=True), _("handler types"))


class WorkerAdmin(WorkerAdminMixin, admin.ModelAdmin):  # type: ignore[type-arg]
    """Workers in Django's own admin."""
