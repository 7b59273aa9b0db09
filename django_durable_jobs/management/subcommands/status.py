"""`durablejobs status`: how a namespace stands, on one screen."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.core.management.base import BaseCommand
from django.core.serializers.json import DjangoJSONEncoder

from ...insight import COUNTED, is_overdue, status
from .scope import add_scope, scope_of
from .telling import aligned, clock, clock_and_utc, counted, how_long, refusals

# More schedules than this are not listed: those that want looking at come first then.
MOST_LISTED = 50
_ERROR_CHARS = 160


class Command(BaseCommand):
    help = "Tell how a namespace stands: workers, leader, jobs, schedules."
    # It must answer above all when something is wrong.
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_scope(parser)
        parser.add_argument("--json", action="store_true", help="tell it as a JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        namespace, alias = scope_of(options)
        with refusals(alias):
            told = status(namespace, using=alias)
        if options["json"]:
            self.stdout.write(json.dumps(told, cls=DjangoJSONEncoder))
            return
        for line in self._lines(told):
            self.stdout.write(line)

    def _lines(self, told: dict[str, Any]) -> Iterator[str]:
        now = told["at"]
        yield f"Namespace   {told['namespace']}, {clock_and_utc(now)}"
        if told["paused_at"] is not None:
            yield self.style.WARNING(f"Paused      since {clock(told['paused_at'])}: no claims")
        yield from self._workers(told["workers"], told["leader"], now)
        yield self._leader(told, now)
        counts = told["counts"].items()
        parts = [f"{number:,}{'+' * (number >= COUNTED)} {state}" for state, number in counts]
        yield f"Jobs        {', '.join(parts)}"
        if (oldest := told["oldest_due"]) is not None:
            text = f"{oldest['type']} {oldest['id']}, due for {how_long(oldest['age'])}"
            yield f"Oldest due  {text}, queue {oldest['queue']}"
        if (following := told["next_due"]) is not None:
            ahead = (following - now).total_seconds()
            text = f"in {how_long(ahead)}" if ahead > 0 else f"due for {how_long(-ahead)}"
            yield f"Next due    {clock(following)}, {text}"
        yield _ended(told["throughput"])
        yield from self._schedules(told, now)

    def _workers(
        self, workers: list[dict[str, Any]], leader: dict[str, Any] | None, now: datetime
    ) -> Iterator[str]:
        live = [worker for worker in workers if worker["live"]]
        active = sum(worker["active"] for worker in live)
        slots = sum(worker["concurrency"] for worker in live)
        head = f"Workers     {len(live)} live, {active} of {slots} slots busy"
        yield head if live else self.style.ERROR("Workers     none is live")
        rows, styles = [], []
        for worker in workers:
            style, state = _worker_state(worker, now)
            leads = leader is not None and leader["worker"] == worker["id"]
            busy = f"{worker['active']} of {worker['concurrency']}"
            rows.append((f"{worker['host']}:{worker['pid']}", busy, "leads" * leads, state))
            styles.append(style)
        for style, line in zip(styles, aligned(rows), strict=True):
            yield self._styled(style, f"  {line}")

    def _styled(self, style: str, line: str) -> str:
        return getattr(self.style, style)(line) if style else line

    def _leader(self, told: dict[str, Any], now: datetime) -> str:
        leader = told["leader"]
        if leader is None:
            return self.style.WARNING("Leader      nobody: schedules do not fire")
        at = {worker["id"]: f"{worker['host']}:{worker['pid']}" for worker in told["workers"]}
        who = at.get(leader["worker"], f"worker {leader['worker']}")
        text = f"Leader      {who}, epoch {leader['epoch']}, since {clock(leader['since'])}"
        if leader["live"]:
            return text
        ended = how_long((now - leader["lease_ends_at"]).total_seconds())
        return self.style.ERROR(f"{text}; its lease ended {ended} ago: schedules do not fire")

    def _schedules(self, told: dict[str, Any], now: datetime) -> Iterator[str]:
        rows, sums = told["schedules"], told["aggregate"]
        if not rows:
            yield "Schedules   none"
            return
        parts = [
            counted(sums["total_fires"], "fire"),
            counted(sums["total_misses"], "miss", "misses"),
        ]
        if sums["tick_claim_lost"]:
            parts.append(f"{sums['tick_claim_lost']:,} lost")
        doing = (
            f"{sums['total']:,}: {sums['running']:,} running, {sums['with_errors']:,} with errors"
        )
        yield f"Schedules   {doing}; {', '.join(parts)}"
        noted = {row["name"]: list(self._notes(row, now)) for row in rows}
        rows = sorted(rows, key=_turn)
        if len(rows) > MOST_LISTED:
            rows = sorted(rows, key=lambda row: not noted[row["name"]])[:MOST_LISTED]
        titles = ("name", "when", "next fire", "last run", "fires", "misses", "")
        head, *lines = aligned([titles, *(_row(row, now) for row in rows)], right=(4, 5))
        yield f"  {head}"
        for row, line in zip(rows, lines, strict=True):
            yield f"  {line}"
            yield from noted[row["name"]]
        if left := len(told["schedules"]) - len(rows):
            yield f"  … and {left:,} more: --json tells of all"

    def _notes(self, row: dict[str, Any], now: datetime) -> Iterator[str]:
        """Yield what somebody should know of a schedule, a line each."""
        if row["retired_at"] is not None:
            return
        if row["paused_at"] is not None:
            by = f" by {row['paused_by']}" * bool(row["paused_by"])
            why = f": {_short(row['paused_reason'])}" * bool(row["paused_reason"])
            yield self.style.WARNING(f"    paused since {clock(row['paused_at'])}{by}{why}")
        if row["last_error"]:
            when = f" at {clock(row['last_finish'])}" * (row["last_finish"] is not None)
            yield self.style.ERROR(f"    failed{when}: {_short(row['last_error'])}")
        if is_overdue(row, now):
            late = how_long((now - row["next_fire"]).total_seconds())
            yield self.style.ERROR(f"    overdue for {late}: nobody fires it")


def _ended(throughput: dict[str, Any]) -> str:
    seconds = throughput["seconds"]
    counts = {state: number for state, number in throughput.items() if state != "seconds"}
    parts = ", ".join(f"{number:,} {state}" for state, number in counts.items())
    a_minute = sum(counts.values()) * 60 / seconds
    digits = 1 if 0 < a_minute < 10 else 0
    return f"Ended       {parts} in the last {how_long(seconds)}: {a_minute:,.{digits}f} a minute"


def _turn(row: dict[str, Any]) -> tuple[bool, bool, Any, str]:
    """Return what schedules are listed by: what fires next comes first, what never does last."""
    following = row["next_fire"]
    at = 0.0 if following is None else following.timestamp()
    return row["retired_at"] is not None, following is None, at, row["name"]


def _worker_state(worker: dict[str, Any], now: datetime) -> tuple[str, str]:
    """Return a style and what a worker is up to."""
    if not worker["live"]:
        silent = how_long((now - worker["heartbeat_at"]).total_seconds())
        return "ERROR", f"silent for {silent}"
    if not worker["healthy"]:
        return "ERROR", f"in trouble: {_short(worker['error'])}"
    if worker["stuck"]:
        return "WARNING", f"{worker['state']}, {worker['stuck']} stuck"
    return "", worker["state"]


def _row(row: dict[str, Any], now: datetime) -> tuple[str, ...]:
    following, last = row["next_fire"], row["last_run"]
    if following is None:
        told = "-"
    else:
        ahead = (following - now).total_seconds()
        told = clock(following, ZoneInfo(row["timezone"]))
        told += f", in {how_long(ahead)}" * (ahead >= 0 and row["paused_at"] is None)
    ran = "never" if last is None else f"{how_long((now - last).total_seconds())} ago"
    return (
        *(row["name"], row["when"], told, ran, f"{row['fires']:,}", f"{row['misses']:,}"),
        _state(row, now),
    )


def _state(row: dict[str, Any], now: datetime) -> str:
    if row["retired_at"] is not None:
        return "gone from the code"
    words = ["running"] * row["running"]
    words += ["paused"] * (row["paused_at"] is not None)
    words += ["failed"] * bool(row["last_error"])
    words += ["overdue"] * is_overdue(row, now)
    words += ["no more ticks"] * (row["next_fire"] is None)
    return ", ".join(words)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _ERROR_CHARS else line[: _ERROR_CHARS - 1] + "…"
