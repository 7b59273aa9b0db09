"""`durablejobs health`: for probes, by its exit code; and for people, in a sentence."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand
from django.core.serializers.json import DjangoJSONEncoder

from ...insight import Health, Place, health
from ...worker.identity import this_process
from ...worker.restarts import FAULT
from .scope import add_scope, scope_of, span


class Command(BaseCommand):
    help = "Tell whether all is well: exit code 0, or 1 and what is wrong."
    # A probe is asked every few seconds.
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_scope(parser)
        parser.add_argument(
            "--this-host",
            action="store_true",
            help="ask only about the workers of this host or, inside of one, this container",
        )
        parser.add_argument(
            "--pid", type=int, help="ask only about the worker with this process id on this host"
        )
        parser.add_argument(
            "--max-age",
            type=span,
            metavar="AGE",
            help="how long a job may have been due: seconds, or 5m, 2h; default: any time",
        )
        parser.add_argument("--json", action="store_true", help="tell it as a JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        namespace, alias = scope_of(options)
        found = health(namespace, place=_place(options), max_age=options["max_age"], using=alias)
        told = _as_json(namespace, found) if options["json"] else _as_text(found)
        self.stdout.write(told)
        if not found.healthy:
            sys.exit(FAULT)


def _place(options: dict[str, Any]) -> Place | None:
    if not options["this_host"] and options["pid"] is None:
        return None
    # Containers may share a host name: their process namespaces tell them apart.
    here = this_process()
    return Place(here.host, here.pid_namespace, options["pid"])


def _as_json(namespace: str, found: Health) -> str:
    told = {
        "healthy": found.healthy,
        "problems": [
            {"code": problem.code, "message": problem.message} for problem in found.problems
        ],
        "namespace": namespace,
        "workers": found.workers,
        "oldest_due": found.oldest_due,
    }
    return json.dumps(told, cls=DjangoJSONEncoder)


def _as_text(found: Health) -> str:
    if found.healthy:
        active = sum(worker["active"] for worker in found.workers if worker["live"])
        slots = sum(worker["concurrency"] for worker in found.workers if worker["live"])
        workers = "1 live worker" if found.live == 1 else f"{found.live} live workers"
        return f"Healthy: {workers}, {active} of {slots} slots busy."
    lines = ["Unhealthy: " + " ".join(problem.message for problem in found.problems)]
    lines += [
        f"  {worker['host']}:{worker['pid']} {_state(worker)}"
        for worker in found.workers
        if not (worker["live"] and worker["healthy"])
    ]
    return "\n".join(lines)


def _state(worker: dict[str, Any]) -> str:
    if not worker["live"]:
        return f"gave its last sign of life at {worker['heartbeat_at']:%Y-%m-%d %H:%M:%S} UTC"
    return f"is in trouble: {worker['error']}"
