"""Threads on which ordinary handlers run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from ..audit import messenger
from ..errors import TransactionLeftOpen
from .frames import ThreadFrame
from .isolation import clean_connections, close_connections, in_fresh_context
from .running import Abandoned, Run, Runner
from .watchdog import Watchdog

logger = logging.getLogger(__name__)


class ThreadSlots:
    """As many threads as there are slots, started when they are first needed.

    One that is stuck in a handler is not counted any more, so that another takes its place.
    """

    def __init__(
        self, runner: Runner, watchdog: Watchdog, *, slots: int, done: Callable[[Run], object]
    ) -> None:
        self._runner = runner
        self._watchdog = watchdog
        self._slots = slots
        self._done = done
        self._queue: SimpleQueue[Run | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(self, runs: list[Run]) -> None:
        for run in runs:
            self._submit(run)

    def _submit(self, run: Run) -> None:
        if len(self._threads) < self._slots:
            thread = threading.Thread(
                target=self._work, name=f"slot-{len(self._threads) + 1}", daemon=True
            )
            thread.start()
            self._threads.append(thread)
        self._queue.put(run)

    def close(self) -> None:
        for _ in self._threads:
            self._queue.put(None)

    def _work(self) -> None:
        messenger.set(self._runner.put)  # for as long as this thread lives
        frame = ThreadFrame(deserted=partial(self._desert, threading.current_thread()))
        while (run := self._queue.get()) is not None:
            try:
                with clean_connections() as lent:
                    in_fresh_context(lambda run=run: self._run(run, frame))  # type: ignore[misc]
            except Abandoned:
                logger.warning("stuck handler came back, unheard job=%s", run.job.pk)
                break
            except BaseException as error:
                # Nothing of ours should raise here; whatever it is, the job gets an outcome.
                self._runner.give_up(run, error)
            else:
                if lent.left_open and run.handler_returned:
                    self._runner.fail(run, TransactionLeftOpen())
            if run.interrupted:
                # In the midst of a query, perhaps.
                close_connections()
            self._done(run)
        close_connections()

    def _run(self, run: Run, frame: ThreadFrame) -> None:
        arguments = self._runner.prepare(run)
        if arguments is not None:
            self._runner.call(run, arguments, partial(self._watchdog.call, run, frame))

    def _desert(self, thread: threading.Thread) -> None:
        self._threads.remove(thread)
