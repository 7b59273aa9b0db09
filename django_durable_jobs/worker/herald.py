"""The herald: tells the audit trail of what a worker does, so that no receiver holds it up."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from queue import SimpleQueue
from uuid import UUID

from ..audit import AuditEvent, audited, sent_by, tell
from ..claims import settled
from ..states import InterruptionReason
from .desk import Turn
from .isolation import (
    clean_connections,
    close_connections,
    in_fresh_context,
    soiled_connections,
)
from .running import told

logger = logging.getLogger(__name__)

# How many events may wait to be told of: more than that are dropped, and counted.
ROOM = 10_000
# For how long a worker that stops has what waits told of, in seconds.
CLOSED_WITHIN = 2.0


class Herald:
    """One thread that logs a worker's events and calls their receivers, in the order of events.

    Whoever has something to tell puts it in a queue and goes on, also where a receiver hangs. (A
    queue without a lock in Python: handlers put in too, and errors may be raised into them.)
    """

    def __init__(self, worker: UUID, *, room: int = ROOM) -> None:
        self._worker = worker
        self._room = room
        self._queue: SimpleQueue[AuditEvent | None] = SimpleQueue()
        self._dropped = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="herald", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def turned(self, turn: Turn) -> None:
        """Tell of a turn, before what it claimed is begun: that may be told of from now on."""
        if audited():
            self.put(of_turn(turn, self._worker))

    def put(self, events: Sequence[AuditEvent]) -> None:
        """Have events told of soon; what finds no room is dropped."""
        if self._closed:
            tell(events)
            return
        room = max(self._room - self._queue.qsize(), 0)
        for event in events[:room]:
            self._queue.put(event)
        if dropped := len(events[room:]):
            first, self._dropped = not self._dropped, self._dropped + dropped
            if first:
                logger.error(
                    "audit events dropped, receivers are too slow worker=%s waiting=%s",
                    self._worker,
                    self._room,
                )

    def close(self) -> None:
        """Tell of what waits, for a moment at most, and end the thread."""
        self._closed = True
        if not self._thread.is_alive():
            return
        self._queue.put(None)
        self._thread.join(CLOSED_WITHIN)
        if self._thread.is_alive():
            left = self._queue.qsize()  # the end counts for the one that is being told
            logger.error("audit events not told worker=%s count=%s", self._worker, left)

    # The herald's thread

    def _run(self) -> None:
        with sent_by(self.put):  # what receivers do in turn waits in line
            while self._tell_some():
                pass
        close_connections()

    def _tell_some(self) -> bool:
        """Tell of the next event and of those behind it; tell whether there may be more."""
        event = self._queue.get()
        # To look after the connections takes longer than to tell of an event.
        with clean_connections():
            while event is not None:
                self._tell(event)
                if self._queue.empty() or soiled_connections():
                    return True
                event = self._queue.get()
        return False

    def _tell(self, event: AuditEvent) -> None:
        try:
            in_fresh_context(lambda: tell([event]))
        except BaseException:  # a receiver's SystemExit ends nothing of ours
            logger.exception("audit event not told action=%s", event.action)
        if self._dropped and self._queue.empty():
            dropped, self._dropped = self._dropped, 0
            logger.error("audit events were dropped worker=%s count=%s", self._worker, dropped)


def of_turn(turn: Turn, worker: UUID) -> list[AuditEvent]:
    """Return the events of a turn: what it settled, then what it claimed, and started."""
    events = []
    for run in turn.settled:
        outcome = run.outcome
        # Where it was lost, who took it over has told of it.
        if outcome is None or outcome.reason == InterruptionReason.WORKER_LOST:
            continue
        job, attempt = run.job, run.claimed.attempt
        events.append(settled(outcome, type=job.type, owner_id=job.owner_id, attempt=attempt))
    for run in turn.started:
        metadata = told(run)
        events.append(AuditEvent("job.claimed", metadata={**metadata, "worker": str(worker)}))
        if run.claimed.started:
            events.append(AuditEvent("job.started", metadata=metadata))
    return events
