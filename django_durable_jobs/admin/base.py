"""What all pages have in common: nothing can be edited, and lists stay fast on large tables."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast
from django.forms import Media
from django.http import HttpRequest
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString

from ..models import Job
from ..namespaces import database
from .shown import state
from .stretches import StretchList, is_key_of

# django-stubs makes ModelAdmin generic; Django does not.
if TYPE_CHECKING:
    MixinBase = admin.ModelAdmin[Any]
else:
    MixinBase = object

MOST_COUNTED = 10_000
ASSETS = Media(css={"all": ["django_durable_jobs/admin.css"]}, js=["django_durable_jobs/admin.js"])


class CappedPaginator(Paginator):  # type: ignore[type-arg]
    """Count no further than MOST_COUNTED rows: a full count reads the whole table."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return int(rows.order_by()[:MOST_COUNTED].count())


class ReadOnlyAdminMixin(MixinBase):
    """Show rows, and let nobody add, change or delete them: states have verbs for that.

    ``json_columns`` are left in the database: lists do without them, pages read their text, so
    that one row edited into nonsense harms neither.
    """

    json_columns: tuple[str, ...] = ()
    lookups: tuple[str, ...] = ()
    # The column that tells when a row was made, where rows are looked through by stretches.
    time_column = ""

    actions_on_bottom = False
    list_per_page = 50
    list_max_show_all = 0
    paginator = CappedPaginator
    show_facets = admin.ShowFacets.NEVER
    show_full_result_count = False
    sortable_by = ()
    save_on_top = False
    change_list_template = "admin/django_durable_jobs/change_list.html"
    most_counted = MOST_COUNTED

    @property
    def media(self) -> Any:
        # Not by an inner class: one of a project's own would take its place.
        return super().media + ASSETS

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = self.model._default_manager.using(database()).order_by("-pk")
        return rows.defer(*self.json_columns)

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any | None:
        """Return the row with its JSON as text: ``<column>_text``."""
        if not is_key_of(self.model, object_id):
            return None
        return self.with_texts(self.get_queryset(request)).filter(pk=object_id).first()

    def with_texts(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        annotated: QuerySet[Any] = rows.annotate(**as_texts(self.json_columns))
        return annotated

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[Any]:
        if self.time_column:
            return StretchList
        plain: type[Any] = super().get_changelist(request, **kwargs)
        return plain

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any | None = None) -> bool:
        return False

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        return (self.search(queryset, term) if term else queryset), False

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Allow the filters' own lookups only: others could probe what is hidden, or take long."""
        return lookup in self.lookups

    def search(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        """Find rows by exact values, which indexes serve."""
        raise NotImplementedError


def as_texts(columns: tuple[str, ...]) -> dict[str, Cast]:
    """Return annotations that read JSON columns as text, whatever is in them."""
    return {f"{column}_text": Cast(column, TextField()) for column in columns}


def as_uuid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


def link_to_job(site: admin.AdminSite, job: uuid.UUID | str) -> SafeString:
    """Show a job by the end of its id, linked to its page where the site has one."""
    shown = str(job)[-8:]
    if not site.is_registered(Job):
        return format_html('<span class="ddj-id" title="{}">{}</span>', job, shown)
    url = reverse(f"{site.name}:django_durable_jobs_job_change", args=[job])
    return format_html('<a class="ddj-id" href="{}" title="{}">{}</a>', url, job, shown)


def job_and_state(site: admin.AdminSite, job: Job | None) -> SafeString | str:
    """Show a job with its state, linked; "-" for none."""
    if job is None:
        return "-"
    shown_state = state(job.state, job.get_state_display())
    return format_html("{} {}", link_to_job(site, job.pk), shown_state)


def may(request: HttpRequest, codename: str) -> bool:
    """Tell whether the user has a permission of ours, by its codename."""
    user: Any = request.user
    return bool(user.has_perm(f"django_durable_jobs.{codename}"))
