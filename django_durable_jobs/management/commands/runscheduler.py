"""Run a worker in the foreground, until it is asked to stop."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from ... import registry
from ...conf import settings
from ...namespaces import database
from ...worker.scheduler import Scheduler
from ...worker.terminal import Terminal

# How long threads that handlers left behind may hold up the exit, in seconds.
LEFT_THREADS = 2.0
# How often the main thread stops waiting for a moment, in seconds: a signal that comes just as it
# begins to wait for a lock is heard only when that wait ends.
LISTEN_EVERY = 0.25
# How long a sign-off may take after a second signal, in seconds.
HURRIED = 5.0


class Command(BaseCommand):
    help = "Run a worker: claim due jobs, run their handlers, write down what became of them."
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--namespace", help="default: the setting NAMESPACE")
        parser.add_argument("--queues", help="serve only these queues, comma-separated")
        parser.add_argument("--exclude-queues", help="serve every queue but these")
        parser.add_argument("--concurrency", type=int, help="jobs at a time in this process")
        parser.add_argument("--database", help="the alias that jobs live in")
        parser.add_argument("--burst", action="store_true", help="stop when nothing is due")
        parser.add_argument("--grace", type=float, help="seconds for running jobs at a stop")
        parser.add_argument("--log-format", choices=("text", "json"), default="text")

    def get_check_kwargs(self, options: dict[str, Any]) -> Any:
        # The check of the database's version runs only where an alias is named.
        alias = options["database"] or database()
        # One that is not there is refused below, in words.
        aliases = [alias] if alias in connections else []
        return {**super().get_check_kwargs(options), "databases": aliases}

    def execute(self, *args: Any, **options: Any) -> str | None:
        # From here on, the system checks included: a process that is told to stop while it
        # starts ends as cleanly as one that ran.
        self._stopper = _Stopper()
        with self._stopper:
            return super().execute(*args, **options)

    def handle(self, *args: Any, **options: Any) -> None:
        if options["concurrency"] is not None and options["concurrency"] < 1:
            raise CommandError("--concurrency must be at least 1.", returncode=2)
        if options["queues"] and options["exclude_queues"]:
            raise CommandError("Give --queues or --exclude-queues, not both.", returncode=2)
        if options["grace"] is not None and options["grace"] < 0:
            raise CommandError("--grace must be 0 or more seconds.", returncode=2)
        alias = options["database"] or database()
        if alias not in connections:
            raise CommandError(f"There is no database {alias!r} in DATABASES.", returncode=2)
        self._check_tables(alias)
        terminal = Terminal(
            self.stdout,
            style=self.style,
            verbosity=options["verbosity"],
            json_lines=options["log_format"] == "json",
        )
        scheduler = Scheduler(
            options["namespace"],
            queues=_names(options["queues"]),
            exclude_queues=_names(options["exclude_queues"]) or (),
            concurrency=options["concurrency"],
            using=alias,
            observer=terminal,
        )
        self._greet(terminal, scheduler, options)
        stopper = self._stopper
        threads = set(threading.enumerate())
        _in_background(stopper.call_at_second, lambda: _hurry(scheduler))
        if not stopper.asked:
            scheduler.start()
            for wait in (
                scheduler.wait_until_over,
                *[scheduler.wait_until_idle] * options["burst"],
            ):
                _in_background(stopper.ask_after, wait)
            stopper.wait()
        self._stop(terminal, scheduler, options, asked=stopper.by_signal)
        if scheduler.interrupted or _hold_up(set(threading.enumerate()) - threads):
            # These threads may never end, and would keep the process from ending.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    def _check_tables(self, alias: str) -> None:
        tables = connections[alias].introspection.table_names()
        if "django_durable_jobs_job" not in tables:
            raise CommandError(
                f"The database {alias!r} has no tables for jobs: run `manage.py migrate` first."
            )

    def _greet(self, terminal: Terminal, scheduler: Scheduler, options: dict[str, Any]) -> None:
        connection = connections[scheduler.using]
        types = sorted(registry.types())
        queues = options["queues"] or (
            f"all but {options['exclude_queues']}" if options["exclude_queues"] else "all"
        )
        name = connection.settings_dict["NAME"]
        place = f"{connection.display_name} {os.path.basename(str(name))} ({scheduler.using})"
        handlers = ", ".join(types[:6]) + (f" and {len(types) - 6} more" if len(types) > 6 else "")
        lines = [
            f"Worker {str(scheduler.id)[-8:]}, process {os.getpid()}",
            f"  namespace  {scheduler.namespace}",
            f"  database   {place}",
            f"  queues     {queues}",
            f"  slots      {scheduler.slots}",
            f"  handlers   {handlers or 'none: no app has a module named jobs with @job in it'}",
            "Stop with Ctrl-C.",
        ]
        terminal.say(
            "start",
            "\n".join(lines),
            worker=scheduler.id,
            pid=os.getpid(),
            namespace=scheduler.namespace,
            database=scheduler.using,
            queues=queues,
            slots=scheduler.slots,
            handlers=types,
        )

    def _stop(
        self, terminal: Terminal, scheduler: Scheduler, options: dict[str, Any], *, asked: bool
    ) -> None:
        grace = settings.SHUTDOWN_GRACE if options["grace"] is None else options["grace"]
        scheduler.drain()
        if asked:
            terminal.waiting(scheduler.active, grace)
        stopping = _in_background(scheduler.shutdown, grace)
        while stopping.is_alive():
            stopping.join(LISTEN_EVERY)
        left = scheduler.interrupted
        if left:
            terminal.say(
                "interrupted",
                f"Interrupted {left} running {'job' if left == 1 else 'jobs'}: they stay"
                " interrupted until somebody requeues or resolves them.",
                kind="WARNING",
                jobs=left,
            )
        if scheduler.fault:
            raise CommandError(f"The worker ended by a fault: {scheduler.fault}")
        terminal.say("stopped", "Stopped." if asked else "Stopped: nothing is due.")


class _Stopper:
    """Have SIGTERM and SIGINT ask for the end, and a second one end the grace.

    By queues, since a signal's handler runs in the middle of whatever the main thread does: an
    Event that is set while that very thread waits for it locks up.
    """

    def __init__(self) -> None:
        self.asked = self.by_signal = False
        self._once: SimpleQueue[None] = SimpleQueue()
        self._again: SimpleQueue[None] = SimpleQueue()
        self._previous: dict[int, Any] = {}

    def wait(self) -> None:
        """Wait until somebody asks for the end."""
        while True:
            with suppress(Empty):
                return self._once.get(timeout=LISTEN_EVERY)

    def ask_after(self, wait: Callable[[], object]) -> None:
        """Ask for the end when ``wait`` returns."""
        wait()
        self.asked = True
        self._once.put(None)

    def call_at_second(self, function: Callable[[], object]) -> None:
        """Call ``function`` at the second signal."""
        self._again.get()
        function()

    def __enter__(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._ask)

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._again.put(None)  # for the thread that waits for a second signal: nothing is left

    def _ask(self, number: int, frame: FrameType | None) -> None:
        (self._again if self.by_signal else self._once).put(None)
        self.asked = self.by_signal = True


def _hurry(scheduler: Scheduler) -> None:
    """End the grace; and the process, should the database not answer to the sign-off."""
    scheduler.hurry()
    if not scheduler.wait_until_over(HURRIED):
        os._exit(1)


def _in_background(function: Callable[..., object], *args: object) -> threading.Thread:
    thread = threading.Thread(target=function, args=args, daemon=True)
    thread.start()
    return thread


def _hold_up(threads: Iterable[threading.Thread]) -> bool:
    """Give threads that handlers left behind a moment; tell whether one holds up the exit."""
    deadline = time.monotonic() + LEFT_THREADS
    for thread in threads:
        if not thread.daemon:
            thread.join(max(deadline - time.monotonic(), 0.0))
    return any(thread.is_alive() and not thread.daemon for thread in threads)


def _names(text: str | None) -> tuple[str, ...] | None:
    names = tuple(name.strip() for name in (text or "").split(",") if name.strip())
    return names or None
