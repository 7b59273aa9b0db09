"""The scheduler: claims jobs, has them run, settles them; what ``runscheduler`` runs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol
from uuid import UUID

from .. import registry, signals
from ..conf import Settings, settings
from ..db import Clock, use_clock
from ..errors import ShutDown
from ..ids import uuid7
from ..namespaces import database
from .desk import Desk, Turn
from .enrolment import Enrolment
from .executor import Executor
from .gate import Gate
from .keeper import Duties, Held, Keeper
from .running import Run, Runner
from .scribe import Scribe
from .sleep import Sleep

logger = logging.getLogger(__name__)

# After a turn that failed: the first pause and the longest, in seconds.
FIRST_BACKOFF, LONGEST_BACKOFF = 0.1, 5.0


class Observer(Protocol):
    """Somebody who is told of what the scheduler does, such as the terminal."""

    def turned(self, turn: Turn) -> None: ...
    def troubled(self, error: str) -> None: ...


class Scheduler:
    """One worker: a thread that claims and settles, slots that run handlers, a keeper of leases.

    ``start`` makes it look for work by itself until ``shutdown``; ``tick`` takes what is due now
    without that. Both register the worker and recover first. ``queues`` None serves every queue
    but ``exclude_queues``; ``concurrency`` is the number of slots; the whole process goes by
    ``clock`` for as long as this runs; ``make_id`` makes the ids of the worker and its claims.
    (The seed's attachDurableScheduler; its store is the database.)
    """

    def __init__(
        self,
        namespace: str | None = None,
        *,
        queues: Sequence[str] | None = None,
        exclude_queues: Sequence[str] = (),
        concurrency: int | None = None,
        clock: Clock | None = None,
        make_id: Callable[[], UUID] | None = None,
        using: str | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.namespace = Settings.NAMESPACE.unless(namespace, "namespace")
        self.using = database(using)
        self.slots = Settings.CONCURRENCY.unless(concurrency, "concurrency")
        make_id = make_id or uuid7
        self.id = make_id()
        self._clock = clock
        self._observer = observer
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._wake = threading.Event()
        self._active: dict[UUID, Run] = {}  # by claim id
        self._finished: list[Run] = []
        self._ticks: list[Future[int]] = []
        self._opened = self._started = self._draining = self._hurried = self._closed = False
        self._idle = self._claiming = False
        self._error = ""
        self.interrupted = 0  # how many running jobs the shutdown interrupted
        self.fault = ""  # what ended the scheduler's thread, if anything did
        self._over = False
        scribe = Scribe(self.using)
        longest = settings.MAX_SLEEP
        self._scribe = scribe
        self._gate = Gate(self.using, scribe, longest=longest, answered=self._wake.set)
        runner = Runner(self.using, scribe, longest, draining=lambda: self._draining)
        self._executor = Executor(runner, slots=self.slots, done=self._done)
        self._enrolment = Enrolment(
            self.id,
            self.namespace,
            self.using,
            slots=self.slots,
            queues=None if queues is None else tuple(queues),
            excluded=frozenset(exclude_queues),
        )
        self._desk = Desk(self._enrolment, self._gate, scribe, make_id=make_id)
        self._keeper = Keeper(
            self.id,
            self.namespace,
            self.using,
            Duties(held=self._held, lost=self._lost, freed=self._wake.set, figures=self._figures),
            lease=settings.LEASE,
            interval=settings.HEARTBEAT,
        )
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)
        self._stopped = threading.Event()
        self._forget: list[Callable[[], object]] = []

    # The public calls

    def start(self) -> bool:
        """Look for work from now on, until ``shutdown``; False where it does already.

        Raises ShutDown after ``shutdown``.
        """
        self._open()
        with self._lock:
            first, self._started = not self._started, True
        self._wake.set()
        return first

    def tick(self) -> int:
        """Take what is due now, as far as slots are free; return how many jobs were started.

        Raises ShutDown after ``shutdown``, and what the database raised.
        """
        self._open()
        asked: Future[int] = Future()
        with self._lock:
            if self._closed or self._over:
                raise ShutDown
            self._ticks.append(asked)
        self._wake.set()
        return asked.result()

    def drain(self) -> None:
        """Claim nothing more; what runs goes on."""
        with self._lock:
            self._draining = True
        self._wake.set()

    def shutdown(self, grace: float | None = None) -> None:
        """Claim nothing more, wait ``grace`` seconds for what runs, interrupt the rest, stop.

        Returns when everything is written, also where another thread does it. ``grace`` None is
        the setting SHUTDOWN_GRACE.
        """
        self.drain()
        if self._end_grace(grace):
            self._wake.set()
            try:
                self._thread.join()
                for forget in self._forget:
                    forget()
                self._keeper.stop()  # also where the thread ended by a fault
                self._gate.close()
                self._executor.close()
                self._scribe.close()
            finally:
                self._stopped.set()
        elif self._opened:
            self._stopped.wait()

    def _end_grace(self, grace: float | None) -> bool:
        """Wait for what runs; tell whether it is the caller who closes this scheduler."""
        with self._lock:
            deadline = time.monotonic() + (settings.SHUTDOWN_GRACE if grace is None else grace)
            # A claim that is under way was begun before: what it takes has the grace too.
            while (self._active or self._claiming) and not self._hurried:
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    break
            first, self._closed = not self._closed and self._opened, True
        return first

    def hurry(self) -> None:
        """End the grace of a ``shutdown`` that waits in another thread."""
        with self._lock:
            self._hurried = True
            self._changed.notify_all()

    def status(self) -> dict[str, Any]:
        """Say how this worker is: started, closed, healthy, error, active (the seed's status)."""
        with self._lock:
            return {
                "started": self._started and not self._closed,
                "closed": self._closed,
                "healthy": not self._error,
                "error": self._error or None,
                "active": len(self._active),
            }

    @property
    def active(self) -> list[Run]:
        """The jobs that this worker holds."""
        with self._lock:
            return list(self._active.values())

    def wait_until_idle(self, timeout: float | None = None) -> bool:
        """Wait until nothing runs and nothing is due that could be claimed; tell whether so."""
        with self._lock:
            return self._changed.wait_for(lambda: self._idle or self._over, timeout)

    def wait_until_over(self, timeout: float | None = None) -> bool:
        """Wait until the scheduler's thread has ended, in order or not; tell whether it has."""
        with self._lock:
            return self._changed.wait_for(lambda: self._over, timeout)

    # The scheduler's thread

    def _open(self) -> None:
        with self._lock:
            if self._closed:
                raise ShutDown
            if self._opened:
                return
            self._opened = True
        signals.wake_listeners.append(self._heard)
        # Without a clock of its own it leaves the process's alone: whoever set that may take it
        # back before this one stops.
        clock: AbstractContextManager[None] = (
            nullcontext() if self._clock is None else use_clock(self._clock)
        )
        clock.__enter__()
        self._forget = [
            lambda: clock.__exit__(None, None, None),
            lambda: signals.wake_listeners.remove(self._heard),
            registry.on_change(self._handlers_changed),
        ]
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._desk:
                if not self._enrol():
                    return
                self._keeper.start()
                with Sleep(self.using, self.namespace, self._wake, heard=self._heard) as sleep:
                    self._turn_until_closed(sleep)
                self._leave()
        except Exception as error:
            self._trouble(error)
            self.fault = self._error
        finally:
            with self._lock:
                self._over = True
                self._changed.notify_all()
                for tick in self._ticks:
                    tick.set_exception(ShutDown())

    def _enrol(self) -> bool:
        while not self._closed:
            try:
                self._enrolment.enrol()
            except Exception as error:
                self._trouble(error)
                self._wake.wait(FIRST_BACKOFF)
                self._wake.clear()
            else:
                return True
        return False

    def _turn_until_closed(self, sleep: Sleep) -> None:
        backoff = FIRST_BACKOFF
        while not (self._closed and not self._finished):
            self._wake.clear()
            with self._lock:
                tick = self._ticks.pop(0) if self._ticks else None
            try:
                turn = self._turn(claims=self._started or tick is not None)
                if tick is not None:
                    tick.set_result(len(turn.started))
                elif not (turn.started or turn.more or self._ticks or self._closed):
                    sleep.until(turn.look_in if self._started else None)
            except Exception as error:
                self._trouble(error)
                if tick is not None and not tick.done():
                    tick.set_exception(error)
                if self._closed:
                    return
                time.sleep(backoff)
                backoff = min(backoff * 2, LONGEST_BACKOFF)
            else:
                backoff = FIRST_BACKOFF

    def _turn(self, *, claims: bool) -> Turn:
        """Settle what has ended, claim what is due, and set it going."""
        with self._lock:
            finished, self._finished = self._finished, []
            held = set(self._active)
            # What has finished frees its slot in this very turn.
            free = self.slots - len(self._active) + len(finished)
            if self._draining or not claims:
                free = 0
            self._claiming = free > 0
        try:
            turn = self._desk.turn(finished, free=free, held=held)
        except BaseException:
            with self._lock:
                self._claiming = False
                self._finished = finished + self._finished
                self._changed.notify_all()
            raise
        with self._lock:
            self._claiming = False
            for run in finished:
                self._active.pop(run.claimed.claim_id, None)
            for run in turn.started:
                self._active[run.claimed.claim_id] = run
            self._error = ""
            busy = self._active or turn.more or self._gate.busy
            # Woken meanwhile: by what came too late for this turn.
            self._idle = bool(free) and not busy and not self._wake.is_set()
            self._changed.notify_all()
        self._executor.submit(turn.started)
        self._tell(lambda observer: observer.turned(turn))
        return turn

    def _tell(self, what: Callable[[Observer], object]) -> None:
        """Tell the observer; one that fails (a closed terminal) holds up no job."""
        if self._observer is not None:
            try:
                what(self._observer)
            except Exception:
                logger.exception("observer failed worker=%s", self.id)
                self._observer = None

    def _leave(self) -> None:
        """Interrupt what still runs, give back what was not begun, and sign off."""
        # Its next sign of life would undo the sign-off.
        self._keeper.stop()
        with self._lock:
            left = list(self._active.values())
            self._active.clear()
        for run in left:
            run.context.stop()
        kept = self._desk.sign_off(left)
        self.interrupted = sum(outcome.edge == "interrupt" for outcome in kept)

    # What other threads tell

    def _done(self, run: Run) -> None:
        run.ended = time.monotonic()
        with self._lock:
            self._finished.append(run)
        self._wake.set()

    def _heard(self, namespace: str) -> None:
        if namespace in ("", self.namespace):
            with self._lock:
                self._idle = False
            self._wake.set()

    def _handlers_changed(self) -> None:
        self._enrolment.changed = True
        self._wake.set()

    def _held(self) -> Held:
        with self._lock:
            return [(run.job.pk, run.claimed.claim_id) for run in self._active.values()]

    def _lost(self, claims: Iterable[UUID]) -> None:
        with self._lock:
            runs = [self._active[claim] for claim in claims if claim in self._active]
        for run in runs:
            if run.outcome is None and not run.context.should_stop:
                logger.warning("claim lost job=%s claim=%s", run.job.pk, run.claimed.claim_id)
                run.context.stop()

    def _figures(self) -> dict[str, object]:
        with self._lock:
            return {
                "active": len(self._active),
                "healthy": not self._error,
                "error": self._error[:1_000],
                "state": "draining" if self._draining else "running",
            }

    def _trouble(self, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        if self._error != text:
            logger.error("turn failed worker=%s error=%s", self.id, text, exc_info=error)
            self._tell(lambda observer: observer.troubled(text))
        self._error = text
        self._desk.unsure = True
