"""Workers that are forked from a process in which everything is imported: quicker to start.

For tests that need many of them. Each is a process of its own that runs the very command; only
the half second in which Python imports Django is not spent again.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any
from unittest import mock

from tests import databases
from tests.processes import forked
from tests.processes.harness import Process, WorkerProcess, Workers

PRELOADED = ["tests.processes.forked", "tests.app.killing"]


class Fork:
    """A forked process, asked as a Popen is asked."""

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (code := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
        return code

    def send_signal(self, number: int, /) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkedWorkers(Workers):
    """Start workers, and processes that enqueue, as forks."""

    def enqueue(self, environment: dict[str, str], **fields: Any) -> WorkerProcess:
        """Have a process of its own enqueue a job, and write a note, in one transaction."""
        log = self.folder / f"worker-{len(self.all)}"
        env = self._environment(log, environment, {})
        return self._add(_fork(forked.enqueue_one, fields, env, log), log)

    def _launch(
        self, command: list[str], environment: dict[str, str], log: Path, terminal: int | None
    ) -> Process:
        assert terminal is None
        return _fork(forked.run_command, command, environment, log)


def _fork(
    target: Callable[[Any], object], argument: Any, environment: dict[str, str], log: Path
) -> Fork:
    _serve_forks()
    process = multiprocessing.get_context("forkserver").Process(
        target=forked.begin, args=(target, argument, environment, str(log)), daemon=True
    )
    process.start()
    return Fork(process)


def _serve_forks() -> None:
    """See to it that there is the process to fork from, made for the database at hand."""
    with mock.patch.dict(os.environ, databases.subprocess_environment()):
        forkserver.set_forkserver_preload(PRELOADED)
        forkserver.ensure_running()
