"""`durablejobs prune`: delete jobs that ended long ago, and the record of old ticks."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from ...conf import settings
from ...retention import prune_jobs
from ...ticks import prune_tick_claims
from .scope import add_scope, scope_of, span
from .telling import counted, refusals


class Command(BaseCommand):
    help = "Delete jobs that ended long ago, with their executions, and the record of old ticks."
    # What handlers and schedules look like does not matter to it.
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "what", nargs="?", choices=("jobs", "ticks"), help="only these; default: both"
        )
        add_scope(parser)
        parser.add_argument(
            "--older-than",
            type=span,
            metavar="AGE",
            help="how long ago: seconds, or 12h, 30d; default: the settings JOB_RETENTION and"
            " TICK_RETENTION",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        namespace, alias = scope_of(options)
        age, deleted = options["older_than"], []
        if options["what"] != "ticks":
            if age is None and settings.JOB_RETENTION is None:
                self._kept("JOB_RETENTION is None", "jobs")
            else:
                with refusals(alias):
                    jobs = prune_jobs(age, namespace=namespace, using=alias)
                deleted.append(counted(jobs, "job"))
        if options["what"] != "jobs":
            if age is None and settings.TICK_RETENTION <= 0:
                self._kept(f"TICK_RETENTION is {settings.TICK_RETENTION:g}", "ticks")
            else:
                with refusals(alias):
                    ticks = prune_tick_claims(age, namespace=namespace, using=alias)
                deleted.append(counted(ticks, "tick"))
        if deleted:
            self.stdout.write(f"Deleted {' and '.join(deleted)}.")

    def _kept(self, setting: str, what: str) -> None:
        self.stdout.write(f"{setting}, which keeps all {what}: give --older-than to delete some.")
