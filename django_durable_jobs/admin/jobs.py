"""The pages of jobs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..errors import JobDoesNotExist
from ..explaining import explain
from ..models import Execution, Job, QueueEntry
from ..namespaces import database
from ..states import ExecutionState, State
from . import shown
from .base import ReadOnlyAdminMixin, as_uuid, may
from .filters import (
    InterruptedBecauseFilter,
    InterruptedByFilter,
    InterruptedSinceFilter,
    JobStateFilter,
    NamespaceFilter,
    QueueFilter,
    TypeFilter,
    known_queues,
)
from .jobdeeds import CANCEL, REQUEUE, RESOLVE, RUN_NOW, STOP
from .steering import SteeringAdminMixin
from .stretches import Stretch, are_few, stretch_of
from .timeline import attempts_of

# How many of an owner's or a target's jobs are shown from before the stretch that is looked at.
MOST_ALSO = 500


class JobAdminMixin(SteeringAdminMixin, ReadOnlyAdminMixin):
    """Show jobs, and cancel, requeue, resolve, stop them, or run them now."""

    json_columns = ("payload", "target", "meta")
    lookups = (
        "state__exact", "type", "queue", "namespace", "interrupted_by", "interrupted_because",
        "interrupted_within",
    )  # fmt: skip
    time_column = "created_at"

    list_display = [
        "short_id", "type", "shown_state", "owner_id", "queue", "shown_run_at",
        "shown_finished_at", "attempts",
    ]  # fmt: skip
    list_filter = [
        JobStateFilter, TypeFilter, QueueFilter, NamespaceFilter, InterruptedByFilter,
        InterruptedBecauseFilter, InterruptedSinceFilter,
    ]  # fmt: skip
    search_fields = ["id"]  # shows the box; see search()
    search_help_text = _("An exact id, idempotency key, owner, target id, or target as kind:id")
    actions = [
        "cancel_selected", "requeue_selected", "resolve_selected", "stop_selected",
        "run_now_selected",
    ]  # fmt: skip
    deeds = (RUN_NOW, CANCEL, STOP, REQUEUE, RESOLVE)
    none_such = _("No such job.")

    readonly_fields = [
        "id", "type", "shown_state", "why_waiting", "how_it_stands", "held", "shown_run_at",
        "shown_claimable_at", "shown_created_at", "shown_finished_at", "shown_reason", "namespace",
        "queue", "owner_id", "project_id", "priority", "attempts", "max_attempts", "timeout",
        "shown_stop_requested_at", "idempotency_key", "key_scope", "shown_target",
        "shown_payload", "shown_meta",
    ]  # fmt: skip
    fieldsets = [
        (
            None,
            {
                "fields": [
                    "id", "type", "shown_state", "why_waiting", "how_it_stands", "held",
                    "shown_reason",
                ]
            },
        ),
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
        "shown_reason": "cancelled_reason",
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
        if obj is not None:
            queued = obj.state == State.QUEUED
            left_out.add("how_it_stands" if queued else "why_waiting")

        def without(names: Sequence[Any]) -> list[Any]:
            return [name for name in names if name not in left_out]

        return [
            (title, {**options, "fields": without(options["fields"])})
            for title, options in self.fieldsets
        ]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term, stretch = search_term.strip(), stretch_of(request, self)
        return (self.search_in(stretch, queryset, term) if term else queryset), False

    def search_in(self, stretch: Stretch, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        """Look for an id or a key first, which are indexed; for owners and targets only then."""
        key_hash = hashlib.sha256(term.encode()).hexdigest()
        by_key = rows.filter(namespace__in=stretch.namespaces, key_hash=key_hash)
        pk = as_uuid(term)
        for found in (rows.filter(pk=pk) if pk else rows.none(), by_key):
            if found.exists():
                stretch.served = True
                return found
        which = Q(owner_id=term) | Q(target_id=term) | Q(idempotency_key=term)
        kind, colon, id = term.partition(":")
        if colon:
            which |= Q(target_kind=kind, target_id=id)
        if stretch.floor is not None and not stretch.served:
            targets = Job.objects.using(database()).filter(target_kind=kind, target_id=id)
            stretch.show_also(_newest(targets.values_list("pk", flat=True)) if colon else ())
            for keys in _keys_of_owner(stretch, term):
                stretch.show_also(_newest(keys))
        return rows.filter(which)

    @admin.display(description=_("id"))
    def short_id(self, job: Job) -> SafeString:
        return format_html(
            '<span class="ddj-id" title="{}">{}</span>', job.pk, shown.short_id(job.pk)
        )

    @admin.display(description=_("state"))
    def shown_state(self, job: Job) -> SafeString:
        return shown.state(job.state, job.get_state_display())

    @admin.display(description=_("why it is not running"))
    def why_waiting(self, job: Any) -> SafeString | str:
        """Say in sentences what is in its way, or what became of it."""
        try:
            told = explain(job, using=job._state.db)
        except JobDoesNotExist:  # it was deleted in between
            return "-"
        sentences = (reason.sentence for reason in (told, *told.also))
        # People's own reasons stand in some.
        return shown.lines(
            shown.isolated(shown.plain_text(text, secrets=job.secrets)) for text in sentences
        )

    @admin.display(description=_("how it stands"))
    def how_it_stands(self, job: Any) -> SafeString | str:
        return self.why_waiting(job)

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

    @admin.display(description=_("cancelled because"))
    def shown_reason(self, job: Any) -> str:
        text = shown.plain_text(job.cancelled_reason or "", secrets=job.secrets)
        return shown.block(text, _("cancelled because"))

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
            context["deeds"] = self.deeds_for(request, obj)
        kwargs["obj"] = obj
        return super().render_change_form(request, context, *args, **kwargs)

    # Steering

    def name_of(self, row: Any) -> str:
        return ""  # their count is told: what is refused names its job

    def note_on(self, row: Any) -> str:
        owner = format_html("<bdi>{}</bdi> · ", row.owner_id) if row.owner_id else ""
        return format_html("{}{}", owner, row.get_state_display())

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return self.may_do(request, CANCEL)

    def has_requeue_permission(self, request: HttpRequest) -> bool:
        return self.may_do(request, REQUEUE)

    def has_resolve_permission(self, request: HttpRequest) -> bool:
        return self.may_do(request, RESOLVE)

    def has_stop_permission(self, request: HttpRequest) -> bool:
        return self.may_do(request, STOP)

    def has_run_now_permission(self, request: HttpRequest) -> bool:
        return self.may_do(request, RUN_NOW)

    @admin.action(description=_("Cancel selected jobs"), permissions=["cancel"])
    def cancel_selected(self, request: HttpRequest, jobs: QuerySet[Any]) -> HttpResponse:
        return self.steer(request, CANCEL, jobs, action="cancel_selected")

    @admin.action(description=_("Requeue selected jobs"), permissions=["requeue"])
    def requeue_selected(self, request: HttpRequest, jobs: QuerySet[Any]) -> HttpResponse:
        return self.steer(request, REQUEUE, jobs, action="requeue_selected")

    @admin.action(description=_("Resolve selected interrupted jobs"), permissions=["resolve"])
    def resolve_selected(self, request: HttpRequest, jobs: QuerySet[Any]) -> HttpResponse:
        return self.steer(request, RESOLVE, jobs, action="resolve_selected")

    @admin.action(description=_("Stop selected running jobs"), permissions=["stop"])
    def stop_selected(self, request: HttpRequest, jobs: QuerySet[Any]) -> HttpResponse:
        return self.steer(request, STOP, jobs, action="stop_selected")

    @admin.action(description=_("Run selected jobs now"), permissions=["run_now"])
    def run_now_selected(self, request: HttpRequest, jobs: QuerySet[Any]) -> HttpResponse:
        return self.steer(request, RUN_NOW, jobs, action="run_now_selected")


def _keys_of_owner(stretch: Stretch, owner: str) -> Iterator[QuerySet[Any]]:
    """Yield the keys of an owner's jobs as indexes find them: which were claimed, which wait."""
    alias, theirs = database(), Q(namespace__in=stretch.namespaces, owner_id=owner)
    executions = Execution.objects.using(alias).filter(theirs, state__in=list(ExecutionState))
    yield executions.values_list("job_id", flat=True)
    entries = QueueEntry.objects.using(alias).filter(theirs, queue__in=known_queues())
    yield entries.filter(due__in=[True, False]).values_list("pk", flat=True)


def _newest(keys: QuerySet[Any]) -> list[Any]:
    """Return the newest of these keys, where they are not so many that they are new as well."""
    name = "job_id" if keys.model is Execution else "pk"
    return list(keys.order_by(f"-{name}")[:MOST_ALSO]) if are_few(keys) else []


class JobAdmin(JobAdminMixin, admin.ModelAdmin):  # type: ignore[type-arg]
    """Jobs in Django's own admin."""
