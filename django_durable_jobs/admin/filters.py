"""Filters that ask the database for nothing, or for a handful of rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from .. import registry
from ..models import Namespace
from ..namespaces import database


class NameFilter(admin.SimpleListFilter):
    """Filter by a column of names; Django's own filter would search the table for them."""

    column = ""

    def names(self) -> Iterable[str]:
        """Return the names to offer; one that was asked for by its address is offered as well."""
        raise NotImplementedError

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        names = {*self.names(), *filter(None, [self.value()])}
        return [(name, name) for name in sorted(names)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        return queryset if value is None else queryset.filter(**{self.column: value})


class TypeFilter(NameFilter):
    """Filter by the types that this process has handlers for."""

    title = _("type")
    parameter_name = column = "type"

    def names(self) -> Iterable[str]:
        return registry.types()


class QueueFilter(NameFilter):
    """Filter by the queues that this process' handlers name."""

    title = _("queue")
    parameter_name = column = "queue"

    def names(self) -> Iterable[str]:
        return {
            "default",
            *(handler.queue or "default" for handler in registry.handlers.handlers()),
        }


class NamespaceFilter(NameFilter):
    """Filter by namespace; not offered where there is only one."""

    title = _("namespace")
    parameter_name = column = "namespace"

    def names(self) -> Iterable[str]:
        return Namespace.objects.using(database()).values_list("name", flat=True)[:100]

    def has_output(self) -> bool:
        return len(self.lookup_choices) > 1 or self.value() is not None
