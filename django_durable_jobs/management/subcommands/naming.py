"""How a subcommand is told which jobs are meant: by their ids, or by how they stand."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError
from django.db import connections
from django.utils import timezone

from ...db import current_clock
from ...models import Job
from ...selecting import Chosen, Selection, jobs_named, select_jobs
from ...states import State
from ...worker.restarts import USAGE
from .scope import add_scope, moment_or_span

MOST = 1_000
_MOST_OF_ALL = 100_000
_SELECTING = ("state", "type", "owner", "queue", "since", "before")


def add_naming(parser: ArgumentParser, states: Sequence[State]) -> None:
    """Add the arguments that say which jobs are meant, of these states."""
    parser.add_argument(
        "ids", nargs="*", metavar="ID", help="jobs; - reads ids from standard input"
    )
    chosen = parser.add_argument_group("or by how they stand, after a question")
    chosen.add_argument(
        "--state",
        action="append",
        choices=[state.value for state in states],
        help="may be given more than once",
    )
    chosen.add_argument("--type", help="of this type")
    chosen.add_argument("--owner", help='of this owner; "" for those of nobody')
    chosen.add_argument("--queue", help="in this queue")
    times = "2026-12-01T02:00, or how long ago: 90m, 12h, 2d"
    chosen.add_argument(
        "--since",
        type=moment_or_span,
        metavar="WHEN",
        help="that ended then or later (queued ones: were put in, running ones: were claimed):"
        f" {times}",
    )
    chosen.add_argument(
        "--before", type=moment_or_span, metavar="WHEN", help=f"that ended before: {times}"
    )
    chosen.add_argument(
        "--limit", type=_limit, default=MOST, help=f"the oldest so many at once; default: {MOST:,}"
    )
    chosen.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="tell what would be done, no more")
    add_scope(parser)


def selects(options: dict[str, Any]) -> bool:
    """Tell whether jobs are meant by how they stand. Raises CommandError with code 2 for both
    this and ids, and for neither.
    """
    by_state = any(options[name] is not None for name in _SELECTING)
    if by_state and options["ids"]:
        text = "Give ids, or say how the jobs stand (--state, --type, …), not both."
        raise CommandError(text, returncode=USAGE)
    if not by_state and not options["ids"]:
        text = "Which jobs? Give ids, - for ids on standard input, or --state, --type and the like."
        raise CommandError(text, returncode=USAGE)
    return by_state


def selected(
    options: dict[str, Any], states: Sequence[State], namespace: str, alias: str
) -> tuple[list[Chosen], bool]:
    """Return the jobs that stand as the options say, and whether there are more of them."""
    now = current_clock().now(connections[alias])
    given = [State(state) for state in options["state"] or ()]
    limit = options["limit"]
    selection = Selection(
        namespace=namespace,
        states=given or states,
        type=options["type"],
        owner_id=options["owner"],
        queue=options["queue"],
        since=_time(options["since"], now),
        before=_time(options["before"], now),
    )
    found = select_jobs(selection, limit=limit + 1, using=alias)
    return found[:limit], len(found) > limit


def named(options: dict[str, Any], alias: str) -> list[tuple[str, Chosen | None]]:
    """Return each id as it was given, once, with its job: None where there is none.

    One of another namespace than a ``--namespace`` that was given is none of those meant.
    """
    words: list[str] = []
    for word in options["ids"]:
        words += sys.stdin.read().split() if word == "-" else [word]
    ids: dict[UUID | str, str] = {}
    for word in words:
        ids.setdefault(Job.parse_id(word) or word, word)
    keys = [id for id in ids if isinstance(id, UUID)]
    jobs: dict[UUID | str, Chosen] = {job.id: job for job in jobs_named(keys, using=alias)}
    wanted = options["namespace"]
    jobs = {id: job for id, job in jobs.items() if wanted in (None, job.namespace)}
    return [(word, jobs.get(id)) for id, word in ids.items()]


def _time(given: datetime | float | None, now: datetime) -> datetime | None:
    if given is None:
        return None
    if isinstance(given, datetime):
        return given if given.tzinfo else given.replace(tzinfo=timezone.get_current_timezone())
    return now - timedelta(seconds=given)


def _limit(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= number <= _MOST_OF_ALL:
        raise ArgumentTypeError(f"{text!r} is no number from 1 to {_MOST_OF_ALL:,}.")
    return number
