"""What several subcommands ask for: the namespace, the database, who asks, times and spans."""

from __future__ import annotations

import getpass
import re
from argparse import ArgumentParser, ArgumentTypeError
from datetime import datetime
from typing import Any

from django.core.management.base import CommandError
from django.db import connections

from ...conf import Settings
from ...namespaces import database
from ...worker.restarts import USAGE

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)", re.ASCII)


def add_scope(parser: ArgumentParser) -> None:
    """Add the options that say which jobs are meant."""
    parser.add_argument("--namespace", help="default: the setting NAMESPACE")
    parser.add_argument("--database", help="the alias that jobs live in")


def check_scope(options: dict[str, Any]) -> None:
    """Raise CommandError with code 2 for what there is not. Asks no setting of ours."""
    if (namespace := options["namespace"]) is not None:
        try:
            Settings.NAMESPACE.unless(namespace, "--namespace")
        except ValueError as error:
            raise CommandError(str(error), returncode=USAGE) from None
    if (alias := options["database"]) is not None and alias not in connections:
        raise CommandError(f"There is no database {alias!r} in DATABASES.", returncode=USAGE)


def scope_of(options: dict[str, Any]) -> tuple[str, str]:
    """Return namespace and alias; raise CommandError with code 2 for what there is not."""
    check_scope(options)
    namespace = Settings.NAMESPACE.unless(options["namespace"], "--namespace")
    return namespace, database() if options["database"] is None else options["database"]


def span(text: str) -> float:
    """Return the seconds of "90", "90s", "5m", "12h" or "30d"."""
    match = _SPAN.fullmatch(text)
    if match is None:
        raise ArgumentTypeError(
            f"{text!r} is no span of time: write seconds, or a number with s, m, h or d behind it."
        )
    return float(match[1]) * _UNITS[match[2]]


def moment(text: str) -> datetime:
    """Return the time of "2026-12-01T02:00", with or without an offset."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        wants = "write 2026-12-01T02:00, with +01:00 or Z behind it for another time zone"
        raise ArgumentTypeError(f"{text!r} is no time: {wants}.") from None


def moment_or_span(text: str) -> datetime | float:
    """Return a time, or the seconds that it was ago: "2026-12-01T02:00", "90m", "2h"."""
    if _SPAN.fullmatch(text):
        return span(text)
    try:
        return moment(text)
    except ArgumentTypeError:
        wants = "write how long ago it was (90m, 12h, 2d) or 2026-12-01T02:00"
        raise ArgumentTypeError(f"{text!r} is no time: {wants}.") from None


def login_name() -> str:
    """Return who runs this process, "" where nobody knows."""
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):
        return ""
