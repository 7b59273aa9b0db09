"""What all pages have in common: nothing can be edited, and lists stay fast on large tables."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast
from django.http import HttpRequest
from django.utils.functional import cached_property

from ..namespaces import database

# django-stubs makes ModelAdmin generic; Django does not.
if TYPE_CHECKING:
    MixinBase = admin.ModelAdmin[Any]
else:
    MixinBase = object

MOST_COUNTED = 10_000


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

    class Media:
        css = {"all": ["django_durable_jobs/admin.css"]}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = self.model._default_manager.using(database()).order_by("-pk")
        return rows.defer(*self.json_columns)

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any | None:
        """Return the row with its JSON as text: ``<column>_text``."""
        try:
            pk = self.model._meta.pk.to_python(object_id)
        except ValidationError:
            return None
        return self.with_texts(self.get_queryset(request)).filter(pk=pk).first()

    def with_texts(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        annotated: QuerySet[Any] = rows.annotate(**as_texts(self.json_columns))
        return annotated

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


def may(request: HttpRequest, codename: str) -> bool:
    """Tell whether the user has one of our own permissions, which are all on Job."""
    user: Any = request.user
    return bool(user.has_perm(f"django_durable_jobs.{codename}"))
