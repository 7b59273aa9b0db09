"""The watchdog: ends handlers that run past their time limit, or that somebody asked to stop."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

from ..errors import JobStopped, JobTimedOut
from ..states import InterruptionReason
from .frames import Frame
from .running import Abandoned, Run

logger = logging.getLogger(__name__)

# How long a handler that was told to stop has until its job is settled without it, in seconds.
STOPPED_WITHIN = 5.0


class Watchdog:
    """One thread with one timer for all handlers of a worker; it needs no database.

    A handler that is told to stop and does not is abandoned: ``abandoned`` is called with the
    frame that it is stuck in. ``limit`` is the time limit in seconds of handlers without one.
    """

    def __init__(self, *, limit: float | None, abandoned: Callable[[Run, Frame], object]) -> None:
        self._limit = limit
        self._abandoned = abandoned
        # A plain lock: taking a Condition's runs Python code, in which an error that is raised
        # into the thread would leave it locked for ever.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._due: dict[UUID, tuple[float, Run]] = {}  # by claim id
        self._wakes_at = math.inf
        self._thread: threading.Thread | None = None
        self._closed = False
        self.stuck = 0  # how many were abandoned and have not come back

    def call(self, run: Run, frame: Frame, function: Callable[[], Any]) -> Any:
        """Call the handler in this thread; JobTimedOut and JobStopped may be raised into it.

        Raises Abandoned, whatever the call came to, where the job was settled without it.
        """
        # One error at most is raised into the thread. If it comes so late that it hits the first
        # ``leave``, it cannot hit the second.
        try:
            try:
                self.enter(run, frame)
                return function()
            finally:
                self.leave(run)
        except BaseException:
            self.leave(run)
            raise

    def enter(self, run: Run, frame: Frame) -> None:
        """Watch the handler of this run from now on; raise what it was told already."""
        limit = time_limit(run, self._limit)
        with self._lock:
            run.frame = frame
            if limit is not None:
                self._watch(run, limit)
        run.context.check_stop()

    def leave(self, run: Run) -> None:
        """Let nothing more be raised in this run's frame; Abandoned if nobody waits for it."""
        with self._lock:
            if run.frame is not None:
                if run.interrupted:
                    # First, since an error that is under way may hit right here.
                    run.frame.withdraw()
                self._due.pop(run.claimed.claim_id, None)
                self.stuck -= run.abandoned
                run.frame = None
        if run.abandoned:
            raise Abandoned

    def stop(self, run: Run, reason: InterruptionReason) -> None:
        """Tell the handler to stop, if it has been entered; else it will not be."""
        with self._lock:
            run.context.stop(reason)
            if run.frame is not None and not run.interrupted:
                self._interrupt(run, run.frame)

    def close(self) -> None:
        """Watch nothing more."""
        with self._lock:
            self._closed = True
            self._changed.notify()

    def _watch(self, run: Run, seconds: float) -> None:
        at = time.monotonic() + seconds
        self._due[run.claimed.claim_id] = at, run
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
            thread.start()
            self._thread = thread
        elif at < self._wakes_at:
            self._changed.notify()

    def _interrupt(self, run: Run, frame: Frame) -> None:
        run.interrupted = True
        timed_out = run.context.stop_reason == InterruptionReason.TIMED_OUT
        frame.interrupt(JobTimedOut if timed_out else JobStopped)
        self._watch(run, STOPPED_WITHIN)

    # The watchdog's thread

    def _run(self) -> None:
        while (late := self._wait()) is not None:
            for run, frame in late:
                try:
                    self._abandoned(run, frame)
                except Exception:
                    logger.exception("job could not be abandoned job=%s", run.job.pk)

    def _wait(self) -> list[tuple[Run, Frame]] | None:
        """Tell to stop whose time comes; return those whose last time has, None when closed."""
        with self._changed:
            while not self._closed:
                if late := self._look(time.monotonic()):
                    return late
                self._wakes_at = min((at for at, _ in self._due.values()), default=math.inf)
                left = self._wakes_at - time.monotonic()
                self._changed.wait(min(max(left, 0.0), threading.TIMEOUT_MAX))
            return None

    def _look(self, now: float) -> list[tuple[Run, Frame]]:
        late = []
        for at, run in list(self._due.values()):
            if at > now or run.frame is None:
                continue
            if run.interrupted:
                del self._due[run.claimed.claim_id]
                run.abandoned = True
                self.stuck += 1
                late.append((run, run.frame))
            else:
                run.context.stop(InterruptionReason.TIMED_OUT)
                self._interrupt(run, run.frame)
        return late


def time_limit(run: Run, default: float | None) -> float | None:
    """Return how many seconds the handler may take, None for as long as it likes.

    The handler's own limit, or else the ``default``; the job's lowers it. (A job's that is not
    above 0 was edited by hand, and counts for nothing.)
    """
    assert run.handler is not None
    limit = default if run.handler.timeout is None else run.handler.timeout
    own = run.job.timeout
    if own is None or not own > 0:
        return limit
    return own if limit is None else min(own, limit)
