"""Event loops on which async handlers run."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async

from ..audit import messenger
from .forking import parent_only
from .frames import TaskFrame
from .isolation import clean_connections, close_connections, in_fresh_context
from .running import Abandoned, Arguments, Run, Runner, given_back
from .watchdog import Watchdog

logger = logging.getLogger(__name__)

# How long cancelled coroutines have for their clean-up before their loop stops, in seconds.
CANCELLED_IN = 1.0

Attempt = Callable[[Run, Callable[[], object]], Any]


class LoopSlots:
    """One event loop, each job a task on it; another loop when that one is blocked for good."""

    def __init__(
        self, runner: Runner, watchdog: Watchdog, *, done: Callable[[Run], object]
    ) -> None:
        self._runner = runner
        self._watchdog = watchdog
        self._done = done
        self._lock = threading.Lock()
        self._loops: list[EventLoop] = []
        self._current: EventLoop | None = None

    def submit(self, runs: Iterable[Run]) -> None:
        with self._lock:
            if self._current is None:
                self._current = EventLoop(self._run, deserted=self._desert)
                self._loops.append(self._current)
            self._current.submit(runs)

    def close(self) -> None:
        for loop in self._loops:
            loop.close()

    def _desert(self, loop: EventLoop) -> None:
        """Let another loop take over from one that does not answer, with what waits for it."""
        with self._lock:
            if self._current is loop:
                self._current = None
        if not (waiting := loop.withdraw()):
            return
        try:
            self.submit(waiting)
        except Exception:
            logger.exception("no other loop, jobs are given back count=%s", len(waiting))
            for run in waiting:
                run.outcome = given_back(run)
                self._done(run)

    async def _run(self, run: Run, desert: Callable[[], object]) -> None:
        messenger.set(self._runner.put)  # in the context of this task, which is its own
        try:
            await self._attempt(run, TaskFrame(desert))
        except Abandoned:
            logger.warning("stuck handler came back, unheard job=%s", run.job.pk)
            return
        except BaseException as error:
            self._runner.give_up(run, error)
        self._done(run)

    async def _attempt(self, run: Run, frame: TaskFrame) -> None:
        if run.claimed.started:
            arguments = self._runner.prepare(run)
        else:  # asks can_run and waits for the scribe
            prepare = sync_to_async(self._prepare_apart, thread_sensitive=False)
            arguments = await prepare(run)
        if arguments is None:
            return
        try:
            try:
                self._watchdog.enter(run, frame)
                result = await self._call(run, arguments, frame)
            finally:
                self._watchdog.leave(run)
        except Abandoned:
            raise
        except BaseException as error:
            self._runner.fail(run, error)
        else:
            self._runner.finish(run, result)

    @staticmethod
    async def _call(run: Run, arguments: Arguments, frame: TaskFrame) -> Any:
        """Await the handler, and the end of what it calls on its thread.

        All of it under the eyes of the watchdog: a cancelled handler leaves behind what its thread
        is busy with, a query that waits for a lock, say.
        """
        assert run.handler is not None
        args, kwargs = arguments
        async with ThreadSensitiveContext() as sensitive:
            try:
                with parent_only():
                    return await run.handler.function(*args, **kwargs)
            finally:
                frame.withdraw()  # whoever cancels from here on would not hit the handler
                # Only where the handler went to the database: asking starts its thread.
                if sensitive in SyncToAsync.context_to_thread_executor:
                    await sync_to_async(close_connections)()

    def _prepare_apart(self, run: Run) -> Arguments | None:
        """Prepare on a thread of a pool, which is left without connections and context."""
        try:
            with clean_connections():
                return in_fresh_context(lambda: self._runner.prepare(run))
        finally:
            close_connections()


class EventLoop:
    """An event loop on a thread of its own; each run is ``attempt``'s task, with a fresh context.

    ``deserted`` is called with this loop when a run finds that it does not answer.
    """

    def __init__(self, attempt: Attempt, *, deserted: Callable[[EventLoop], object]) -> None:
        self._attempt = attempt
        self._deserted = partial(deserted, self)
        self._waiting: deque[Run] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._over = False
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._serve, name="loop", daemon=True)
        try:
            thread.start()
        except BaseException:
            self._loop.close()
            raise

    def submit(self, runs: Iterable[Run]) -> None:
        self._waiting.extend(runs)
        self._loop.call_soon_threadsafe(self._begin)

    def withdraw(self) -> list[Run]:
        """Return the runs that were not begun: they are this loop's no more."""
        runs = []
        with suppress(IndexError):
            while True:
                runs.append(self._waiting.popleft())
        return runs

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._end)

    def _serve(self) -> None:
        while not self._over:
            try:
                self._loop.run_forever()
            except BaseException:
                # A SystemExit in a task that a handler began: asyncio lets it end the loop, but
                # the loop is not that handler's alone.
                logger.exception("event loop disturbed")
        self._loop.close()

    def _begin(self) -> None:
        for run in self.withdraw():
            task = self._loop.create_task(self._attempt(run, self._deserted), context=Context())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _end(self) -> None:
        """Cancel what still runs (it was interrupted already), give it a moment, and stop."""
        tasks = set(self._tasks)

        async def cancelled() -> None:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=CANCELLED_IN)
            await self._loop.shutdown_asyncgens()
            self._over = True
            self._loop.stop()

        self._tasks.add(self._loop.create_task(cancelled()))  # a loop itself holds tasks weakly
