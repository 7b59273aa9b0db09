"""The pages of executions."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from ..models import Execution, Job
from . import shown
from .base import ReadOnlyAdminMixin, as_uuid, may
from .filters import ExecutionStateFilter, NamespaceFilter
from .stretches import stretch_of
from .timeline import JSON_COLUMNS, MOST_SAID, ended_at, progress_of, reason_of, with_worker


class ExecutionAdminMixin(ReadOnlyAdminMixin):
    """Show executions."""

    json_columns = JSON_COLUMNS
    lookups = ("state__exact", "namespace")

    list_display = [
        "id", "short_job", "attempt", "shown_state", "owner_id", "shown_worker",
        "shown_claimed_at", "shown_ended_at", "took",
    ]  # fmt: skip
    list_filter = [ExecutionStateFilter, NamespaceFilter]
    time_column = "claimed_at"
    search_fields = ["id"]
    search_help_text = _("The exact id of a job, or the number of an execution")
    actions = None

    readonly_fields = [
        "id", "shown_job", "attempt", "shown_state", "reason", "shown_error", "error_code",
        "namespace", "owner_id", "shown_worker", "claim_id", "shown_lease_expires_at",
        "requeue_on_interrupt", "shown_claimed_at", "shown_started_at", "shown_ended_at", "took",
        "shown_progress", "shown_result", "shown_receipt", "shown_metadata", "shown_traceback",
        "shown_resolved_at", "shown_resolved_by", "shown_resolved_note",
    ]  # fmt: skip
    fieldsets = [
        (
            None,
            {
                "fields": [
                    "id", "shown_job", "attempt", "shown_state", "reason", "shown_error",
                    "error_code", "shown_progress",
                ]
            },
        ),
        (_("When"), {"fields": ["shown_claimed_at", "shown_started_at", "shown_ended_at", "took"]}),
        (
            _("What"),
            {"fields": ["shown_result", "shown_receipt", "shown_metadata", "shown_traceback"]},
        ),
        (
            _("By whom"),
            {
                "fields": [
                    "namespace", "owner_id", "shown_worker", "claim_id", "shown_lease_expires_at",
                    "requeue_on_interrupt",
                ]
            },
        ),
        (
            _("Resolution"),
            {"fields": ["shown_resolved_at", "shown_resolved_by", "shown_resolved_note"]},
        ),
    ]  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return with_worker(super().get_queryset(request).defer(*JSON_COLUMNS, "traceback"))

    def with_texts(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return super().with_texts(rows.defer(None).defer(*JSON_COLUMNS))

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any | None:
        execution = super().get_object(request, object_id, from_field)
        if execution is not None:
            execution.payload_shown = may(request, "view_payload")
            execution.secrets = execution.payload_shown and may(request, "view_secrets")
        return execution

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        stretch_of(request, self).served |= bool(search_term.strip())  # by one of two indexes
        return super().get_search_results(request, queryset, search_term)

    def search(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        job_id = as_uuid(term)
        if job_id is not None:
            return rows.filter(job_id=job_id)
        return rows.filter(pk=int(term)) if term.isdecimal() and len(term) < 19 else rows.none()

    @admin.display(description=_("job"))
    def short_job(self, execution: Execution) -> str:
        return self._link(execution, shown.short_id(execution.job_id))

    @admin.display(description=_("job"))
    def shown_job(self, execution: Execution) -> str:
        return self._link(execution, str(execution.job_id))

    def _link(self, execution: Execution, text: str) -> str:
        name = f"{self.admin_site.name}:{Job._meta.app_label}_{Job._meta.model_name}_change"
        return format_html(
            '<a class="ddj-id" href="{}" title="{}">{}</a>',
            reverse(name, args=[execution.job_id]),
            execution.job_id,
            text,
        )

    @admin.display(description=_("state"))
    def shown_state(self, execution: Execution) -> str:
        return shown.state(execution.state, execution.get_state_display())

    @admin.display(description=_("interrupted because"))
    def reason(self, execution: Execution) -> str:
        return reason_of(execution) or "-"

    @admin.display(description=_("worker"))
    def shown_worker(self, execution: Any) -> str:
        return str(execution.worker_name or execution.worker_id)

    @admin.display(description=_("claimed at"))
    def shown_claimed_at(self, execution: Execution) -> str:
        return shown.moment(execution.claimed_at)

    @admin.display(description=_("started at"))
    def shown_started_at(self, execution: Execution) -> str:
        return shown.moment(execution.started_at)

    @admin.display(description=_("ended at"))
    def shown_ended_at(self, execution: Execution) -> str:
        return shown.moment(ended_at(execution))

    @admin.display(description=_("lease ends at"))
    def shown_lease_expires_at(self, execution: Execution) -> str:
        return shown.moment(execution.lease_expires_at)

    @admin.display(description=_("resolved at"))
    def shown_resolved_at(self, execution: Execution) -> str:
        return shown.moment(execution.resolved_at)

    @admin.display(description=_("resolved by"))
    def shown_resolved_by(self, execution: Execution) -> str:
        return shown.isolated(execution.resolved_by or "-")

    @admin.display(description=_("resolution note"))
    def shown_resolved_note(self, execution: Any) -> str:
        text = shown.plain_text(execution.resolved_note, secrets=execution.secrets)
        return shown.block(text, _("resolution note"))

    @admin.display(description=_("took"))
    def took(self, execution: Execution) -> str:
        return shown.span(execution.started_at, ended_at(execution))

    @admin.display(description=_("error"))
    def shown_error(self, execution: Any) -> str:
        return shown.block(shown.plain_text(execution.error, secrets=execution.secrets), _("error"))

    @admin.display(description=_("progress"))
    def shown_progress(self, execution: Any) -> str:
        said = progress_of(execution.progress_text)
        return shown.cut(shown.plain_text(said, secrets=execution.secrets), MOST_SAID)

    @admin.display(description=_("result"))
    def shown_result(self, execution: Any) -> str:
        return self._text(execution, execution.result_text, _("result"))

    @admin.display(description=_("receipt"))
    def shown_receipt(self, execution: Any) -> str:
        return self._text(execution, execution.receipt_text, _("receipt"))

    @admin.display(description=_("metadata"))
    def shown_metadata(self, execution: Any) -> str:
        return self._text(execution, execution.metadata_text, _("metadata"))

    @admin.display(description=_("traceback"))
    def shown_traceback(self, execution: Any) -> str:
        if not execution.payload_shown:
            return shown.hidden()
        text = shown.plain_text(execution.traceback, secrets=execution.secrets)
        return shown.block(text, _("traceback"))

    def _text(self, execution: Any, text: str | None, label: Any) -> str:
        if not execution.payload_shown:
            return shown.hidden()
        return shown.block(shown.json_text(text, secrets=execution.secrets), label)


class ExecutionAdmin(ExecutionAdminMixin, admin.ModelAdmin):  # type: ignore[type-arg]
    """Executions in Django's own admin."""
