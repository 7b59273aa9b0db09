"""`durablejobs explain`: why a job is not running, or what became of it."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from ...errors import JobDoesNotExist
from ...explaining import explain
from ...namespaces import database
from ...worker.restarts import USAGE
from .telling import refusals


class Command(BaseCommand):
    help = "Say why a job is not running, or what became of it."
    # It must answer above all when something is wrong.
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("id", help="the job's full id")
        parser.add_argument("--database", help="the alias that jobs live in")
        parser.add_argument("--json", action="store_true", help="tell it as a JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        alias = options["database"]
        if alias is not None and alias not in connections:
            raise CommandError(f"There is no database {alias!r} in DATABASES.", returncode=USAGE)
        alias = database(alias)
        with refusals(alias):
            try:
                told = explain(options["id"], using=alias)
            except JobDoesNotExist as error:
                raise CommandError(str(error), returncode=USAGE) from error
        if options["json"]:
            self.stdout.write(json.dumps(told.as_dict()))
            return
        self.stdout.write(f"{told.type} {told.job_id}, {told.state}")
        for reason in (told, *told.also):
            self.stdout.write(reason.sentence)
