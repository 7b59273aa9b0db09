"""Where handlers run: threads for ordinary ones, an event loop for async ones."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence

from ..conf import settings
from ..errors import JobStopped, JobTimedOut
from ..states import InterruptionReason
from ..strictjson import describe_exception, storable_text
from .event_loop import LoopSlots
from .frames import Frame
from .running import (
    ERROR_MAX_CHARS,
    TRACEBACK_MAX_CHARS,
    Run,
    Runner,
    given_back,
    interrupted,
)
from .threads import ThreadSlots
from .watchdog import STOPPED_WITHIN, Watchdog

logger = logging.getLogger(__name__)

Done = Callable[[Run], object]

# Jobs that end sooner are waited for, so that one turn settles them together: in seconds, for
# all that are begun at once and for each of them.
MOMENT, MOMENT_EACH = 0.003, 0.0001


class Executor:
    """Run jobs and hand each back, with its outcome, through ``done``.

    ``stuck`` is called after that of a run whose handler does not end.
    """

    def __init__(self, runner: Runner, *, slots: int, done: Done, stuck: Done) -> None:
        self._watchdog = Watchdog(limit=settings.JOB_TIMEOUT, abandoned=self._abandoned)
        self._threads = ThreadSlots(runner, self._watchdog, slots=slots, done=self._ended)
        self._loop = LoopSlots(runner, self._watchdog, done=self._ended)
        self._done = done
        self._told_stuck = stuck
        self._lock = threading.Lock()
        self._running = 0
        self._none_runs = threading.Event()
        self._usual = 0.0  # how long jobs took of late, in seconds

    def submit(self, runs: Sequence[Run]) -> None:
        """Set jobs going. Where they are quick and several, return when they have ended."""
        if not runs:
            return
        with self._lock:
            self._running += len(runs)
            self._none_runs.clear()
        self._set_going(runs)
        # A turn costs about the same for one job as for all: without this the turns of quick jobs
        # would each settle one half and start it again while the other half runs.
        longest = MOMENT + MOMENT_EACH * len(runs)
        if len(runs) > 1 and self._usual < longest / 2 and not self._none_runs.wait(longest):
            with self._lock:
                self._usual = 4 * longest  # not as quick as thought

    def stop(self, run: Run, reason: InterruptionReason) -> None:
        """Tell a run to stop; where it does not, it ends without its handler."""
        self._watchdog.stop(run, reason)

    @property
    def stuck(self) -> int:
        """How many handlers do not end although their jobs have."""
        return self._watchdog.stuck

    def _abandoned(self, run: Run, frame: Frame) -> None:
        """Settle a job whose handler does not end, and have another thread take its place."""
        timed_out = run.context.stop_reason == InterruptionReason.TIMED_OUT
        told = describe_exception(JobTimedOut() if timed_out else JobStopped(), ERROR_MAX_CHARS)
        run.outcome = interrupted(
            run,
            error=f"{told} It was told so and did not end within {STOPPED_WITHIN:g} s.",
            traceback=storable_text(frame.where(), TRACEBACK_MAX_CHARS),
        )
        logger.error(
            "handler stuck job=%s type=%s reason=%s, it stands here:\n%s",
            run.job.pk,
            run.job.type,
            run.outcome.reason,
            run.outcome.traceback,
        )
        try:
            frame.desert()
        finally:  # also where no other thread can be started
            self._ended(run)
            self._told_stuck(run)

    def _ended(self, run: Run) -> None:
        self._done(run)
        with self._lock:
            self._running -= 1
            self._usual += (run.seconds - self._usual) / 8
            if not self._running:
                self._none_runs.set()

    def _set_going(self, runs: Iterable[Run]) -> None:
        for_loop = []
        for run in runs:
            if run.handler is not None and run.handler.is_async:
                for_loop.append(run)
            else:
                self._try(self._threads.submit, [run])
        if for_loop:
            self._try(self._loop.submit, for_loop)

    def _try(self, submit: Callable[[list[Run]], object], runs: list[Run]) -> None:
        """Have the runs begun; where that fails (no more threads, say) give their claims back."""
        try:
            submit(runs)
        except Exception:
            logger.exception("jobs could not be begun, they are given back count=%s", len(runs))
            for run in runs:
                run.outcome = given_back(run)
                self._ended(run)

    def close(self) -> None:
        """Let the idle end; what hangs does not hold anybody up (the threads are daemons)."""
        self._watchdog.close()
        self._threads.close()
        self._loop.close()
