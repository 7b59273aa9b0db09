"""`durablejobs pause`: a schedule, or all jobs of a namespace."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from ...models import Namespace, Schedule
from ...namespaces import pause
from ...ticks import pause_schedule
from .scope import login_name
from .steered import add_steered, steered
from .telling import clock, refusals


class Command(BaseCommand):
    help = "Pause a schedule until it is resumed, or with --namespace alone every claim of jobs."
    # To stop something that goes wrong nothing else need be well.
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_steered(parser)
        parser.add_argument(
            "--by", default=login_name(), help="who pauses it; default: the login name"
        )
        parser.add_argument("--reason", default="", help="why, for whoever finds it paused")

    def handle(self, *args: Any, **options: Any) -> None:
        name, namespace, alias = steered(options, "pause")
        said = {"by": options["by"], "reason": options["reason"]}
        row: Namespace | Schedule
        with refusals(alias):
            if name is None:
                what = f"The namespace {namespace}"
                paused = Namespace.objects.using(alias).filter(pk=namespace)
                before = paused.filter(paused_at__isnull=False).exists()
                pause(namespace, **said, using=alias)
                row = paused.get()
            else:
                what = f"The schedule {name}"
                rows = Schedule.objects.using(alias).filter(namespace=namespace, name=name)
                before = rows.filter(paused_at__isnull=False).exists()
                pause_schedule(name, **said, namespace=namespace, using=alias)
                row = rows.get()
        if before:
            text = f"{what} is paused already, since {clock(row.paused_at)}"
            text += f" by {row.paused_by}" * bool(row.paused_by)
            text += f": {row.paused_reason}" if row.paused_reason else "."
            self.stdout.write(text)
            return
        left = "no job is claimed" if name is None else "it does not fire"
        again = f"--namespace {namespace}" if name is None else name
        self.stdout.write(f"{what} is paused: {left}. What runs goes on.")
        self.stdout.write(f"To end the pause: `durablejobs resume {again}`.")
