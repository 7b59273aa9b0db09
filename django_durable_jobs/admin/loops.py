"""The pages of loops: recurring jobs that staff add without code."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from ..conf import settings
from . import shown
from .base import as_texts, job_and_state, may
from .filters import FailingFilter, JobTypeFilter
from .loopdeeds import works_of
from .loopforms import PayloadField, fit
from .looprecords import LoopRecordAdminMixin
from .stretches import is_key_of


class LoopAdminMixin(LoopRecordAdminMixin):
    """Add, change and delete loops: a registered job, its payload, and when it recurs."""

    lookups = ("enabled__exact", "needs_owner__exact", "failing", "job_type")
    list_display = [
        "listed_name", "enabled", "shown_when", "shown_next_run", "shown_job",
        "listed_last_run", "owner_id",
    ]  # fmt: skip
    list_filter = ["enabled", "needs_owner", FailingFilter, JobTypeFilter]
    search_fields = ["name"]
    search_help_text = _("The exact name of a loop, its job's type, or its owner")
    sortable_by = ()
    ordering = ["name"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).defer("payload")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        which = Q(name=term) | Q(job_type=term) | Q(owner_id=term)
        return (queryset.filter(which) if term else queryset), False

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Allow the filters' own lookups only: others could probe a payload that is hidden."""
        return lookup in self.lookups

    @admin.display(description=_("name / job type"))
    def listed_name(self, loop: Any) -> str:
        return shown.lines([shown.isolated(loop.name), shown.quiet(loop.job_type)])

    # The payload

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any | None:
        """Return the loop with its payload as text, and who may do what with that."""
        if not is_key_of(self.model, object_id):
            return None
        rows = self.get_queryset(request).annotate(**as_texts(("payload",)))
        loop: Any = rows.filter(pk=object_id).first()
        if loop is not None:
            see(loop, payloads=may(request, "view_payload"), secrets=may(request, "view_secrets"))
        return loop

    def has_change_permission(self, request: HttpRequest, obj: Any | None = None) -> bool:
        """Refuse one whose payload cannot be read, to who may not replace it."""
        if obj is not None and getattr(obj, "payload_broken", False) and not obj.payload_editable:
            return False
        return super().has_change_permission(request, obj)

    def get_readonly_fields(self, request: HttpRequest, obj: Any | None = None) -> Any:
        return [*super().get_readonly_fields(request, obj), "shown_payload"]

    def get_fieldsets(self, request: HttpRequest, obj: Any | None = None) -> Any:
        edits = obj is None
        if obj is not None and obj.payload_editable:
            edits = self.has_change_permission(request, obj)
        left_out = "shown_payload" if edits else "payload"
        found = super().get_fieldsets(request, obj)
        return [
            (title, {**options, "fields": [f for f in options["fields"] if f != left_out]})
            for title, options in found
        ]

    def get_form(
        self, request: HttpRequest, obj: Any | None = None, change: bool = False, **kwargs: Any
    ) -> Any:
        form = super().get_form(request, obj, change=change, **kwargs)
        if obj is not None and not obj.payload_editable:
            form.secret_fields = ("payload",)
        return form

    def occurrences(self, record: Any) -> list[dict[str, Any]]:
        """Return its latest occurrences, each with the job that it has put in."""
        told = super().occurrences(record)
        works = works_of(record, [each["job"] for each in told])
        for each in told:
            each["work"] = job_and_state(self.admin_site, works.get(each["job"].pk))
        return told

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        loop = kwargs.get("obj")
        if getattr(loop, "payload_broken", False) and request.method == "GET":
            text = _("The stored payload is no JSON: what is saved here takes its place.")
            self.message_user(request, text, messages.WARNING)
        return super().render_change_form(request, context, *args, **kwargs)

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "payload":
            kwargs["form_class"] = PayloadField
            kwargs["widget"] = forms.Textarea(
                {"class": "vLargeTextField ddj-code", "rows": 8, "spellcheck": "false"}
            )
        field = super().formfield_for_dbfield(db_field, request, **kwargs)
        return fit(db_field.name, field) if db_field.name in ("payload", "job_type") else field

    @admin.display(description=_("payload"))
    def shown_payload(self, loop: Any) -> str:
        if not getattr(loop, "payload_shown", False):
            return shown.hidden()
        text = shown.json_text(loop.payload_text, secrets=loop.secrets)
        block = shown.block(text, _("payload"))
        if loop.payload_editable:
            return block
        why = _("It holds values that are masked: to change it takes the permission to see them.")
        return format_html("{}<p>{}</p>", block, shown.quiet(why))


def see(loop: Any, *, payloads: bool, secrets: bool) -> None:
    """Note on a loop what somebody may see of its payload, and whether they may change it.

    What they do not see they would overwrite blindly.
    """
    loop.payload_shown, loop.secrets = payloads, payloads and secrets
    try:
        value = json.loads(loop.payload_text or "null")
        whole = bool(shown.masked(value, settings.MASK) == value)
        loop.payload_broken = False
    except (ValueError, RecursionError):
        whole, loop.payload_broken = False, True
    loop.payload_editable = payloads and (secrets or whole)
    if loop.payload_broken and loop.payload_editable:
        loop.payload = {}  # what the form begins with


class LoopAdmin(LoopAdminMixin, admin.ModelAdmin):  # type: ignore[type-arg]
    """Loops in Django's own admin."""
