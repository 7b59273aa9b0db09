"""What a person sees of a worker: how it starts, a line a job, what it waits for."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Sequence
from datetime import datetime
from typing import Any, TextIO

from django.core.management.color import Style, no_style
from django.utils import timezone

from ..db import Outcome
from .desk import Turn
from .running import Run

logger = logging.getLogger(__name__)

# Told apart by sign and word, not by colour alone.
_SIGNS = {
    "complete": ("✓", "completed", "SUCCESS"),
    "fail": ("✗", "failed", "ERROR"),
    "retry": ("↻", "retries", "WARNING"),
    "release": ("↩", "given back", "WARNING"),
}
_LOST = ("?", "claim lost", "ERROR")


class Terminal:
    """Write lines for people, or with ``json_lines`` for machines."""

    def __init__(
        self,
        out: TextIO | Any = None,
        *,
        style: Style | None = None,
        verbosity: int = 1,
        json_lines: bool = False,
    ) -> None:
        self._out = out or sys.stdout
        self._style: Any = style or no_style()
        self._verbosity = verbosity
        self._json = json_lines
        self._lock = threading.Lock()
        self._mute = False

    def say(self, event: str, text: str, /, *, kind: str = "", **facts: Any) -> None:
        """Write one line: ``text`` for people, ``event`` and ``facts`` for machines."""
        self._write([self._line(event, text, kind, facts)])

    def turned(self, turn: Turn) -> None:
        """Tell of the jobs that a turn settled."""
        if self._verbosity < 1:
            return
        now = _now()
        lines = [self._job(run, run.outcome, now) for run in turn.settled]
        lines += [self._job(run, None, now) for run in turn.lost]
        if lines:
            self._write(lines)

    def _line(self, event: str, text: str, kind: str, facts: dict[str, Any]) -> str:
        if self._json:
            told = {"time": _now().isoformat(), "event": event, **facts}
            return json.dumps(told, default=str, ensure_ascii=False)
        return str(getattr(self._style, kind)(text)) if kind else text

    def _write(self, lines: Sequence[str]) -> None:
        with self._lock:
            if self._mute:
                return
            try:
                self._out.write("\n".join(lines) + "\n")
                self._out.flush()
            except (OSError, ValueError) as error:
                # Closed, or of an encoding that lacks a sign: no reason to stop working.
                self._mute = True
                logger.warning("terminal lost, the worker goes on silently error=%s", error)

    def troubled(self, error: str) -> None:
        """Tell of trouble with the database."""
        self.say("trouble", f"! {error}", kind="ERROR", error=error)

    def waiting(self, runs: Sequence[Run], grace: float) -> None:
        """Tell what a worker that is asked to stop still waits for."""
        if not runs:
            self.say("stopping", "Stopping: nothing is running.", running=0)
            return
        names = ", ".join(f"{_name(run)} ({_duration(run.seconds)})" for run in runs[:5])
        more = f" and {len(runs) - 5} more" if len(runs) > 5 else ""
        self.say(
            "stopping",
            f"Stopping: waiting up to {grace:g} s for {len(runs)} running: {names}{more}."
            " Press Ctrl-C again to interrupt them.",
            kind="WARNING",
            running=len(runs),
            grace=grace,
        )

    def _job(self, run: Run, outcome: Outcome | None, now: datetime) -> str:
        sign, word, kind = _LOST if outcome is None else _SIGNS[outcome.edge]
        job = run.job
        text = f"{now:%H:%M:%S} {sign} {word:<10} {_duration(run.seconds):>8}  {_name(run)}"
        if job.owner_id:
            text += f"  owner {job.owner_id}"
        if run.claimed.attempt > 1:
            text += f"  attempt {run.claimed.attempt}"
        if outcome is not None and outcome.delay:
            text += f"  again in {_duration(outcome.delay)}"
        if outcome is not None and outcome.error:
            text += f"  {outcome.error.splitlines()[0][:200]}"
        facts = {
            "job": job.pk,
            "type": job.type,
            "owner": job.owner_id,
            "outcome": word,
            "attempt": run.claimed.attempt,
            "seconds": round(run.seconds, 4),
            "error": outcome.error if outcome is not None else "",
        }
        return self._line("job", text, "" if kind == "SUCCESS" else kind, facts)


def _name(run: Run) -> str:
    return f"{run.job.type}#{str(run.job.pk)[-8:]}"


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min"


def _now() -> datetime:
    return datetime.now(timezone.get_current_timezone())
