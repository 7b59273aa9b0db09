"""The app: finds the handlers of every installed app."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _


class DurableJobsConfig(AppConfig):
    """Import the module named ``jobs`` of every installed app; start nothing."""

    name = "django_durable_jobs"
    label = "django_durable_jobs"
    verbose_name = _("Durable jobs")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks, enqueueing  # noqa: F401 - they register themselves

        autodiscover_modules("jobs")
