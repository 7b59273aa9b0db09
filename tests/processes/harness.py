"""Workers in processes of their own, for the tests that start, stop and kill them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sqlite3
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar
from uuid import UUID

from django.db import connection

from django_durable_jobs.models import Execution, Job, Worker
from tests import databases, ledger

T = TypeVar("T")

# Short, so that a test need not wait long for a lease to run out.
QUICK = {
    "HEARTBEAT": 0.5,
    "LEASE": 2,
    "POLL_INTERVAL": 0.1,
    "MAX_SLEEP": 1,
    "SHUTDOWN_GRACE": 10,
}
# What must never be seen in a worker's output.
TROUBLE = ("Traceback", "database is locked", "eadlock", "trouble")


def until(condition: Callable[[], T], what: str, *, seconds: float = 30.0) -> T:
    """Wait until the condition holds and return its value; fail when it does not come about."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain for {what}")
        time.sleep(0.02)
    return value


def sqlite_file_is_free() -> bool:
    """Tell whether nobody holds SQLite's write lock for longer than a moment."""
    if connection.vendor != "sqlite":
        return True
    probe = sqlite3.connect(connection.settings_dict["NAME"], timeout=1.0)
    try:
        probe.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        return False
    finally:
        probe.close()
    return True


def freeze(pid: int) -> None:
    """Stop a worker as SIGSTOP does, at a moment at which it does not hold everybody up.

    Whoever is stopped with SQLite's one write lock does, whatever any of us does.
    """

    def frozen() -> bool:
        os.kill(pid, signal.SIGSTOP)
        if sqlite_file_is_free():
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    until(frozen, f"a moment to freeze {pid}")


class Process(Protocol):
    """What is asked of a process: as a Popen has it."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, number: int, /) -> None: ...
    def kill(self) -> None: ...


@dataclass(eq=False)
class WorkerProcess:
    """One ``runscheduler``, and what it wrote."""

    process: Process
    log: Path
    replaced: bool = False  # by another one that a test started in its place

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return what it told of this kind (its output is a JSON object a line)."""
        found = []
        for line in self.output.splitlines():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and event.get("event") == name:
                    found.append(event)
        return found

    @property
    def id(self) -> UUID:
        return UUID(self.events("start")[0]["worker"])

    @property
    def children(self) -> list[int]:
        """The pids of the workers that have started under it, first to last."""
        return [event["pid"] for event in self.events("start") if event["pid"] != self.pid]

    def row(self) -> Worker:
        return Worker.objects.get(pk=self.id)

    def ready(self) -> WorkerProcess:
        """Wait until it has registered itself."""
        until(lambda: self.events("start") or self.is_over(), f"the start of {self.pid}")
        assert not self.is_over(), self.output
        until(lambda: Worker.objects.filter(pk=self.id).exists(), f"the row of {self.pid}")
        return self

    def is_over(self) -> bool:
        return self.process.poll() is not None

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill it as ``kill -9`` does, and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()

    def kill_children(self) -> None:
        """Kill what a supervisor that is killed leaves behind, and would end by itself."""
        for pid in self.children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def ended(self, seconds: float = 20.0) -> int:
        """Return its exit code, once it has ended by itself."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGUSR1)  # it writes where its threads stand
            time.sleep(0.5)
            raise AssertionError(f"still runs after {seconds:g} s:\n{self.output}") from None

    def stop(self, seconds: float = 20.0) -> int:
        self.signal(signal.SIGTERM)
        return self.ended(seconds)


class Workers:
    """Start workers that share a ledger; none outlives the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledger = folder / "ledger"
        self.all: list[WorkerProcess] = []

    def start(
        self,
        *arguments: str,
        command: str = "runscheduler",
        environment: dict[str, str] | None = None,
        terminal: int | None = None,
        **settings: Any,
    ) -> WorkerProcess:
        log = self.folder / f"worker-{len(self.all)}"
        env = self._environment(log, environment, settings)
        words = [*command.split(), "--log-format", "json", *arguments]
        return self._add(self._launch(words, env, log, terminal), log)

    def _environment(
        self, log: Path, environment: dict[str, str] | None, settings: dict[str, Any]
    ) -> dict[str, str]:
        return databases.subprocess_environment() | {
            "DDJ_DURABLE_JOBS": json.dumps(QUICK | settings),
            ledger.VARIABLE: str(self.ledger),
            "PGAPPNAME": log.name,
            **(environment or {}),
        }

    def _launch(
        self, command: list[str], environment: dict[str, str], log: Path, terminal: int | None
    ) -> Process:
        with log.open("wb") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "django", *command],
                env=environment,
                stdin=subprocess.DEVNULL if terminal is None else terminal,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=databases.ROOT,
                preexec_fn=_beginning(terminal),
            )

    def _add(self, process: Process, log: Path) -> WorkerProcess:
        worker = WorkerProcess(process, log)
        self.all.append(worker)
        return worker

    def lines(self, *events: str) -> list[ledger.Line]:
        """Return the ledger's lines, of these events if any are given."""
        lines = ledger.read(self.ledger)
        return ledger.of(lines, *events) if events else lines

    def started(self) -> list[UUID]:
        """Return the jobs whose handlers were entered, in that order, one each time."""
        return [line.job for line in self.lines("start")]

    def trouble(self) -> list[str]:
        """Return the lines of all workers' outputs that no user should have to see."""
        return [
            f"{worker.log.name}: {line}"
            for worker in self.all
            for line in worker.output.splitlines()
            if any(word in line for word in TROUBLE)
        ]

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self.all:
            # Not SIGTERM, which one that is stopped would not hear.
            worker.kill()
            worker.kill_children()


def _beginning(terminal: int | None) -> Callable[[], None]:
    """Return a preexec_fn: die with this process, and have ``terminal`` send Ctrl-C, if given."""
    die_with_parent = databases.die_with_parent(signal.SIGKILL)

    def begin() -> None:
        if die_with_parent:
            die_with_parent()
        # A shell has what it runs in the background ignore Ctrl-C, and that is inherited.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if terminal is not None:
            os.setsid()
            fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

    return begin


def states(*jobs: Job) -> list[str]:
    """Return the states of these jobs as they are stored now."""
    found = dict(Job.objects.filter(pk__in=[job.pk for job in jobs]).values_list("pk", "state"))
    return [found[job.pk] for job in jobs]


def attempts(job: Job) -> list[tuple[int, str, str]]:
    """Return (attempt, state, reason) of each of the job's executions, oldest first."""
    rows = Execution.objects.filter(job=job).order_by("id")
    return list(rows.values_list("attempt", "state", "interruption_reason"))


def digest(job: Job) -> tuple[Any, ...]:
    """Return every stored value of a job and of its executions."""
    return (
        Job.objects.filter(pk=job.pk).values_list().get(),
        *Execution.objects.filter(job=job).order_by("id").values_list(),
    )
