"""`durablejobs preview`: when a schedule or a cron expression fires, in words and times."""

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import Error, connections

from ...db import current_clock
from ...models import Schedule
from ...parameters import did_you_mean, shown
from ...recurrence import Cron, Every, PreviewLine, Slip, lint, preview_lines
from ...registry import Declaration, schedules
from ...ticks import course_of
from ...worker.restarts import USAGE
from .scope import add_scope, scope_of
from .telling import aligned, clock, how_long, refusals

_MOST = 1_000
_MARKS = {"": "", "gap": "the clocks go forward", "overlap": "the clocks go back"}


class Command(BaseCommand):
    help = "Tell when a declared schedule, or a cron expression in quotes, fires."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("rule", help='a schedule\'s name, or a cron expression: "0 2 * * *"')
        parser.add_argument("--timezone", help="of the expression; default: TIME_ZONE")
        parser.add_argument("-n", type=_number, default=10, help="how many fires; default: 10")
        add_scope(parser)
        parser.add_argument("--json", action="store_true", help="tell it as a JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        namespace, alias = scope_of(options)
        with refusals(alias):
            preview = _preview(options, namespace, alias)
        told = _as_json(preview) if options["json"] else "\n".join(self._lines(preview))
        self.stdout.write(told)

    def _lines(self, preview: _Preview) -> list[str]:
        zone = preview.rule.zone
        lines = [f"{preview.title}: {preview.rule.in_words()}, {zone.key}"]
        lines += [f"  {note}" for note in preview.notes]
        rows = []
        for fire in preview.fires:
            row = [f"{fire.local:%a} {clock(fire.local, zone)}"]
            row += [] if zone.key == "UTC" else [f"{fire.utc:%Y-%m-%d %H:%M:%S UTC}"]
            row += [f"in {how_long((fire.utc - preview.now).total_seconds())}", _MARKS[fire.mark]]
            rows.append(row)
        lines += [f"  {line}" for line in aligned(rows)] if rows else ["  No more ticks."]
        warned = [self.style.WARNING(f"  {slip.message}") for slip in preview.slips]
        return lines + (["Look twice:", *warned] if warned else [])


@dataclass(frozen=True, slots=True)
class _Preview:
    """What is told of a rule, as of ``now``."""

    title: str
    rule: Cron | Every
    now: datetime
    fires: Sequence[PreviewLine]
    slips: Sequence[Slip]
    notes: Sequence[str] = ()
    name: str | None = None


def _preview(options: dict[str, Any], namespace: str, alias: str) -> _Preview:
    text, number = options["rule"], options["n"]
    declaration = schedules.get(text)
    if declaration is not None:
        if options["timezone"] is not None:
            raise CommandError(
                f"--timezone goes with an expression: the schedule {text} has its own,"
                f" {declaration.timezone}.",
                returncode=USAGE,
            )
        return _of_schedule(declaration, number, namespace, alias)
    if len(text.split()) == 1 and not text.startswith("@"):
        near = did_you_mean(text, [each.name for each in schedules.all()])
        raise CommandError(
            f"No schedule {shown(text)} is declared{near}, and it is no cron expression.",
            returncode=USAGE,
        )
    rule, now = Cron(text, options["timezone"]), _now(alias)
    fires = preview_lines(rule, number, now)
    return _Preview(rule.expression, rule, now, fires, lint(rule, now))


def _of_schedule(declaration: Declaration, number: int, namespace: str, alias: str) -> _Preview:
    now, notes, rule = _now(alias), [], declaration.recurrence
    try:
        rows = Schedule.objects.using(alias).filter(namespace=namespace, name=declaration.name)
        row = rows.first()
    except Error:
        row = None
    if row is None:
        told = "no worker has taken it yet"
        grid = isinstance(rule, Every) and rule.baseline is None
        notes.append(told + ": its grid is shown as if one did now" * grid)
    elif row.paused_at is not None:
        by = f" by {row.paused_by}" * bool(row.paused_by)
        notes.append(f"paused since {clock(row.paused_at)}{by}: it does not fire")
    course = course_of(declaration, row.anchor if row else None)
    assert isinstance(course.recurrence, Cron | Every)
    rule, after = course.recurrence, now
    if declaration.start is not None:
        notes.append(f"starts at {clock(declaration.start, rule.zone)}")
        after = max(now, declaration.start - datetime.resolution)
    if declaration.end is not None:
        notes.append(f"ends at {clock(declaration.end, rule.zone)}")
    fires = preview_lines(rule, number, after)
    fires = [each for each in fires if declaration.end is None or each.utc <= declaration.end]
    title = f"{declaration.name} ({declaration.when})"
    return _Preview(title, rule, now, fires, lint(rule, now), notes, declaration.name)


def _now(alias: str) -> datetime:
    try:
        return current_clock().now(connections[alias])
    except Error:  # a rule can be told without it
        return datetime.now(UTC)


def _as_json(preview: _Preview) -> str:
    told = {
        "schedule": preview.name,
        "when": preview.rule.describe(),
        "words": preview.rule.in_words(),
        "timezone": preview.rule.zone.key,
        "notes": list(preview.notes),
        "fires": [
            {"local": fire.local.isoformat(), "utc": fire.utc.isoformat(), "mark": fire.mark}
            for fire in preview.fires
        ],
        "warnings": [{"code": slip.code, "message": slip.message} for slip in preview.slips],
    }
    return json.dumps(told)


def _number(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= number <= _MOST:
        raise ArgumentTypeError(f"{text!r} is no number from 1 to {_MOST:,}.")
    return number
