"""`durablejobs fire`: put a schedule's job in now, or make up for a tick that was missed."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any
from zoneinfo import ZoneInfo

from django.core.management.base import BaseCommand

from ...models import Schedule
from ...ticks import fire_now
from .scope import add_scope, moment, scope_of
from .telling import clock, refusals


class Command(BaseCommand):
    help = "Fire a schedule now, whether it is paused or not, or make up for a missed tick."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("schedule", help="the schedule's name")
        add_scope(parser)
        parser.add_argument(
            "--force", action="store_true", help="also while an earlier run is in flight"
        )
        parser.add_argument(
            "--tick",
            type=moment,
            metavar="ISO",
            help="the missed tick: 2026-12-01T02:00, in the schedule's time zone unless told",
        )
        parser.add_argument("--json", action="store_true", help="tell the job as a JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        namespace, alias = scope_of(options)
        name, tick = options["schedule"], options["tick"]
        zone = None
        with refusals(alias):
            if tick is not None:
                rows = Schedule.objects.using(alias).filter(namespace=namespace, name=name)
                zone = ZoneInfo(rows.values_list("timezone", flat=True).first() or "UTC")
                tick = tick if tick.tzinfo else tick.replace(tzinfo=zone)
            job = fire_now(
                name, force=options["force"], tick=tick, namespace=namespace, using=alias
            )
        if options["json"]:
            told = {"job": str(job.pk), "type": job.type, "run_at": job.run_at.isoformat()}
            self.stdout.write(json.dumps({"schedule": name, **told}))
            return
        what = "Fired" if tick is None else f"Made up for the tick of {clock(tick, zone)} of"
        self.stdout.write(f"{what} the schedule {name}: job {job.pk} is queued.")
