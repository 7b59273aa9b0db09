"""The pages of jobs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from ..models import Job, Namespace
from ..namespaces import database
from . import shown
from .base import ReadOnlyAdminMixin, as_uuid, may
from .filters import NamespaceFilter, QueueFilter, TypeFilter
from .steering import CANCEL, DEEDS, REQUEUE, Deed, perform
from .timeline import attempts_of

# One form's worth: Django takes no more than a thousand fields.
MOST_AT_ONCE = 500


class JobAdminMixin(ReadOnlyAdminMixin):
    """Show jobs, and cancel or requeue them."""

    json_columns = ("payload", "target", "meta")
    lookups = ("state__exact", "type", "queue", "namespace")

    list_display = [
        "short_id", "type", "shown_state", "owner_id", "queue", "shown_run_at",
        "shown_finished_at", "attempts",
    ]  # fmt: skip
    list_filter = ["state", TypeFilter, QueueFilter, NamespaceFilter]
    search_fields = ["id"]  # shows the box; see search()
    search_help_text = _("An exact id, idempotency key, owner, target id, or target as kind:id")
    actions = ["cancel_selected", "requeue_selected"]

    readonly_fields = [
        "id", "type", "shown_state", "held", "shown_run_at", "shown_claimable_at",
        "shown_created_at", "shown_finished_at", "cancelled_reason", "namespace", "queue",
        "owner_id", "project_id", "priority", "attempts", "max_attempts", "timeout",
        "shown_stop_requested_at", "idempotency_key", "key_scope", "shown_target",
        "shown_payload", "shown_meta",
    ]  # fmt: skip
    fieldsets = [
        (None, {"fields": ["id", "type", "shown_state", "held", "cancelled_reason"]}),
        (
            _("What"),
            {"fields": ["shown_payload", "shown_target", "shown_meta"]},
        ),
        (
            _("When"),
            {
                "fields": [
                    "shown_created_at", "shown_run_at", "shown_claimable_at",
                    "shown_finished_at", "shown_stop_requested_at",
                ]
            },
        ),
        (
            _("For whom and how"),
            {
                "fields": [
                    "owner_id", "project_id", "namespace", "queue", "priority", "attempts",
                    "max_attempts", "timeout", "idempotency_key", "key_scope",
                ]
            },
        ),
    ]  # fmt: skip

    # What most jobs do not have, and is shown only where there is something to tell.
    optional_fields = {
        "held": "held_reason",
        "cancelled_reason": "cancelled_reason",
        "shown_finished_at": "finished_at",
        "shown_stop_requested_at": "stop_requested_at",
        "max_attempts": "max_attempts",
        "timeout": "timeout",
    }

    # Looking

    def get_fieldsets(self, request: HttpRequest, obj: Any | None = None) -> Any:
        columns = self.optional_fields.items()
        left_out = {name for name, column in columns if not getattr(obj, column, "")}
        if obj is not None and shown.json_is(obj.meta_text, {}):
            left_out.add("shown_meta")

        def without(names: Sequence[Any]) -> list[Any]:
            return [name for name in names if name not in left_out]

        return [
            (title, {**options, "fields": without(options["fields"])})
            for title, options in self.fieldsets
        ]

    def search(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        """Look for an id or a key first, which are indexed; for owners and targets only then."""
        pk = as_uuid(term)
        found = rows.filter(pk=pk) if pk else rows.none()
        if pk and found.exists():
            return found
        names = list(Namespace.objects.using(database()).values_list("name", flat=True))
        by_key = rows.filter(
            namespace__in=names, key_hash=hashlib.sha256(term.encode()).hexdigest()
        )
        if by_key.exists():
            return by_key
        which = Q(owner_id=term) | Q(target_id=term) | Q(idempotency_key=term)
        kind, colon, id = term.partition(":")
        if colon:
            which |= Q(target_kind=kind, target_id=id)
        return rows.filter(which)

    @admin.display(description=_("id"))
    def short_id(self, job: Job) -> SafeString:
        return format_html(
            '<span class="ddj-id" title="{}">{}</span>', job.pk, shown.short_id(job.pk)
        )

    @admin.display(description=_("state"))
    def shown_state(self, job: Job) -> SafeString:
        return shown.state(job.state, job.get_state_display())

    @admin.display(description=_("run at"))
    def shown_run_at(self, job: Job) -> str:
        return shown.moment(job.run_at)

    @admin.display(description=_("finished at"))
    def shown_finished_at(self, job: Job) -> str:
        return shown.moment(job.finished_at)

    @admin.display(description=_("created at"))
    def shown_created_at(self, job: Job) -> str:
        return shown.moment(job.created_at)

    @admin.display(description=_("claimable from"))
    def shown_claimable_at(self, job: Job) -> str:
        return shown.moment(job.claimable_at)

    @admin.display(description=_("stop requested at"))
    def shown_stop_requested_at(self, job: Job) -> str:
        return shown.moment(job.stop_requested_at)

    @admin.display(description=_("held"))
    def held(self, job: Job) -> str:
        """Tell why a queued job is passed over."""
        if not job.held_reason:
            return "-"
        since = shown.moment(job.held_since)
        return format_html("{} ({} {})", job.get_held_reason_display(), gettext("since"), since)

    @admin.display(description=_("target"))
    def shown_target(self, job: Any) -> str:
        """Show the target; as it is searched for, where it has nothing but a kind and an id."""
        if shown.json_is(job.target_text, {"kind": job.target_kind, "id": job.target_id}):
            return f"{job.target_kind}:{job.target_id}"
        return shown.block(shown.json_text(job.target_text, secrets=job.secrets), _("target"))

    @admin.display(description=_("payload"))
    def shown_payload(self, job: Any) -> str:
        if not job.payload_shown:
            return shown.hidden()
        return shown.block(shown.json_text(job.payload_text, secrets=job.secrets), _("payload"))

    @admin.display(description=_("meta"))
    def shown_meta(self, job: Any) -> str:
        return shown.block(shown.json_text(job.meta_text, secrets=job.secrets), _("meta"))

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any | None:
        job = super().get_object(request, object_id, from_field)
        if job is not None:
            job.payload_shown = may(request, "view_payload")
            job.secrets = job.payload_shown and may(request, "view_secrets")
        return job

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        *args: Any,
        obj: Any = None,
        **kwargs: Any,
    ) -> HttpResponse:
        if obj is not None:
            context["attempts"] = attempts_of(
                Q(job_id=obj.pk), payloads=obj.payload_shown, secrets=obj.secrets
            )
            context["deeds"] = [
                (deed, reverse(self._url_name(deed.name), args=[obj.pk]))
                for deed in DEEDS.values()
                if deed.suits(obj) and self.may_do(request, deed)
            ]
        kwargs["obj"] = obj
        return super().render_change_form(request, context, *args, **kwargs)

    # Steering

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return self.may_do(request, CANCEL)

    def has_requeue_permission(self, request: HttpRequest) -> bool:
        return self.may_do(request, REQUEUE)

    def may_do(self, request: HttpRequest, deed: Deed) -> bool:
        return self.has_view_permission(request) and may(request, f"{deed.name}_job")

    @admin.action(description=_("Cancel selected jobs"), permissions=["cancel"])
    def cancel_selected(self, request: HttpRequest, jobs: QuerySet[Any]) -> HttpResponse:
        return self.steer(request, CANCEL, jobs, action="cancel_selected")

    @admin.action(description=_("Requeue selected jobs"), permissions=["requeue"])
    def requeue_selected(self, request: HttpRequest, jobs: QuerySet[Any]) -> HttpResponse:
        return self.steer(request, REQUEUE, jobs, action="requeue_selected")

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        chosen = request.POST.getlist(ACTION_CHECKBOX_NAME)
        if any(as_uuid(id) is None for id in chosen):
            self.message_user(request, _("No such job."), messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())
        return super().changelist_view(request, extra_context)

    def get_urls(self) -> list[URLPattern]:
        def view(deed: Deed) -> Callable[..., HttpResponse]:
            return self.admin_site.admin_view(require_POST(partial(self.deed_view, deed)))

        own = [
            path(f"<path:object_id>/{deed.name}/", view(deed), name=self._url_name(deed.name, ""))
            for deed in DEEDS.values()
        ]
        return own + super().get_urls()

    def deed_view(self, deed: Deed, request: HttpRequest, object_id: str) -> HttpResponse:
        """Do it to one job, after a page that asks."""
        if not self.may_do(request, deed):
            raise PermissionDenied
        job = self.get_object(request, object_id)
        if job is None:
            self.message_user(request, _("No such job."), messages.ERROR)
            return HttpResponseRedirect(reverse(self._url_name("changelist")))
        return self.steer(request, deed, [job], job=job)

    def steer(
        self,
        request: HttpRequest,
        deed: Deed,
        chosen: QuerySet[Any] | Sequence[Any],
        *,
        action: str = "",
        job: Any = None,
    ) -> HttpResponse:
        """Ask, or do it when the answer is here; ``job`` where it began on a job's page."""
        rows = list(chosen[: MOST_AT_ONCE + 1])
        left_out, rows = len(rows) > MOST_AT_ONCE, rows[:MOST_AT_ONCE]
        if "confirmed" in request.POST:
            self.do(request, deed, rows)
            back = request.get_full_path() if job is None else self._page_of(job)
            return HttpResponseRedirect(back)
        return TemplateResponse(
            request,
            "admin/django_durable_jobs/job/confirm.html",
            {
                **self.admin_site.each_context(request),
                "title": deed.title,
                "opts": self.opts,
                "media": self.media,
                "deed": deed,
                "jobs": [row for row in rows if deed.suits(row)],
                "others": [row for row in rows if not deed.suits(row)],
                "most": MOST_AT_ONCE if left_out else None,
                "action": action,
                "checkbox": ACTION_CHECKBOX_NAME,
                "back": request.get_full_path() if job is None else self._page_of(job),
            },
        )

    def do(self, request: HttpRequest, deed: Deed, rows: Sequence[Any]) -> None:
        """Do it, log it, and tell."""
        reason = request.POST.get("reason", "").strip()[:1_024] if deed.takes_reason else ""
        report = perform(deed, rows, reason)
        for job in report.done:
            said = [str(deed.logged), *([_("Reason: %s") % reason] if reason else [])]
            self.log_change(request, job, " ".join(map(str, said)))
        if report.done:
            text = deed.done % {"count": len(report.done)}
            self.message_user(request, text, messages.SUCCESS)
        for _job, problem in report.refused[:10]:
            self.message_user(request, _("Not done: %s") % problem, messages.WARNING)
        if len(report.refused) > 10:
            text = _("Not done: %d more.") % (len(report.refused) - 10)
            self.message_user(request, text, messages.WARNING)

    def _page_of(self, job: Any) -> str:
        return reverse(self._url_name("change"), args=[job.pk])

    def _url_name(self, name: str, site: str | None = None) -> str:
        site = f"{self.admin_site.name}:" if site is None else site
        return f"{site}{self.opts.app_label}_{self.opts.model_name}_{name}"


class JobAdmin(JobAdminMixin, admin.ModelAdmin):  # type: ignore[type-arg]
    """Jobs in Django's own admin."""
