"""Filters that ask the database for nothing, or for a handful of rows."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.db import connections
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from .. import registry
from ..db import current_clock
from ..models import Execution, Namespace, QueueEntry, Schedule, Worker
from ..namespaces import database
from ..states import ACTIVE, ExecutionState, InterruptionReason, State
from .base import as_uuid
from .loopforms import job_types
from .stretches import Stretch, stretch_of


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


class JobTypeFilter(TypeFilter):
    """Filter loops by the types of their jobs."""

    title = _("job type")
    parameter_name = column = "job_type"

    def names(self) -> Iterable[str]:
        return job_types()


def known_queues() -> set[str]:
    """Return the queues that this process' handlers name, and the default one."""
    return {
        "default",
        *(handler.queue or "default" for handler in registry.handlers.handlers()),
    }


class QueueFilter(NameFilter):
    """Filter by the queues that this process' handlers name."""

    title = _("queue")
    parameter_name = column = "queue"

    def names(self) -> Iterable[str]:
        return known_queues()


class NamespaceFilter(NameFilter):
    """Filter by namespace; not offered where there is only one."""

    title = _("namespace")
    parameter_name = column = "namespace"

    def names(self) -> Iterable[str]:
        return Namespace.objects.using(database()).values_list("name", flat=True)[:100]

    def has_output(self) -> bool:
        return len(self.lookup_choices) > 1 or self.value() is not None


class ExecutionStateFilter(admin.SimpleListFilter):
    """Filter executions by state: by the index on it, where few are in that state."""

    title = _("state")
    parameter_name = "state__exact"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        self.page = model_admin
        return list(ExecutionState.choices)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None:
            return queryset
        stretch = stretch_of(request, self.page)
        found = self.keys(value, namespaces_of(request, stretch))
        rows = queryset.filter(state=value)
        return rows if found is None else stretch.serve(rows, found)

    def keys(self, state: str, namespaces: list[str]) -> QuerySet[Any] | None:
        """Return the keys of the rows in this state, as an index finds them; None: none does."""
        executions = Execution.objects.using(database())
        return executions.filter(namespace__in=namespaces, state=state).values("pk")


class JobStateFilter(ExecutionStateFilter):
    """Filter jobs by state, by the indexes on queue entries and executions."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        self.page = model_admin
        return list(State.choices)

    def keys(self, state: str, namespaces: list[str]) -> QuerySet[Any] | None:
        if state == State.QUEUED:
            return QueueEntry.objects.using(database()).values("pk")
        # A completed job's execution may have been interrupted, and a cancelled one has none.
        if state in (*ACTIVE, State.FAILED, State.INTERRUPTED):
            executions = Execution.objects.using(database())
            return executions.filter(namespace__in=namespaces, state=state).values("job_id")
        return None


class InterruptedFilter(admin.SimpleListFilter):
    """Filter jobs by how their claim was interrupted, whether that was resolved since or not."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        self.page = model_admin
        return self.choices_of(self.value())

    def choices_of(self, value: str | None) -> list[tuple[str, Any]]:
        """Return the choices, where ``value`` is chosen already."""
        raise NotImplementedError

    def which(self, value: str) -> Q | None:
        """Return which executions are meant; None for nonsense."""
        raise NotImplementedError

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None:
            return queryset
        which = self.which(value)
        if which is None:
            return queryset.none()
        stretch = stretch_of(request, self.page)
        found = Execution.objects.using(database()).filter(
            which, namespace__in=namespaces_of(request, stretch), state=State.INTERRUPTED
        )
        theirs = found.filter(job_id=OuterRef("pk"), claim_id=OuterRef("claim_id"))
        return stretch.serve(queryset.filter(Exists(theirs)), found.values("job_id"))


class InterruptedByFilter(InterruptedFilter):
    """By the worker that had it: offered by the page of that worker."""

    title = _("interrupted on worker")
    parameter_name = "interrupted_by"

    def choices_of(self, value: str | None) -> list[tuple[str, Any]]:
        pk = as_uuid(value or "")
        worker = Worker.objects.using(database()).filter(pk=pk).first() if pk else None
        return [(value, worker or value)] if value else []

    def has_output(self) -> bool:
        return self.value() is not None

    def which(self, value: str) -> Q | None:
        pk = as_uuid(value)
        return Q(worker_id=pk) if pk else None


class InterruptedBecauseFilter(InterruptedFilter):
    """By the reason."""

    title = _("interrupted because")
    parameter_name = "interrupted_because"

    def choices_of(self, value: str | None) -> list[tuple[str, Any]]:
        return list(InterruptionReason.choices)

    def which(self, value: str) -> Q | None:
        return Q(interruption_reason=value)


class InterruptedSinceFilter(InterruptedFilter):
    """By the time."""

    title = _("interrupted within")
    parameter_name = "interrupted_within"

    spans = {
        "1h": (timedelta(hours=1), _("the last hour")),
        "1d": (timedelta(days=1), _("the last 24 hours")),
        "7d": (timedelta(days=7), _("the last 7 days")),
    }

    def choices_of(self, value: str | None) -> list[tuple[str, Any]]:
        return [(name, words) for name, (_span, words) in self.spans.items()]

    def which(self, value: str) -> Q | None:
        if value not in self.spans:
            return None
        now = current_clock().now(connections[database()])
        return Q(interrupted_at__gte=now - self.spans[value][0])


def namespaces_of(request: HttpRequest, stretch: Stretch) -> list[str]:
    """Return the namespaces that a list is about."""
    asked = request.GET.get(NamespaceFilter.parameter_name)
    return stretch.namespaces if asked is None else [asked]


class StatusFilter(admin.SimpleListFilter):
    """Filter schedules by what an operator looks for; they are few, so no index is needed."""

    title = _("status")
    parameter_name = "status"

    which = {
        "paused": Q(paused_at__isnull=False, retired_at__isnull=True),
        "running": Q(running=True, retired_at__isnull=True),
        "failing": Q(retired_at__isnull=True) & ~Q(last_error=""),
        "missing": Q(misses__gt=0, retired_at__isnull=True),
        "gone": Q(retired_at__isnull=False),
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [
            ("paused", _("paused")),
            ("running", _("running")),
            ("failing", _("failed last")),
            ("missing", _("has missed ticks")),
            ("gone", _("gone from the code")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        which = self.which.get(self.value() or "")
        return queryset if which is None else queryset.filter(which)


class ScheduleFilter(admin.SimpleListFilter):
    """Filter ticks by their schedule, by the index on its name, newest tick first."""

    title = _("schedule")
    parameter_name = "schedule"
    order: tuple[str, ...] = ("-scheduled_at",)

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        rows = Schedule.objects.using(database()).order_by("name", "namespace")
        found = list(rows.values_list("pk", "name")[:100])
        asked = self.value() or ""
        if asked.isdecimal() and not any(str(pk) == asked for pk, _name in found):
            found += rows.filter(pk=asked[:18]).values_list("pk", "name")
        return [(str(pk), name) for pk, name in found]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None:
            return queryset
        rows = Schedule.objects.using(database())
        row = rows.filter(pk=value[:18]).first() if value.isdecimal() else None
        if row is None:
            return queryset.none()
        return queryset.filter(namespace=row.namespace, name=row.name).order_by(*self.order)


class GapScheduleFilter(ScheduleFilter):
    """The same for stretches of missed ticks."""

    order = ("-first",)


class FailingFilter(admin.SimpleListFilter):
    """Filter records by whether something is wrong with them."""

    title = _("last error")
    parameter_name = "failing"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("yes", _("has an error"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.exclude(last_error="") if self.value() == "yes" else queryset
