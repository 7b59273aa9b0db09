"""The scheduler: claims jobs, has them run, settles them; what ``runscheduler`` runs."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any
from uuid import UUID

from ..audit import sent_by
from ..conf import Settings, settings
from ..db import Clock, use_clock
from ..errors import ShutDown
from ..ids import uuid7
from ..namespaces import database
from ..states import InterruptionReason
from .audience import Audience, Observer
from .desk import Desk, Turn
from .enrolment import Enrolment
from .executor import Executor
from .gate import Gate
from .hand import Hand
from .hearing import Hearing
from .herald import Herald
from .keeper import Duties, Held, Keeper
from .running import Run, Runner
from .scribe import Scribe
from .sleep import Sleep, Wake
from .trouble import Backoff, Trouble, one_line

logger = logging.getLogger(__name__)

# How many handlers may be stuck, for each slot, before the worker drains and asks for a restart.
MOST_STUCK = 1


class Scheduler:
    """One worker: a thread that claims and settles, slots that run handlers, a keeper of leases.

    ``start`` makes it look for work by itself until ``shutdown``; ``tick`` takes what is due now
    without that. Both register the worker and recover first. ``queues`` None serves every queue
    but ``exclude_queues``; ``concurrency`` is the number of slots; ``max_jobs`` how many jobs it
    takes in all, None without end; without ``schedules`` it never leads; the process goes by
    ``clock`` while this runs; ``make_id`` makes the ids of the worker and its claims.
    (The seed's attachDurableScheduler; its store is the database.)
    """

    def __init__(
        self,
        namespace: str | None = None,
        *,
        queues: Sequence[str] | None = None,
        exclude_queues: Sequence[str] = (),
        concurrency: int | None = None,
        max_jobs: int | None = None,
        schedules: bool = True,
        clock: Clock | None = None,
        make_id: Callable[[], UUID] | None = None,
        using: str | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.namespace = Settings.NAMESPACE.unless(namespace, "namespace")
        self.using = database(using)
        self.slots = Settings.CONCURRENCY.unless(concurrency, "concurrency")
        self._left = sys.maxsize if max_jobs is None else max_jobs  # jobs that it may still take
        make_id = make_id or uuid7
        self.id = make_id()
        self._clock = clock
        self._audience = Audience(observer, self.id)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._wake = Wake()
        self._ticks: list[Future[int]] = []  # asked for, and not answered yet
        self._opened = self._started = self._draining = self._hurried = self._closed = False
        self._idle = self._claiming = False
        self._error = ""
        self.interrupted = self.requeued = 0  # running jobs that the shutdown ended: left, queued
        self.fault = ""  # what ended the scheduler's thread, if anything did
        self.worn = False  # whether too many handlers are stuck for it to go on
        self._over = False
        self._trouble = trouble = Trouble(self.id)
        self._backoff = Backoff()
        self._scribe = scribe = Scribe(self.using)
        longest = settings.MAX_SLEEP
        self._gate = Gate(self.using, scribe, longest=longest, answered=self._wake.set)
        self._herald = Herald(self.id)
        put = self._herald.put
        runner = Runner(self.using, scribe, longest, lambda: self._draining, put)
        executor = Executor(runner, slots=self.slots, done=self._done, stuck=self._stuck)
        self._executor = executor
        self._hand = Hand(self._lock, executor.stop)
        self._hearing = Hearing(
            self.namespace,
            wake=self._woken,
            stop=self._hand.stop,
            handlers_changed=self._handlers_changed,
        )
        chosen, excluded = queues if queues is None else tuple(queues), frozenset(exclude_queues)
        self._enrolment = Enrolment(
            self.id, self.namespace, self.using, slots=self.slots, queues=chosen, excluded=excluded
        )
        self._enrolment.leads = schedules
        self._desk = Desk(self._enrolment, self._gate, scribe, make_id=make_id)
        hand, freed = self._hand, self._wake.set
        lost, stop, figures = hand.lost, hand.stop, self._figures
        self._keeper = Keeper(
            self.id,
            self.namespace,
            self.using,
            Duties(held=self._held, lost=lost, stop=stop, freed=freed, figures=figures, put=put),
            lease=settings.LEASE,
            interval=settings.HEARTBEAT,
            leads=schedules,
            trouble=trouble,
        )
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)
        self._stopped = threading.Event()
        self._open_for = ExitStack()

    # The public calls

    def start(self) -> bool:
        """Look for work from now on; False where it does already, ShutDown after ``shutdown``."""
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
        self._keeper.abdicate()
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
                self._open_for.close()
                self._keeper.stop()  # also where the thread ended by a fault
                self._gate.close()
                self._executor.close()
                self._scribe.close()
                self._herald.close()
            finally:
                self._stopped.set()
        elif self._opened:
            self._stopped.wait()

    def _end_grace(self, grace: float | None) -> bool:
        """Wait for what runs; tell whether it is the caller who closes this scheduler."""
        with self._lock:
            deadline = time.monotonic() + (settings.SHUTDOWN_GRACE if grace is None else grace)
            # A claim that is under way was begun before: what it takes has the grace too.
            while (self._hand.runs or self._claiming) and not self._hurried:
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
        """Say how this worker is: how far it got, its trouble, its runs (the seed's status)."""
        with self._lock:
            return {
                "started": self._started and not self._closed,
                "closed": self._closed,
                "healthy": not self._error,
                "error": self._error or None,
                "active": len(self._hand.runs),
                "stuck": self._executor.stuck,
                "is_leader": self._keeper.is_leader,
            }

    @property
    def active(self) -> list[Run]:
        """The jobs that this worker holds."""
        with self._lock:
            return list(self._hand.runs.values())

    def wait_until_idle(self, timeout: float | None = None) -> bool:
        """Wait until nothing runs and nothing is due that could be claimed; tell whether so."""
        with self._lock:
            return self._changed.wait_for(lambda: self._idle or self._over, timeout)

    def wait_until_spent(self, timeout: float | None = None) -> bool:
        """Wait until ``max_jobs`` jobs were taken and have ended; tell whether so."""
        with self._lock:
            return self._changed.wait_for(lambda: not (self._left or self._hand.runs), timeout)

    def wait_until_worn(self, timeout: float | None = None) -> bool:
        """Wait until too many handlers are stuck for it to go on; tell whether so."""
        with self._lock:
            return self._changed.wait_for(lambda: self.worn, timeout)

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
            # Else the process's is left alone: whoever set it may take it back earlier.
            if self._clock is not None:
                self._open_for.enter_context(use_clock(self._clock))
            self._open_for.enter_context(self._hearing)
            self._herald.start()
            self._thread.start()

    def _run(self) -> None:
        try:
            with self._desk, sent_by(self._herald.put):
                if (sleep := self._enrol()) is None:
                    return
                self._keeper.start()
                self._scribe.start()
                self._turn_until_closed(sleep)
                self._leave()
        except BaseException as error:
            self._fail(error)
            self.fault = self._error
        finally:
            with self._lock:
                self._over = True
                self._changed.notify_all()
                for tick in self._ticks:
                    tick.set_exception(ShutDown())

    def _enrol(self) -> Sleep | None:
        while not self._closed:
            try:
                self._enrolment.enrol()
                return Sleep(self.using, self.namespace, self._wake, heard=self._hearing.heard)
            except Exception as error:
                self._fail(error)
                time.sleep(self._backoff.next())
        return None

    def _turn_until_closed(self, sleep: Sleep) -> None:
        while not (self._closed and not self._hand.finished):
            self._wake.clear()
            with self._lock:
                tick = self._ticks[0] if self._ticks else None
            try:
                turn = self._turn(claims=self._started or tick is not None)
                if tick is not None:
                    self._ticks.remove(tick)
                    tick.set_result(len(turn.started))
                elif not (turn.more or self._ticks or self._closed):
                    self._rest(sleep, turn)
            except Exception as error:
                self._fail(error)
                if tick is not None and tick in self._ticks:
                    self._ticks.remove(tick)
                    tick.set_exception(error)
                if self._closed:
                    return
                time.sleep(self._backoff.next())
            else:
                self._backoff.reset()
                self._trouble.over("turn")

    def _rest(self, sleep: Sleep, turn: Turn) -> None:
        if turn.started:
            sleep.breathe()
        if not self._wake.is_set():
            self._desk.look_ahead(turn)
            sleep.until(turn.look_in if self._started else None)

    def _turn(self, *, claims: bool) -> Turn:
        """Settle what has ended, claim what is due, and set it going."""
        with self._lock:
            finished, self._hand.finished = self._hand.finished, []
            held = set(self._hand.runs)
            # What has finished frees its slot in this very turn.
            free = min(self.slots - len(self._hand.runs) + len(finished), self._left)
            if self._draining or not claims:
                free = 0
            self._claiming = free > 0
        try:
            turn = self._desk.turn(finished, free=free, held=held)
        except BaseException:
            with self._lock:
                self._claiming = False
                self._hand.finished = finished + self._hand.finished
                self._changed.notify_all()
            raise
        with self._lock:
            self._claiming = False
            self._hand.drop(finished)
            self._hand.take(turn.started)
            self._left -= len(turn.started)
            self._error = ""
            busy = self._hand.runs or turn.more or self._gate.busy
            # Woken meanwhile: by what came too late for this turn.
            self._idle = bool(free) and not busy and not self._wake.is_set()
            self._changed.notify_all()
        self._herald.turned(turn)
        self._executor.submit(turn.started)
        self._audience.tell(lambda observer: observer.turned(turn))
        return turn

    def _leave(self) -> None:
        """Interrupt what still runs, give back what was not begun, and sign off."""
        # Its next sign of life would undo the sign-off.
        self._keeper.stop()
        with self._lock:
            left = list(self._hand.runs.values())
            self._hand.drop(left)
        for run in left:
            run.context.stop(InterruptionReason.SCHEDULER_SHUTDOWN)
        self._enrolment.stuck = self._executor.stuck
        kept = self._desk.sign_off(left)
        self.interrupted = sum(outcome.edge == "interrupt" for outcome in kept)
        self.requeued = sum(outcome.edge == "retry_interrupted" for outcome in kept)

    # What other threads tell

    def _done(self, run: Run) -> None:
        self._hand.ended(run)
        self._wake.set()

    def _woken(self) -> None:
        with self._lock:
            self._idle = False
        self._wake.set()

    def _handlers_changed(self) -> None:
        self._enrolment.changed = True
        self._wake.set()

    def _held(self) -> Held:
        return self._hand.held() + [(one.job_id, one.claim_id) for one in self._desk.unread]

    def _stuck(self, run: Run) -> None:
        stuck, most = self._executor.stuck, MOST_STUCK * self.slots
        self._audience.tell(lambda observer: observer.stuck(run, stuck, most))
        if stuck > most:
            logger.error("too many handlers stuck, draining worker=%s stuck=%s", self.id, stuck)
            with self._lock:
                self.worn = True
                self._changed.notify_all()
            self.drain()

    def _figures(self) -> dict[str, object]:
        with self._lock:
            return {
                "active": len(self._hand.runs),
                "stuck": self._executor.stuck,
                "healthy": not self._error,
                "error": self._error[:1_000],
                "state": "draining" if self._draining else "running",
            }

    def _fail(self, error: BaseException) -> None:
        self._error = one_line(error)
        if self._trouble.failed("turn", error):
            self._audience.tell(lambda observer: observer.troubled(self._error))
        self._desk.unsure = True
