"""Where handlers run: threads for ordinary ones, one event loop for async ones."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from queue import SimpleQueue
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async

from ..errors import TransactionLeftOpen
from .isolation import clean_connections, close_connections, in_fresh_context
from .running import Arguments, Run, Runner, given_back

logger = logging.getLogger(__name__)

Done = Callable[[Run], object]

# How long cancelled coroutines have for their clean-up before their loop stops, in seconds.
CANCELLED_IN = 1.0


# Jobs that end sooner are waited for, so that one turn settles them together: in seconds, for
# all that are begun at once and for each of them.
MOMENT, MOMENT_EACH = 0.003, 0.0001


class Executor:
    """Run jobs and hand each back, with its outcome, through ``done``."""

    def __init__(self, runner: Runner, *, slots: int, done: Done) -> None:
        self._threads = ThreadSlots(runner, slots=slots, done=self._ended)
        self._loop = LoopSlots(runner, done=self._ended)
        self._done = done
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

    def _ended(self, run: Run) -> None:
        self._done(run)
        with self._lock:
            self._running -= 1
            self._usual += (run.seconds - self._usual) / 8
            if not self._running:
                self._none_runs.set()

    def _set_going(self, runs: Iterable[Run]) -> None:
        for_loop = [run for run in runs if run.handler is not None and run.handler.is_async]
        for run in runs:
            if run not in for_loop:
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
        self._threads.close()
        self._loop.close()


class ThreadSlots:
    """As many threads as there are slots, started when they are first needed."""

    def __init__(self, runner: Runner, *, slots: int, done: Done) -> None:
        self._runner = runner
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
        while (run := self._queue.get()) is not None:
            try:
                with clean_connections() as lent:
                    in_fresh_context(lambda run=run: self._run(run))  # type: ignore[misc]
            except BaseException as error:
                # Nothing of ours should raise here; whatever it is, the job gets an outcome.
                self._runner.give_up(run, error)
            else:
                if lent.left_open and run.handler_returned:
                    self._runner.fail(run, TransactionLeftOpen())
            self._done(run)
        close_connections()

    def _run(self, run: Run) -> None:
        arguments = self._runner.prepare(run)
        if arguments is not None:
            self._runner.call(run, arguments)


class LoopSlots:
    """One event loop on a thread of its own, each job a task with a fresh context."""

    def __init__(self, runner: Runner, *, done: Done) -> None:
        self._runner = runner
        self._done = done
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = False
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, runs: list[Run]) -> None:
        if self._loop is None:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=self._serve, args=(loop,), name="loop", daemon=True)
            try:
                thread.start()
            except BaseException:
                loop.close()
                raise
            self._loop = loop
        self._loop.call_soon_threadsafe(self._begin, runs)

    def close(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._end, self._loop)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._over:
            try:
                loop.run_forever()
            except BaseException:
                # A SystemExit in a task that a handler began: asyncio lets it end the loop, but
                # the loop is not that handler's alone.
                logger.exception("event loop disturbed")
        loop.close()

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel what still runs (it was interrupted already), give it a moment, and stop."""
        tasks = set(self._tasks)

        async def cancelled() -> None:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=CANCELLED_IN)
            await loop.shutdown_asyncgens()
            self._over = True
            loop.stop()

        self._tasks.add(loop.create_task(cancelled()))  # a loop itself holds tasks weakly

    def _begin(self, runs: list[Run]) -> None:
        assert self._loop is not None
        for run in runs:
            task = self._loop.create_task(self._run(run), context=Context())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, run: Run) -> None:
        try:
            async with ThreadSensitiveContext() as sensitive:
                try:
                    await self._attempt(run)
                finally:
                    # Only where the handler went to the database: asking starts its thread.
                    if sensitive in SyncToAsync.context_to_thread_executor:
                        await sync_to_async(close_connections)()
        except BaseException as error:
            self._runner.give_up(run, error)
        self._done(run)

    def _prepare_apart(self, run: Run) -> Arguments | None:
        """Prepare on a thread of a pool, which is left without connections and context."""
        try:
            with clean_connections():
                return in_fresh_context(lambda: self._runner.prepare(run))
        finally:
            close_connections()

    async def _attempt(self, run: Run) -> None:
        if run.claimed.started:
            arguments = self._runner.prepare(run)
        else:  # asks can_run and waits for the scribe
            prepare = sync_to_async(self._prepare_apart, thread_sensitive=False)
            arguments = await prepare(run)
        if arguments is None:
            return
        assert run.handler is not None
        args, kwargs = arguments
        try:
            result: Any = await run.handler.function(*args, **kwargs)
        except BaseException as error:
            self._runner.fail(run, error)
        else:
            self._runner.finish(run, result)
