"""Our pages on django-unfold's base class: the mixins, as docs/admin.md has them."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path
from unfold.admin import ModelAdmin

from django_durable_jobs import admin as pages
from django_durable_jobs import models

for _name in (
    "Overview", "Job", "Execution", "Worker", "Schedule", "TickClaim", "TickGap", "Loop",
):  # fmt: skip
    _model, _mixin = getattr(models, _name), getattr(pages, f"{_name}AdminMixin")
    admin.site.unregister(_model)
    admin.site.register(_model, type(f"{_name}Admin", (_mixin, ModelAdmin), {}))

urlpatterns = [path("admin/", admin.site.urls)]
