"""What `pause` and `resume` ask for: a schedule, or a whole namespace."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from ...worker.restarts import USAGE
from .scope import scope_of

_OWN = object()  # stands for the project's namespace where --namespace has no name behind it


def add_steered(parser: ArgumentParser) -> None:
    """Add the options that say what is to be steered."""
    parser.add_argument("schedule", nargs="?", help="the schedule's name")
    parser.add_argument(
        "--namespace",
        nargs="?",
        const=_OWN,
        help="the namespace of the schedule, or without one what is meant as a whole;"
        " default: the setting NAMESPACE",
    )
    parser.add_argument("--database", help="the alias that jobs live in")


def steered(options: dict[str, Any], verb: str) -> tuple[str | None, str, str]:
    """Return the schedule's name (None: the whole namespace), namespace and alias."""
    name = options["schedule"]
    if name is None and options["namespace"] is None:
        raise CommandError(
            f"Name a schedule: `durablejobs {verb} nightly`, or all jobs of a namespace:"
            f" `durablejobs {verb} --namespace`.",
            returncode=USAGE,
        )
    own = options["namespace"] is _OWN
    return name, *scope_of(options | ({"namespace": None} if own else {}))
