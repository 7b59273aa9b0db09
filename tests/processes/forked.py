"""What forked processes do; it is imported before the fork, which sets up Django."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any

import django
from django.apps import apps

from tests import databases

if not apps.ready:  # they are where pytest imports this
    django.setup()

from django.core.management import execute_from_command_line
from django.db import connection, transaction
from django.test import override_settings

from django_durable_jobs import enqueue
from django_durable_jobs.management.commands import runscheduler  # noqa: F401
from tests.app.models import Note

connection.vendor  # noqa: B018 (its driver is imported)


def begin(
    target: Callable[[Any], object], argument: Any, environment: dict[str, str], log: str
) -> None:
    """Become a process of its own, with this environment, and call ``target``."""
    from tests.app import killing

    if die_with_parent := databases.die_with_parent(signal.SIGKILL):
        die_with_parent()
    os.environ.update(environment)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    killing.install(environment.get(killing.VARIABLE, ""))
    with override_settings(DURABLE_JOBS=json.loads(environment["DDJ_DURABLE_JOBS"])):
        target(argument)


def run_command(arguments: list[str]) -> None:
    """Run a management command."""
    execute_from_command_line(["django", *arguments])


def enqueue_one(fields: dict[str, Any]) -> None:
    """Enqueue a job, and write a note, in one transaction."""
    with transaction.atomic():
        Note.objects.create(text=fields["id"])
        enqueue(**fields)
