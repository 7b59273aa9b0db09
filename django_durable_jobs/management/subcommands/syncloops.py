"""`durablejobs sync-loops`: set right what was changed behind the back of loop records."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from typing import Any

from django.apps import apps
from django.core.management.base import BaseCommand, CommandError
from django.db import router

from ...loops import sync_loops
from ...loops.records import loop_models
from ...models import LoopRecord
from ...parameters import did_you_mean, shown
from ...worker.restarts import FAULT, USAGE
from .scope import scope_of
from .telling import counted, refusals

_MOST_TOLD = 10
_ERROR_CHARS = 200


class Command(BaseCommand):
    help = "Reconcile loop records with their jobs now, as the leader does by itself."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "models", nargs="*", metavar="MODEL", help="app.Model; default: all that there are"
        )
        parser.add_argument("--database", help="the alias that jobs live in")
        parser.add_argument("--json", action="store_true", help="tell it as a JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        _, alias = scope_of({**options, "namespace": None})
        models = [_model(label) for label in options["models"]] or loop_models()
        told = []
        for model in dict.fromkeys(models):
            with refusals(alias):
                changed = sync_loops(model, using=alias)
                errors = _errors(model)
            told.append({"model": model._meta.label, "changed": changed, **errors})
            if not options["json"]:
                self._tell(told[-1])
        if options["json"]:
            self.stdout.write(json.dumps({"models": told}))
        elif not told:
            self.stdout.write("There are no models of loop records in this project.")
        if any(each["without_job"] for each in told):
            sys.exit(FAULT)

    def _tell(self, told: dict[str, Any]) -> None:
        self.stdout.write(f"{told['model']}: {counted(told['changed'], 'record')} changed.")
        if not (bad := told["without_job"]):
            return
        text = f"  {counted(bad, 'record')} cannot have a job:"
        self.stdout.write(self.style.ERROR(text))
        for each in told["errors"]:
            self.stdout.write(self.style.ERROR(f"    {each['record']}: {each['error']}"))
        if bad > len(told["errors"]):
            self.stdout.write(f"    … and {bad - len(told['errors']):,} more")


def _errors(model: type[LoopRecord]) -> dict[str, Any]:
    """Return how many records of the model could not be synced, and why the first of them."""
    rows = model._base_manager.using(router.db_for_write(model)).exclude(last_error="")
    first = rows.order_by("pk").values_list("pk", "last_error")[:_MOST_TOLD]
    errors = [
        {"record": str(pk), "error": " ".join(error.split())[:_ERROR_CHARS]} for pk, error in first
    ]
    return {"without_job": rows.count() if errors else 0, "errors": errors}


def _model(label: str) -> type[LoopRecord]:
    try:
        model = apps.get_model(label)
    except (LookupError, ValueError):
        model = None
    if model is None or not issubclass(model, LoopRecord):
        labels = [each._meta.label for each in loop_models()]
        near, there = did_you_mean(label, labels), ", ".join(labels) or "none"
        text = f"There is no model of loop records {shown(label)}{near}; there are: {there}."
        raise CommandError(text, returncode=USAGE)
    return model
