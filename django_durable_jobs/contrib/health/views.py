"""The page that probes ask."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.db import connections
from django.http import HttpRequest, HttpResponseBase, JsonResponse
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache

from ...insight import health


@method_decorator([never_cache, login_not_required], name="dispatch")
class HealthView(View):
    """Tell as JSON whether all is well, with numbers and codes only: anybody may ask.

    ``namespace`` None is the setting NAMESPACE; ``max_age`` (seconds or a timedelta) is how long a
    job may have been due, None for as long as it likes; ``using`` the alias that jobs live in.
    """

    http_method_names = ["get", "head"]
    namespace: str | None = None
    max_age: float | timedelta | None = None
    using: str | None = None

    @classmethod
    def as_view(cls, **initkwargs: Any) -> Callable[..., HttpResponseBase]:
        view = super().as_view(**initkwargs)
        # ATOMIC_REQUESTS would raise before the view is asked, where the database is gone.
        view._non_atomic_requests = set(connections)  # type: ignore[attr-defined]
        return view

    def get(self, request: HttpRequest) -> JsonResponse:
        found = health(self.namespace, max_age=self.max_age, using=self.using)
        told: dict[str, Any] = {
            "healthy": found.healthy,
            "problems": [
                {"code": problem.code, "message": problem.message} for problem in found.problems
            ],
            "workers": found.live,
        }
        if self.max_age is not None:
            told["oldest_due"] = found.oldest_due
        return JsonResponse(told, status=200 if found.healthy else 503)
