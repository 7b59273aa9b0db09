"""Run a worker in the foreground, until it is asked to stop."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from argparse import SUPPRESS, ArgumentParser, BooleanOptionalAction
from collections.abc import Iterable
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import connections
from django.utils.autoreload import get_child_arguments

from ... import registry
from ...conf import Settings, settings
from ...worker.reloading import Code
from ...worker.restarts import CLEAN, FAULT, RESTART, USAGE
from ...worker.scheduler import Scheduler
from ...worker.stopping import LISTEN_EVERY, Stopper, in_background
from ...worker.supervisor import Supervisor
from ...worker.terminal import Terminal
from ..reaching import Reaching
from ..subcommands.scope import check_scope, scope_of

# How long threads that handlers left behind may hold up the exit, in seconds.
LEFT_THREADS = 2.0
# How long the end may take after a second signal, in seconds.
HURRIED = 5.0

_NO_HANDLERS = "none: no app has a module named jobs with @job in it"

logger = logging.getLogger(__name__)


class Command(BaseCommand):
    help = "Run a worker: claim due jobs, run their handlers, write down what became of them."
    requires_migrations_checks = False
    _has_command_line = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--namespace", help="default: the setting NAMESPACE")
        parser.add_argument("--queues", help="serve only these queues, comma-separated")
        parser.add_argument("--exclude-queues", help="serve every queue but these")
        parser.add_argument("--concurrency", type=int, help="jobs at a time in one process")
        parser.add_argument("--processes", type=int, help="workers that one supervisor runs")
        parser.add_argument("--database", help="the alias that jobs live in")
        parser.add_argument("--burst", action="store_true", help="stop when nothing is due")
        parser.add_argument(
            "--no-schedules",
            action="store_false",
            dest="schedules",
            help="never lead: neither store schedules nor fire them, nor delete old rows",
        )
        parser.add_argument(
            "--reload",
            action=BooleanOptionalAction,
            help="start again when the code changes (default: under DEBUG, unless --burst)",
        )
        parser.add_argument(
            "--max-jobs", type=int, help="take so many jobs, then exit with 75 to be restarted"
        )
        parser.add_argument("--grace", type=float, help="seconds for running jobs at a stop")
        parser.add_argument("--log-format", choices=("text", "json"), default="text")
        # What a supervisor tells its children: a number, and the pipe that it holds the end of.
        parser.add_argument("--child", type=_number_and_pipe, help=SUPPRESS)

    def get_check_kwargs(self, options: dict[str, Any]) -> Any:
        # Some checks, that of its version among them, ask each database that is named here.
        try:
            _, alias = scope_of(options)
            answers = self._reaching(alias, options).tables() is not None
        except ImproperlyConfigured:
            answers = False  # in what way is just what the checks will tell
        return {**super().get_check_kwargs(options), "databases": [alias] if answers else []}

    def run_from_argv(self, argv: list[str]) -> None:
        self._has_command_line = True
        super().run_from_argv(argv)

    def execute(self, *args: Any, **options: Any) -> str | None:
        # From here on, the system checks included: a process that is told to stop while it
        # starts ends as cleanly as one that ran.
        self._stopper = Stopper()
        with self._stopper:
            if options["child"]:
                self._stopper.follow(options["child"][1])
            _check_usage(options)
            return super().execute(*args, **options)

    def handle(self, *args: Any, **options: Any) -> None:
        _, alias = scope_of(options)
        reaching = self._reaching(alias, options)
        if not reaching.has_our_tables():
            return
        self._leader = reaching.leader(_namespace(options))
        if self._has_command_line:
            _close_connections()  # this thread needs none from here on
        reloads = self._reloads(options)
        if options["child"] is None and (reloads or options["processes"] is not None):
            code = self._supervise(alias, options, reloads=reloads)
        else:
            code = self._work(alias, options)
        if code != CLEAN:
            sys.exit(code)

    def _reloads(self, options: dict[str, Any]) -> bool:
        if self._has_command_line:
            by_default = django_settings.DEBUG and not options["burst"]
            return by_default if options["reload"] is None else options["reload"]
        if options["processes"] is None and not options["reload"]:
            return False
        raise CommandError(
            "--processes and --reload run the command line of this process again, which is not"
            " this command: start `manage.py runscheduler` itself.",
            returncode=USAGE,
        )

    def _supervise(self, alias: str, options: dict[str, Any], *, reloads: bool) -> int:
        """Run workers in processes of their own; return the worst of their exit codes."""
        terminal = self._terminal(options)
        processes = options["processes"] or 1
        many = f"{processes} workers" if processes > 1 else "A worker"
        title = f"{many}, supervised by process {os.getpid()}"
        title += ", started again when the code changes" * reloads
        self._greet(
            terminal, "supervise", title, alias, options, processes=processes, reload=reloads
        )
        supervisor = Supervisor(
            [str(part) for part in get_child_arguments()],
            processes=processes,
            stopper=self._stopper,
            terminal=terminal,
            burst=options["burst"],
            code=Code() if reloads else None,
        )
        code = supervisor.run()
        terminal.say("ended", "Stopped.", code=code)
        return code

    def _work(self, alias: str, options: dict[str, Any]) -> int:
        """Run one worker in this process; return its exit code."""
        stopper = self._stopper
        terminal = self._terminal(options)
        scheduler = Scheduler(
            options["namespace"],
            queues=_names(options["queues"]),
            exclude_queues=_names(options["exclude_queues"]) or (),
            concurrency=options["concurrency"],
            max_jobs=options["max_jobs"],
            schedules=options["schedules"],
            using=alias,
            observer=terminal,
        )
        title = f"Worker {scheduler.id}, process {os.getpid()}"
        self._greet(terminal, "start", title, alias, options, worker=scheduler.id)
        threads = set(threading.enumerate())
        closed = threading.Event()
        in_background(stopper.call_at_second, lambda: _hurry(scheduler, closed))
        if not stopper.asked:
            stopper.begin()
            scheduler.start()
            waits = [scheduler.wait_until_over, scheduler.wait_until_worn]
            waits += [scheduler.wait_until_idle] * options["burst"]
            waits += [scheduler.wait_until_spent] * (options["max_jobs"] is not None)
            for wait in waits:
                in_background(stopper.ask_after, wait)
            stopper.wait()
        code = self._stop(terminal, scheduler, options, closed)
        left = scheduler.interrupted or scheduler.requeued or scheduler.status()["stuck"]
        if self._has_command_line and (left or _hold_up(set(threading.enumerate()) - threads)):
            # These threads may never end, and would keep the process from ending.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        return code

    def _terminal(self, options: dict[str, Any]) -> Terminal:
        is_one_of_many = options["child"] and (options["processes"] or 1) > 1
        return Terminal(
            self.stdout,
            style=self.style,
            verbosity=options["verbosity"],
            json_lines=options["log_format"] == "json",
            process=options["child"][0] if is_one_of_many else None,
        )

    def _reaching(self, alias: str, options: dict[str, Any]) -> Reaching:
        return Reaching(
            alias,
            stopper=self._stopper,
            terminal=self._terminal(options),
            burst=options["burst"],
        )

    def _greet(
        self,
        terminal: Terminal,
        event: str,
        title: str,
        alias: str,
        options: dict[str, Any],
        **facts: Any,
    ) -> None:
        """Tell what is served; a supervisor has said so to people before its children do."""
        connection = connections[alias]
        types = sorted(registry.types())
        schedules = [declaration.name for declaration in registry.schedules.all()]
        namespace = _namespace(options)
        slots = Settings.CONCURRENCY.unless(options["concurrency"], "concurrency")
        queues = options["queues"] or (
            f"all but {options['exclude_queues']}" if options["exclude_queues"] else "all"
        )
        name = os.path.basename(str(connection.settings_dict["NAME"]))
        lines = [
            title,
            f"  namespace  {namespace}",
            f"  database   {connection.display_name} {name} ({alias})",
            f"  queues     {queues}",
            f"  slots      {slots}" + " each" * (facts.get("processes", 1) > 1),
            f"  handlers   {_some(types) or _NO_HANDLERS}",
            f"  schedules  {_some(schedules) or 'none'}"
            + ("" if options["schedules"] else "; never fired here (--no-schedules)"),
            f"  leader     {self._leader or 'nobody yet'}",
            "Stop with Ctrl-C.",
        ]
        terminal.say(
            event,
            title if options["child"] else "\n".join(lines),
            pid=os.getpid(),
            namespace=namespace,
            database=alias,
            queues=queues,
            slots=slots,
            handlers=types,
            schedules=schedules,
            leader=self._leader,
            **facts,
        )

    def _stop(
        self,
        terminal: Terminal,
        scheduler: Scheduler,
        options: dict[str, Any],
        closed: threading.Event,
    ) -> int:
        """Drain and close the scheduler, and tell; return the exit code."""
        asked = bool(self._stopper.stage)
        if not asked and scheduler.worn:
            code, why = RESTART, ": too many handlers do not end"
        elif not asked and scheduler.wait_until_spent(0):
            code, why = RESTART, f": it has taken its {options['max_jobs']} jobs"
        else:
            code, why = CLEAN, "" if asked else ": nothing is due"
        grace = settings.SHUTDOWN_GRACE if options["grace"] is None else options["grace"]
        scheduler.drain()
        if asked and not options["child"]:
            terminal.waiting(scheduler.active, grace, hint=" Press Ctrl-C again to interrupt them.")
        elif asked and scheduler.active:
            terminal.waiting(scheduler.active, grace)
        stopping = in_background(scheduler.shutdown, grace)
        while stopping.is_alive():
            stopping.join(LISTEN_EVERY)
        closed.set()
        terminal.interrupted(scheduler.interrupted, scheduler.requeued)
        if scheduler.fault:
            raise CommandError(f"The worker ended by a fault: {scheduler.fault}")
        who = f"Worker {str(scheduler.id)[-8:]} stopped" if options["child"] else "Stopped"
        terminal.say("stopped", f"{who}{why}.", code=code)
        return code


def _hurry(scheduler: Scheduler, closed: threading.Event) -> None:
    """End the grace; and the process, should a thread hang: for its database, or for a terminal."""
    scheduler.hurry()
    if closed.wait(HURRIED):
        return
    written = scheduler.wait_until_over(0) and not scheduler.fault
    told = "everything is written" if written else "others will find what it held"
    said = in_background(logger.error, "threads hang, leaving without them: %s", told)
    said.join(1.0)  # the log may be what hangs
    os._exit(CLEAN if written else FAULT)


def _hold_up(threads: Iterable[threading.Thread]) -> bool:
    """Give threads that handlers left behind a moment; tell whether one holds up the exit."""
    deadline = time.monotonic() + LEFT_THREADS
    for thread in threads:
        if not thread.daemon:
            thread.join(max(deadline - time.monotonic(), 0.0))
    return any(thread.is_alive() and not thread.daemon for thread in threads)


def _namespace(options: dict[str, Any]) -> str:
    return Settings.NAMESPACE.unless(options["namespace"], "namespace")


def _some(names: list[str]) -> str:
    """Return the first names, and how many there are beside them."""
    return ", ".join(names[:6]) + f" and {len(names) - 6} more" * (len(names) > 6)


def _names(text: str | None) -> tuple[str, ...] | None:
    names = tuple(name.strip() for name in (text or "").split(",") if name.strip())
    return names or None


def _check_usage(options: dict[str, Any]) -> None:
    for name in ("concurrency", "processes", "max_jobs"):
        if options[name] is not None and options[name] < 1:
            option = name.replace("_", "-")
            raise CommandError(f"--{option} must be at least 1.", returncode=USAGE)
    for name in ("queues", "exclude_queues"):
        if options[name] is not None and not _names(options[name]):
            option = name.replace("_", "-")
            raise CommandError(f"--{option} names no queue.", returncode=USAGE)
    if options["queues"] and options["exclude_queues"]:
        raise CommandError("Give --queues or --exclude-queues, not both.", returncode=USAGE)
    if options["grace"] is not None and not options["grace"] >= 0:  # nor nan
        raise CommandError("--grace must be 0 or more seconds.", returncode=USAGE)
    check_scope(options)


def _close_connections() -> None:
    """Close what the checks have opened, and the pools, which would open it again."""
    for connection in connections.all(initialized_only=True):
        connection.close()
        if close_pool := getattr(connection, "close_pool", None):
            close_pool()


def _number_and_pipe(text: str) -> tuple[int, int]:
    number, pipe = text.split(":")
    return int(number), int(pipe)
