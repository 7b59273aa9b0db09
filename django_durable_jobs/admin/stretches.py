"""How far back one list looks, so that it answers at once however many rows there are.

A list shows the newest first. What an index serves (an id, a key, a target, a state that few rows
are in) is looked for everywhere. Anything else is looked for in a stretch of rows, newest first,
and the list tells how far it looked and links to the stretch before. All bounds are on the primary
key, which grows with time.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

from django.contrib.admin.views.main import PAGE_VAR, ChangeList
from django.core.exceptions import ValidationError
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest

from ..conf import settings
from ..models import Namespace
from ..namespaces import database
from .shown import moment

BEFORE = "before"
LOOKED_THROUGH = 50_000
FEW = 5_000


def are_few(rows: QuerySet[Any]) -> bool:
    """Tell whether these are so few that they may all be read; reads no more than FEW of them."""
    return int(rows.order_by()[: FEW + 1].count()) <= FEW


class Stretch:
    """Which rows of a table one request looks at: from ``before`` (a key) back.

    Whatever finds rows by an index says so: all that were found are ``served``, or these are to
    be shown ``also``, by their keys.
    """

    def __init__(self, rows: QuerySet[Any], before: str) -> None:
        self.rows = rows.order_by("-pk")
        self.before = before
        self.served = False
        self.also: list[Any] = []

    @cached_property
    def floor(self) -> Any:
        """The oldest key that is looked at; None where the stretch reaches back to the first."""
        keys = self.below(self.rows).values_list("pk", flat=True)
        return next(iter(keys[LOOKED_THROUGH - 1 : LOOKED_THROUGH]), None)

    @cached_property
    def namespaces(self) -> list[str]:
        """All there are, since the indexes begin with them."""
        rows = Namespace.objects.using(database()).values_list("name", flat=True)
        return sorted({settings.NAMESPACE, *rows})

    def below(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return rows.filter(pk__lt=self.before) if self.before else rows

    def of(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Return those of the rows that lie in the stretch."""
        rows = self.below(rows)
        if self.floor is None:
            return rows
        here = Q(pk__gte=self.floor)
        return rows.filter(here | Q(pk__in=self.also) if self.also else here)

    def serve(self, rows: QuerySet[Any], keys: QuerySet[Any]) -> QuerySet[Any]:
        """Look for rows among those with these keys, where an index finds all, and they are few."""
        if self.floor is None or not are_few(keys):
            return rows
        self.served = True
        return rows.filter(pk__in=keys)

    def show_also(self, keys: Iterable[Any]) -> None:
        self.also = [*self.also, *keys]


class StretchList(ChangeList):
    """A change list that looks through one stretch, unless something else bounds it."""

    model_admin: Any

    @property
    def looked_through(self) -> int:
        return LOOKED_THROUGH

    def get_filters_params(self, params: Any = None) -> dict[str, Any]:
        own: dict[str, Any] = super().get_filters_params(params)
        own.pop(BEFORE, None)
        return own

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request, *args, **kwargs)
        self.stretch = stretch_of(request, self.model_admin)
        narrowed = bool(self.get_filters_params()) or bool(self.query)
        self.bounded = narrowed and not self.stretch.served
        return self.stretch.of(rows) if self.bounded else self.stretch.below(rows)

    @cached_property
    def oldest(self) -> Any:
        """The key before which the next stretch begins; None where nothing lies before it."""
        if self.result_count >= self.model_admin.most_counted:
            keys = self.queryset.values_list("pk", flat=True)
            last = self.model_admin.most_counted - 1
            return next(iter(keys[last : last + 1]), None)
        return self.stretch.floor if self.bounded else None

    @cached_property
    def oldest_at(self) -> Any:
        """The time of the oldest row of this stretch, as it is shown."""
        rows = self.stretch.rows.filter(pk=self.oldest)
        return moment(rows.values_list(self.model_admin.time_column, flat=True).first())

    @property
    def further_url(self) -> str:
        """The address of what lies before this stretch; "" where nothing does."""
        oldest = self.oldest
        if oldest is None:
            return ""
        return self.get_query_string({BEFORE: str(oldest)}, [PAGE_VAR])

    @property
    def newest_url(self) -> str:
        return self.get_query_string(remove=[PAGE_VAR])

    def get_query_string(
        self, new_params: dict[str, Any] | None = None, remove: Iterable[str] | None = None
    ) -> str:
        """Return the address of another view of the list: from the newest on, unless it leafs."""
        if not {BEFORE, PAGE_VAR} & set(new_params or {}):
            remove = [*(remove or []), BEFORE]
        url: str = super().get_query_string(new_params, remove)
        return url


def stretch_of(request: HttpRequest, page: Any) -> Stretch:
    """Return the stretch that this request looks at; the same for each part of the page."""
    known: Stretch | None = getattr(request, "_ddj_stretch", None)
    if known is None:
        before = request.GET.get(BEFORE, "")
        before = before if before and is_key_of(page.model, before) else ""
        known = Stretch(page.get_queryset(request), before)
        request._ddj_stretch = known  # type: ignore[attr-defined]
    return known


def is_key_of(model: type[Model], text: str) -> bool:
    """Tell whether this can be the primary key of a row of ``model``."""
    try:
        key = model._meta.pk.to_python(text)
    except (ValidationError, ValueError):
        return False
    return not isinstance(key, int) or abs(key) < 2**63
