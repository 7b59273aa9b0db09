"""A project whose admin is django-unfold's: settings, addresses, and what its pages answer.

``python -m tests.unfolded`` prints what each page answered as JSON, for tests/doors/test_unfold.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as _APPS

INSTALLED_APPS = ["unfold", *_APPS]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
ROOT_URLCONF = "tests.unfolded_urls"


def _rows() -> dict[str, Any]:
    from datetime import timedelta

    from django_durable_jobs.models import Loop, Schedule
    from tests.factories import make_job, make_worker, now

    worker = make_worker()
    columns: dict[str, Any] = {"kind": "cron", "when": "0 2 * * *", "timezone": "UTC"}
    make_job("running", worker=worker)
    return {
        "job": make_job(),
        "execution": make_job("failed", worker=worker).executions.get(),
        "worker": worker,
        "schedule": Schedule.objects.create(
            namespace="default", name="s", declared_at=now(), rule="x", **columns
        ),
        "loop": Loop.objects.create(name="l", job_type="x.y", every=timedelta(hours=1)),
    }


def _answers(client: Any) -> dict[str, tuple[int, str]]:
    from django.urls import reverse

    from django_durable_jobs.models import Job

    rows = _rows()
    found: dict[str, tuple[int, str]] = {}

    def ask(name: str, method: Callable[..., Any], view: str, *keys: Any, **more: Any) -> None:
        url = reverse(f"admin:django_durable_jobs_{view}", args=[str(key) for key in keys])
        response = method(url, *([more.pop("data")] if "data" in more else []), **more)
        found[name] = (response.status_code, response.content.decode())

    ask("overview", client.get, "overview_changelist")
    for model in (*rows, "tickclaim", "tickgap"):
        ask(f"{model} list", client.get, f"{model}_changelist")
    for model, row in rows.items():
        ask(f"{model} page", client.get, f"{model}_change", row.pk)
    rule = {"every": "00:05:00"}
    ask("preview", client.post, "loop_preview_new", data=rule)
    job, chosen = rows["job"], {"action": "cancel_selected", "_selected_action": rows["job"].pk}
    ask("question", client.post, "job_changelist", data=chosen)
    ask("answer", client.post, "job_cancel", job.pk, data={"confirmed": "yes"}, follow=True)
    found["state"] = (200, Job.objects.get(pk=job.pk).state)
    return found


def main() -> None:
    import django

    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.unfolded"
    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.test import Client
    from django.test.utils import setup_test_environment

    setup_test_environment()
    call_command("migrate", run_syncdb=True, verbosity=0)
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    print(json.dumps(_answers(client)))


if __name__ == "__main__":
    main()
