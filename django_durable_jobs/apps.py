"""The app: finds the handlers of every installed app."""

from __future__ import annotations

import signal
import sys
import threading

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _


def _end_quietly_at_ctrl_c() -> None:
    """Have Ctrl-C end a process that is just being started as a worker as it ends any other.

    Python would say where it stands. ``runscheduler`` listens itself once Django is set up.
    """
    is_worker = sys.argv[1:2] == ["runscheduler"] or (
        sys.argv[1:2] == ["durablejobs"] and "run" in sys.argv[2:]
    )
    untouched = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_worker and untouched and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_DFL)


class DurableJobsConfig(AppConfig):
    """Import the module named ``jobs`` of every installed app; start nothing."""

    name = "django_durable_jobs"
    label = "django_durable_jobs"
    verbose_name = _("Durable jobs")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks, enqueueing, receivers  # noqa: F401 - two register themselves

        receivers.connect()
        autodiscover_modules("jobs")


_end_quietly_at_ctrl_c()  # the apps' models and jobs, which take longest, are imported after this
