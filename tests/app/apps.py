import faulthandler
import os
import signal

from django.apps import AppConfig


class TestAppConfig(AppConfig):
    """Stand in for a host project's app."""

    name = "tests.app"
    label = "testapp"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        if os.environ.get("DDJ_LEDGER"):
            # A worker that does not end when it should can be asked where it stands.
            faulthandler.register(signal.SIGUSR1)
        if os.environ.get("DDJ_UNFENCED"):
            from tests.app import unfenced  # noqa: F401
        if os.environ.get("DDJ_RELEASE"):
            from tests.app import releases  # noqa: F401
        if os.environ.get("DDJ_SCHEDULES"):
            from tests.app import timed  # noqa: F401
