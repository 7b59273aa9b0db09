"""What a worker has in hand: its runs, as they are told of by the claims that they hold."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from uuid import UUID

from ..states import InterruptionReason
from .keeper import Held
from .running import Run

logger = logging.getLogger(__name__)


class Hand:
    """The runs that a worker holds, by claim id. ``tell`` tells a run to stop.

    ``lock`` guards them: the scheduler holds it for ``take`` and ``drop``, the other calls, which
    come from other threads, take it.
    """

    def __init__(
        self, lock: threading.Lock, tell: Callable[[Run, InterruptionReason], object]
    ) -> None:
        self.runs: dict[UUID, Run] = {}
        self.finished: list[Run] = []  # those of them whose outcomes are to be written
        self._lock = lock
        self._tell = tell

    def take(self, runs: Iterable[Run]) -> None:
        """Hold these too, which were just claimed; some may be asked to stop already."""
        for run in runs:
            self.runs[run.claimed.claim_id] = run
            if run.job.stop_requested_at is not None:
                run.context.stop(InterruptionReason.STOP_REQUESTED)

    def drop(self, runs: Iterable[Run]) -> None:
        """Hold these no more."""
        for run in runs:
            self.runs.pop(run.claimed.claim_id, None)

    def ended(self, run: Run) -> None:
        """Take note that the outcome of a run is to be written."""
        run.ended = time.monotonic()
        with self._lock:
            self.finished.append(run)

    def held(self) -> Held:
        """Return job id and claim id of each run."""
        with self._lock:
            return [(run.job.pk, run.claimed.claim_id) for run in self.runs.values()]

    def lost(self, claims: Iterable[UUID]) -> None:
        """Let the handlers know whose claims are held no more."""
        for run in self._those(claims):
            if run.outcome is None and not run.context.should_stop:
                logger.warning("claim lost job=%s claim=%s", run.job.pk, run.claimed.claim_id)
                run.context.stop(InterruptionReason.WORKER_LOST)

    def stop(self, claims: Iterable[UUID]) -> None:
        """Tell the runs to stop that somebody asked to, each once."""
        asked = InterruptionReason.STOP_REQUESTED
        for run in self._those(claims):
            if run.outcome is None and run.context.stop_reason != asked:
                logger.warning("stop requested job=%s claim=%s", run.job.pk, run.claimed.claim_id)
                self._tell(run, asked)

    def _those(self, claims: Iterable[UUID]) -> list[Run]:
        with self._lock:
            return [self.runs[claim] for claim in claims if claim in self.runs]
