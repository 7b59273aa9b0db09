"""One command for what there is to do with jobs and schedules: run, status, pause and the like."""

from __future__ import annotations

import os
import sys
from argparse import REMAINDER, ArgumentParser
from collections.abc import Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.core.management.base import BaseCommand

from ...worker.restarts import FAULT
from ..subcommands import (
    cancel,
    doctor,
    explain,
    fire,
    health,
    pause,
    preview,
    prune,
    requeue,
    resolve,
    resume,
    run,
    status,
    stop,
    syncloops,
)

SUBCOMMANDS: dict[str, type[BaseCommand]] = {
    "run": run.Command,
    "status": status.Command,
    "explain": explain.Command,
    "doctor": doctor.Command,
    "health": health.Command,
    "cancel": cancel.Command,
    "stop": stop.Command,
    "requeue": requeue.Command,
    "resolve": resolve.Command,
    "pause": pause.Command,
    "resume": resume.Command,
    "fire": fire.Command,
    "preview": preview.Command,
    "sync-loops": syncloops.Command,
    "prune": prune.Command,
}
# Django's own options that may stand before the subcommand, with a value of their own.
_VALUED = ("--settings", "--pythonpath", "--verbosity", "-v")
# As a shell tells of whoever SIGPIPE ended.
BROKEN_PIPE = 141


class Command(BaseCommand):
    """Each subcommand is a command of its own, with its own options, checks and help."""

    help = (
        "Work with durable jobs and schedules. `durablejobs health --help` tells of one of them: "
        + " ".join(f"{name}: {command.help}" for name, command in SUBCOMMANDS.items())
    )
    requires_system_checks: list[str] = []  # the subcommand's are run

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("subcommand", choices=SUBCOMMANDS)
        parser.add_argument("arguments", nargs=REMAINDER, help="what the subcommand takes")

    def run_from_argv(self, argv: list[str]) -> None:
        given = argv[2:]
        place = _place_of_subcommand(given)
        if place is None:
            super().run_from_argv(argv)
            return
        name = given.pop(place)
        command = SUBCOMMANDS[name]()
        arguments = [argv[0], f"{argv[1]} {name}", *given]
        if name == "run":
            command.run_from_argv(arguments)
        else:
            _run_and_flush(command, arguments)

    def handle(self, *args: Any, subcommand: str, arguments: list[str], **options: Any) -> None:
        command = SUBCOMMANDS[subcommand]()
        call_command(command, *arguments, stdout=self.stdout, stderr=self.stderr)


def _place_of_subcommand(words: Sequence[str]) -> int | None:
    """Return where the subcommand stands, None where the first word that may be one is none."""
    place = 0
    while place < len(words) and words[place].startswith("-"):
        place += 2 if words[place] in _VALUED else 1
    return place if place < len(words) and words[place] in SUBCOMMANDS else None


def _run_and_flush(command: BaseCommand, argv: list[str]) -> None:
    """Run a command that says something and ends; whoever reads it may have heard enough before."""
    try:
        try:
            command.run_from_argv(argv)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more at the end, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(BROKEN_PIPE)
    except ImproperlyConfigured as error:
        sys.stderr.write(f"The settings are not right: {error}\n")
        sys.exit(FAULT)
