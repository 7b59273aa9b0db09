"""The pages of loop records, whatever model they are of."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import flatten_fieldsets, unquote
from django.contrib.admin.views.main import ChangeList
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.db import connections
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ..db import current_clock
from ..loops import sync_loops
from ..models import LoopRecord
from ..namespaces import database
from ..recurrence.words import every_in_words
from . import shown
from .base import MOST_COUNTED, CappedPaginator, job_and_state, link_to_job, may
from .filters import FailingFilter
from .loopdeeds import DISABLE, ENABLE, OWNERLESS, RUN_NOW, SYNC, jobs_in_hand, occurrences_of
from .loopforms import RECURRENCE, fit, loop_form
from .previews import Preview, preview_of_record
from .steering import Deed, SteeringAdminMixin


class LoopChangeList(ChangeList):
    """A list of records that knows the jobs of those it shows."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        records = list(self.result_list)  # which keeps them
        for record, job in jobs_in_hand(records):
            record.job_in_hand = job


class LoopRecordAdminMixin(SteeringAdminMixin):
    """Add, change and delete loop records, see when they run, and steer them.

    For the admin of any model that inherits from ``LoopRecord``, together with a ``ModelAdmin``.
    Changing takes Django's own permissions for the model; ``fire_permission`` and
    ``sync_permission`` are codenames of this app's, for *run now* and *sync*. Without ``fieldsets``
    of its own the page shows all fields that can be edited. Records are listed without a full
    count.
    """

    fire_permission = "fire_loop"
    sync_permission = "sync_loop"

    deeds = (RUN_NOW, ENABLE, DISABLE)
    none_such = _("No such record.")
    change_form_template = "admin/django_durable_jobs/looprecord/change_form.html"
    change_list_template = "admin/django_durable_jobs/looprecord/change_list.html"

    list_display = [
        "__str__", "enabled", "shown_when", "shown_next_run", "shown_job",
        "listed_last_run", "owner_id",
    ]  # fmt: skip
    list_filter = ["enabled", "needs_owner", FailingFilter]
    actions = ["enable_selected", "disable_selected", "run_selected"]
    actions_on_bottom = False
    list_per_page = 50
    list_max_show_all = 0
    paginator = CappedPaginator
    show_facets = admin.ShowFacets.NEVER
    show_full_result_count = False
    most_counted = MOST_COUNTED

    status_fields = (
        "shown_last_occurrence", "shown_last_error", "shown_needs_owner", "shown_updated_at",
    )  # fmt: skip

    # Looking

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return LoopChangeList

    def get_readonly_fields(self, request: HttpRequest, obj: Any | None = None) -> Any:
        return [*super().get_readonly_fields(request, obj), *self.status_fields]

    def get_fieldsets(self, request: HttpRequest, obj: Any | None = None) -> Any:
        if self.fieldsets or self.fields:
            return super().get_fieldsets(request, obj)
        known = {*RECURRENCE, "next_run_at", "enabled", "owner_id", *self.status_fields}
        names = list(self.get_fields(request, obj))
        own = [name for name in names if name not in known]
        when = [name for name in (*RECURRENCE, "next_run_at") if name in names]
        who = [name for name in ("enabled", "owner_id") if name in names]
        found: list[Any] = [
            (None, {"fields": [*own, *who]}),
            (_("When"), {"fields": when}),
        ]
        if obj is not None:
            found.append((_("How it went"), {"fields": list(self.status_fields)}))
        return found

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        field = super().formfield_for_dbfield(db_field, request, **kwargs)
        ours = getattr(LoopRecord, db_field.name, None) is not None
        return fit(db_field.name, field) if ours and field is not None else field

    def get_form(
        self, request: HttpRequest, obj: Any | None = None, change: bool = False, **kwargs: Any
    ) -> Any:
        kwargs["form"] = loop_form(kwargs.get("form", self.form))
        return super().get_form(request, obj, change=change, **kwargs)

    @admin.display(description=_("when"))
    def shown_when(self, record: LoopRecord) -> str:
        """Show the rule as it is stored: a list reads no rules, wrong ones could be slow."""
        zone = f" {record.timezone}" if record.timezone else ""
        if record.cron:
            return format_html("<code>{}</code>{}", record.cron, zone)
        if record.every is not None:
            baseline = f"{record.baseline:%H:%M}" if record.baseline else None
            return f"{every_in_words(record.every, baseline)}{zone if baseline else ''}"
        return gettext("once")

    @admin.display(description=_("next run"), ordering="next_run_at")
    def shown_next_run(self, record: LoopRecord) -> str:
        """Show when it runs next, or why it does not."""
        told = [shown.moment(record.next_run_at) if record.enabled else shown.quiet(_("disabled"))]
        if record.needs_owner:
            told.append(shown.state("failed", _("needs an owner")))
        if record.last_error:
            error = shown.plain_text(record.last_error, secrets=False)
            told += [shown.state("failed", _("error")), shown.cut(error, 80)]
        return shown.lines(told)

    @admin.display(description=_("last run"))
    def listed_last_run(self, record: LoopRecord) -> str:
        return shown.moment(record.last_occurrence_at)

    @admin.display(description=_("last occurrence"))
    def shown_last_occurrence(self, record: LoopRecord) -> str:
        return shown.moment(record.last_occurrence_at)

    @admin.display(description=_("its job"))
    def shown_job(self, record: Any) -> str:
        return job_and_state(self.admin_site, getattr(record, "job_in_hand", None))

    @admin.display(description=_("last error"))
    def shown_last_error(self, record: LoopRecord) -> str:
        return shown.block(shown.plain_text(record.last_error, secrets=False), _("last error"))

    @admin.display(description=_("needs an owner"))
    def shown_needs_owner(self, record: LoopRecord) -> str:
        if record.needs_owner:
            return shown.state("failed", _("yes: it does not run until it has one"))
        return gettext("no")

    @admin.display(description=_("updated at"))
    def shown_updated_at(self, record: LoopRecord) -> str:
        return shown.moment(record.updated_at)

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        *args: Any,
        obj: Any = None,
        **kwargs: Any,
    ) -> HttpResponse:
        form = context["adminform"].form
        if obj is not None:
            context["deeds"] = self.deeds_for(request, obj)
            context["occurrences"] = self.occurrences(obj)
            may_edit = self.has_change_permission(request, obj)
            context["preview_url"] = reverse(self.url_name("preview"), args=[obj.pk])
        else:
            may_edit = self.has_add_permission(request)
            context["preview_url"] = reverse(self.url_name("preview_new"))
        context["may_preview"] = may_edit
        if form.is_bound:
            context["preview"] = self.preview_of_form(form)
        elif obj is not None:
            context["preview"] = preview_of_record(obj, self.now())
        kwargs["obj"] = obj
        return super().render_change_form(request, context, *args, **kwargs)

    def occurrences(self, record: Any) -> list[dict[str, Any]]:
        """Return what the page tells of the record's latest occurrences, newest first."""
        return [
            {
                "job": job,
                "due": shown.moment(job.run_at),
                "link": link_to_job(self.admin_site, job.pk),
                "state": shown.state(job.state, job.get_state_display()),
                "finished": shown.moment(job.finished_at),
                "why": shown.isolated(job.cancelled_reason or ""),
            }
            for job in occurrences_of(record)
        ]

    # Previewing

    @staticmethod
    def now() -> Any:
        return current_clock().now(connections[database()])

    def preview_of_form(self, form: Any) -> Preview:
        """Preview what a bound form says; what is wrong with its rule, where it says none."""
        form.is_valid()
        wrong = [
            f"{form.fields[name].label or name}: {problem}"
            for name in (*RECURRENCE, "next_run_at")
            for problem in form.errors.get(name, ())
        ]
        if wrong:
            return Preview(problem=" ".join(wrong))
        changed = set(form.changed_data)
        edited = bool(changed & set(RECURRENCE)) and "next_run_at" not in changed
        return preview_of_record(form.instance, self.now(), edited=edited)

    def preview_view(self, request: HttpRequest, object_id: str | None = None) -> HttpResponse:
        """Return the preview alone, for the script on the page; nothing is saved."""
        obj = None
        if object_id is not None:
            obj = self.get_object(request, unquote(object_id))
            if obj is None:
                raise Http404
        may_edit = self.has_add_permission(request) if obj is None else None
        if not (may_edit if obj is None else self.has_change_permission(request, obj)):
            raise PermissionDenied
        fields = flatten_fieldsets(self.get_fieldsets(request, obj))
        made = self.get_form(request, obj, change=obj is not None, fields=fields)
        form = made(request.POST, instance=obj)
        context = {"preview": self.preview_of_form(form)}
        return TemplateResponse(request, "admin/django_durable_jobs/preview.html", context)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Save it, and tell what came of that."""
        super().save_model(request, obj, form, change)
        if obj.last_error:
            text = _("It has no job: %s") % shown.plain_text(obj.last_error, secrets=False)
            self.message_user(request, text, messages.WARNING)
        elif obj.needs_owner:
            self.message_user(request, OWNERLESS, messages.WARNING)
        elif obj.enabled and obj.next_run_at is not None:
            at = shown.plain_moment(obj.next_run_at)
            self.message_user(request, _("Next run: %s") % at, messages.INFO)

    # Steering

    def may_do(self, request: HttpRequest, deed: Deed) -> bool:
        if not self.has_view_permission(request):
            return False
        if deed is SYNC:
            return may(request, self.sync_permission)
        if deed is RUN_NOW:
            return may(request, self.fire_permission)
        return self.has_change_permission(request)

    def note_on(self, row: Any) -> str:
        if not row.enabled:
            return gettext("disabled")
        return shown.plain_moment(row.next_run_at) if row.next_run_at else ""

    def revision_of(self, row: Any) -> str:
        return str(row.updated_at.isoformat())

    def has_run_permission(self, request: HttpRequest) -> bool:
        return self.may_do(request, RUN_NOW)

    @admin.action(description=_("Enable selected %(verbose_name_plural)s"), permissions=["change"])
    def enable_selected(self, request: HttpRequest, rows: QuerySet[Any]) -> HttpResponse:
        return self.steer(request, ENABLE, rows, action="enable_selected")

    @admin.action(description=_("Disable selected %(verbose_name_plural)s"), permissions=["change"])
    def disable_selected(self, request: HttpRequest, rows: QuerySet[Any]) -> HttpResponse:
        return self.steer(request, DISABLE, rows, action="disable_selected")

    @admin.action(description=_("Run selected %(verbose_name_plural)s now"), permissions=["run"])
    def run_selected(self, request: HttpRequest, rows: QuerySet[Any]) -> HttpResponse:
        return self.steer(request, RUN_NOW, rows, action="run_selected")

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        sync = reverse(self.url_name(SYNC.name)) if self.may_do(request, SYNC) else None
        extra = {"sync": SYNC, "sync_url": sync, **(extra_context or {})}
        return super().changelist_view(request, extra)

    def get_urls(self) -> list[URLPattern]:
        def view(route: str, name: str, method: Any) -> URLPattern:
            return path(route, self.posted(method), name=self.url_name(name, ""))

        return [
            view("sync/", SYNC.name, self.sync_view),
            view("preview/", "preview_new", self.preview_view),
            view("<path:object_id>/preview/", "preview", self.preview_view),
            *super().get_urls(),
        ]

    def sync_view(self, request: HttpRequest) -> HttpResponse:
        """Reconcile all records of this model with their jobs, after a page that asks."""
        if not self.may_do(request, SYNC):
            raise PermissionDenied
        back = reverse(self.url_name("changelist"))
        if "confirmed" not in request.POST:
            return self.ask(request, SYNC, [], back, whole=True)
        number = sync_loops(self.model)
        text = ngettext(
            "Synced: %(n)d record was changed.", "Synced: %(n)d records were changed.", number
        ) % {"n": number}
        LogEntry.objects.create(
            user_id=int(request.user.pk or 0),
            content_type=ContentType.objects.get_for_model(self.model),
            object_repr=str(self.opts.verbose_name_plural),
            action_flag=CHANGE,
            change_message=text,
        )
        self.message_user(request, text, messages.SUCCESS)
        return HttpResponseRedirect(back)
