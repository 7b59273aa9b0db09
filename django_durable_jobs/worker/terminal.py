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
    "interrupt": ("■", "interrupted", "ERROR"),
    "retry_interrupted": ("↻", "interrupted, requeued", "WARNING"),
}
_LOST = ("?", "claim lost", "ERROR")


class Terminal:
    """Write lines for people, or with ``json_lines`` for machines; none with ``verbosity`` 0.

    ``process`` is the number of this worker among those of its supervisor, told with each line.
    """

    def __init__(
        self,
        out: TextIO | Any = None,
        *,
        style: Style | None = None,
        verbosity: int = 1,
        json_lines: bool = False,
        process: int | None = None,
    ) -> None:
        self._out = out or sys.stdout
        self._style: Any = style or no_style()
        self._json = json_lines
        self._process = process
        self._lock = threading.Lock()
        self._mute = verbosity < 1

    def say(self, event: str, text: str, /, *, kind: str = "", **facts: Any) -> None:
        """Write one line: ``text`` for people, ``event`` and ``facts`` for machines."""
        self._write([self._line(event, text, kind, facts)])

    def turned(self, turn: Turn) -> None:
        """Tell of the jobs that a turn settled."""
        now = _now()
        lines = [self._job(run, run.outcome, now) for run in turn.settled]
        lines += [self._job(run, None, now) for run in turn.lost]
        if lines:
            self._write(lines)

    def interrupted(self, left: int, requeued: int) -> None:
        """Tell how many running jobs a stop interrupted for good, and how many to run again."""
        total = left + requeued
        if not total:
            return
        text = f"Interrupted {total} running {'job' if total == 1 else 'jobs'}:"
        parts = []
        if requeued:
            who = "it" if total == 1 else "they" if not left else str(requeued)
            parts.append(f"{who} {'goes' if requeued == 1 else 'go'} back to the queue")
        if left:
            who = "it" if total == 1 else "they" if not requeued else str(left)
            verb, them = ("stays", "it") if left == 1 else ("stay", "them")
            parts.append(f"{who} {verb} interrupted until somebody requeues or resolves {them}")
        text = f"{text} {', '.join(parts)}."
        self.say("interrupted", text, kind="WARNING", jobs=left, requeued=requeued)

    def _line(self, event: str, text: str, kind: str, facts: dict[str, Any]) -> str:
        if self._json:
            told = {"time": _now().isoformat(), "event": event, **facts}
            if self._process is not None:
                told["process"] = self._process
            return json.dumps(told, default=str, ensure_ascii=False)
        text = str(getattr(self._style, kind)(text)) if kind else text
        if self._process is not None:
            text = "\n".join(f"[{self._process}] {line}" for line in text.split("\n"))
        return text

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
        if not (self._json or logger.hasHandlers()):
            return  # where no log is set up, Python writes its lines here as well
        self.say("trouble", f"! {error}", kind="ERROR", error=error)

    def stuck(self, run: Run, stuck: int, most: int) -> None:
        """Tell of a handler that does not end although it was told to."""
        assert run.outcome is not None
        what = f"{_name(run)} does not end ({run.outcome.reason.replace('_', ' ')})"
        text = f"! {what}: interrupted, another thread takes its place. Stuck now: {stuck}."
        if stuck > most:
            text += f" With more than {most} this worker takes no more jobs and stops."
        facts = {"job": run.job.pk, "type": run.job.type, "stuck": stuck, "most": most}
        self.say("stuck", text, kind="ERROR", **facts)

    def waiting(self, runs: Sequence[Run], grace: float, *, hint: str = "") -> None:
        """Tell what a worker that is asked to stop still waits for, and how to end that."""
        if not runs:
            self.say("stopping", "Stopping: nothing is running.", running=0)
            return
        jobs = "job" if len(runs) == 1 else "jobs"
        text = f"Stopping: waiting up to {grace:g} s for {len(runs)} running {jobs}.{hint}"
        lines = [text, *(f"  {_duration(run.seconds):>8}  {_name(run)}" for run in runs[:5])]
        if len(runs) > 5:
            lines.append(f"            and {len(runs) - 5} more")
        self.say(
            "stopping",
            "\n".join(lines),
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
        if outcome is not None and outcome.reason:
            text += f"  {outcome.reason.replace('_', ' ')}"
        if outcome is not None and outcome.error:
            text += f"  {outcome.error.splitlines()[0][:200]}"
        facts = {
            "job": job.pk,
            "type": job.type,
            "owner": job.owner_id,
            "outcome": word,
            "attempt": run.claimed.attempt,
            "seconds": round(run.seconds, 4),
            "reason": outcome.reason if outcome is not None else "",
            "error": outcome.error if outcome is not None else "",
        }
        return self._line("job", text, "" if kind == "SUCCESS" else kind, facts)


def _name(run: Run) -> str:
    """Name a job by what the admin and every command find it by: its whole id."""
    return f"{run.job.type} {run.job.pk}"


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min"


def _now() -> datetime:
    return datetime.now(timezone.get_current_timezone())
