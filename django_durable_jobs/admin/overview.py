"""The page at the top: whether workers live, what comes next, what failed, what is stuck."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import connections
from django.forms import Media
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.http import urlencode
from django.utils.translation import gettext_lazy as _

from ..conf import settings
from ..db import current_clock
from ..figures import SPANS
from ..models import Job, Namespace, Overview
from ..namespaces import database
from . import shown
from .base import ASSETS, MixinBase, as_uuid, may
from .overviewfigures import figures_of
from .overviewparts import Scope, parts_of

_DEFAULT_SPAN = "1h"
_SPAN_NAMES = {"15m": _("15 minutes"), "1h": _("hour"), "24h": _("day")}
_MOST_NAMESPACES = 100
# Whoever may view one of these has something to see here.
PERMISSIONS = ("view_job", "view_execution", "view_worker", "view_schedule", "view_loop")
OVERVIEW_ASSETS = ASSETS + Media(
    css={"all": ["django_durable_jobs/overview.css"]}, js=["django_durable_jobs/overview.js"]
)


class OverviewAdminMixin(MixinBase):
    """Show how a namespace stands, each part to those who may view what is in it."""

    overview_template = "admin/django_durable_jobs/overview.html"
    parts_template = "admin/django_durable_jobs/overview_parts.html"
    # How often the page asks for what is new, in seconds.
    refresh_every = 10

    @property
    def media(self) -> Any:
        return super().media + OVERVIEW_ASSETS

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.overview_view)
        return [path("", view, name="django_durable_jobs_overview_changelist")]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any | None = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any | None = None) -> bool:
        return any(may(request, codename) for codename in PERMISSIONS)

    def overview_view(self, request: HttpRequest) -> HttpResponse:
        """Answer with the page, with its parts only (``?parts=1``), or with the way to a job."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        request.current_app = self.admin_site.name
        term = request.GET.get("find", "").strip()
        found = self._way_to(request, term)
        if found is not None:
            return HttpResponseRedirect(found)
        span = SPANS.get(request.GET.get("range", ""), SPANS[_DEFAULT_SPAN])
        alias = database()
        names = list(Namespace.objects.using(alias).order_by("name")[:_MOST_NAMESPACES])
        asked = request.GET.get("namespace", "")
        if asked not in {each.name for each in names}:
            asked = settings.NAMESPACE
        scope = Scope(
            namespace=asked,
            row=next((each for each in names if each.name == asked), None),
            now=current_clock().now(connections[alias]),
            using=alias,
            site=self.admin_site,
            request=request,
        )
        context = parts_of(scope)
        context |= figures_of(scope, span, context.get("waits"))
        context |= {
            "not_found": term,
            "range": span.key,
            "namespace": asked,
            "at": shown.local(scope.now),
        }
        context["may_find"] = self._may_find(request)
        context |= {"here": _query(span.key, asked), "range_name": _SPAN_NAMES[span.key]}
        if "parts" in request.GET:
            return TemplateResponse(request, self.parts_template, context)
        context |= {
            **self.admin_site.each_context(request),
            "title": _("Overview"),
            "opts": self.opts,
            "media": self.media,
            "parts_template": self.parts_template,
            "refresh_every": self.refresh_every,
            "ranges": list(_choices(_SPAN_NAMES.items(), "range", span.key, asked)),
            "namespaces": sorted({asked, *(each.name for each in names)}),
        }
        return TemplateResponse(request, self.overview_template, context)

    def _may_find(self, request: HttpRequest) -> bool:
        return may(request, "view_job") and self.admin_site.is_registered(Job)

    def _way_to(self, request: HttpRequest, term: str) -> str | None:
        """Return where to look for a job: its page by its id, else the list of what is found.

        None where there is nothing to look for, or no job with that id.
        """
        site = self.admin_site
        if not term or not self._may_find(request):
            return None
        pk = as_uuid(term)
        if pk is None:
            jobs = reverse(f"{site.name}:django_durable_jobs_job_changelist")
            return f"{jobs}?{urlencode({'q': term})}"
        if not Job.objects.using(database()).filter(pk=pk).exists():
            return None
        return reverse(f"{site.name}:django_durable_jobs_job_change", args=[pk])


def _query(span: str, namespace: str) -> str:
    chosen = {"range": span}
    if namespace != settings.NAMESPACE:
        chosen["namespace"] = namespace
    return urlencode(chosen)


def _choices(
    names: Any, parameter: str, chosen: str, namespace: str
) -> Iterator[tuple[str, Any, bool]]:
    """Yield (query, name, whether it is chosen) for each range."""
    for key, name in names:
        yield _query(key, namespace), name, key == chosen


class OverviewAdmin(OverviewAdminMixin, admin.ModelAdmin):  # type: ignore[type-arg]
    """The overview in Django's own admin."""


__all__ = ["Overview", "OverviewAdmin", "OverviewAdminMixin"]
