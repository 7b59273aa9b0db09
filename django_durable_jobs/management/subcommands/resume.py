"""`durablejobs resume`: a schedule, or the jobs of a namespace."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from ...models import Schedule
from ...namespaces import resume
from ...ticks import resume_schedule
from .steered import add_steered, steered
from .telling import refusals


class Command(BaseCommand):
    help = "Let a paused schedule fire again, or with --namespace alone its jobs be claimed."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_steered(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        name, namespace, alias = steered(options, "resume")
        with refusals(alias):
            if name is None:
                resume(namespace, using=alias)
                self.stdout.write(f"The namespace {namespace} goes on: its jobs are claimed.")
                return
            resume_schedule(name, namespace=namespace, using=alias)
            row = Schedule.objects.using(alias).get(namespace=namespace, name=name)
        ahead = "it has no more ticks"
        if row.next_fire is not None:
            ahead = "what fell into the pause never fires by itself"
        self.stdout.write(f"The schedule {name} goes on: {ahead}.")
