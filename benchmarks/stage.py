"""Where it is measured: a database, a project in a temporary folder, workers as processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import psycopg

from benchmarks.subjects import FOLDER, Subject

# A worker that takes longer than this for one measurement is given up, in seconds.
PATIENCE = 120.0


class GivenUp(Exception):
    """A subject did not finish: what it did instead."""


class Drained(NamedTuple):
    """Jobs a second, and the processor time that the worker and its database took for each.

    ``microseconds`` is 0.0 where nobody tells.
    """

    rate: float
    microseconds: float


class Processors:
    """The processor time of a worker and of the database's processes that serve it.

    What else runs on the machine stretches the time on the clock many times, and this hardly.
    """

    def __init__(self, worker: int, backends: Callable[[], list[int]]) -> None:
        self._worker = worker
        self._backends = backends
        self._seen: dict[int, float] = {}

    def seconds(self) -> float:
        """Return what was seen so far; a process that has ended counts as it was seen last."""
        for pid in [self._worker, *self._backends()]:
            with suppress(OSError, ValueError, IndexError):
                ticks = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
                self._seen[pid] = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        return sum(self._seen.values())


class Stage:
    """One database and one project folder, for one subject at a time."""

    def __init__(self, settings: dict[str, Any], folder: Path, connection: Any) -> None:
        self._folder = folder
        self._connection = connection
        self._stamps = folder / "stamps"
        parts = {
            "dbname": settings["NAME"],
            "user": settings["USER"],
            "password": settings["PASSWORD"],
            "host": settings["HOST"],
            "port": settings["PORT"],
        }
        self._environment = os.environ | {
            "PYTHONPATH": str(FOLDER.parent),
            "BENCH_DATABASE": json.dumps(settings),
            "BENCH_DSN": psycopg.conninfo.make_conninfo(**{k: v for k, v in parts.items() if v}),
            "BENCH_STAMPS": str(self._stamps),
        }

    def query(self, sql: str) -> tuple[Any, ...]:
        row: tuple[Any, ...] = self._connection.execute(sql).fetchone()
        return row

    def migrate(self, subject: Subject) -> None:
        # Each subject's own project has the same app, whose table is there after the first.
        self._connection.execute("DROP TABLE IF EXISTS load_mark")
        self._run(subject, subject.migrate)

    def act(self, subject: Subject, *args: object) -> Any:
        """Have the subject enqueue; return what its process printed."""
        return json.loads(self._run(subject, [*subject.act, *map(str, args)]))

    def empty(self, subject: Subject) -> None:
        self._connection.execute(f"TRUNCATE {subject.tables} CASCADE")

    def drain(
        self, subject: Subject, *, slots: int, kind: str, count: int, owners: int, lines: bool
    ) -> Drained:
        """Enqueue ``count`` jobs and have a worker run them."""
        self.empty(subject)
        self.act(subject, "fill", kind, count, owners)
        # What the enqueueing left to do is not done on the worker's time.
        self._connection.execute(f"VACUUM ANALYZE {subject.tables}")
        with suppress(psycopg.Error):
            self._connection.execute("CHECKPOINT")
        with self._worker(subject, subject.worker(slots, kind, lines)) as process:
            deadline = time.monotonic() + PATIENCE
            worked = Processors(process.pid, self._backends)
            before: tuple[int, float] | None = None
            while True:
                done, seconds = self.query(subject.done)
                so_far = worked.seconds()
                if done and before is None:  # it has started up
                    before = done, so_far
                if done >= count:
                    assert before is not None
                    each = (so_far - before[1]) / max(count - before[0], 1)
                    return Drained(count / seconds, each * 1e6 if count > before[0] else 0.0)
                if process.poll() not in (None, 0) or time.monotonic() > deadline:
                    raise GivenUp(f"{done} of {count} jobs done: {self._log()}")
                time.sleep(0.1)

    def _backends(self) -> list[int]:
        rows = self._connection.execute(
            "SELECT pid FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return [pid for (pid,) in rows]

    def pick_up(self, subject: Subject, count: int) -> list[float]:
        """Return in ms how long each job of an idle worker took from its COMMIT to its start."""
        self.empty(subject)
        self._stamps.write_text("")
        with self._worker(subject, subject.idle):
            self._wait_for_first(subject)
            self._stamps.write_text("")
            committed = self.act(subject, "trickle", count)
            deadline = time.monotonic() + PATIENCE
            while len(started := self._stamps.read_text().splitlines()) < count:
                if time.monotonic() > deadline:
                    raise GivenUp(f"{len(started)} of {count} jobs started: {self._log()}")
                time.sleep(0.1)
        moments = dict(line.split() for line in started)
        return sorted((int(moments[n]) - moment) / 1e6 for n, moment in committed.items())

    def _wait_for_first(self, subject: Subject) -> None:
        """Let the worker run a first job, so that it is up and has imported everything."""
        self.act(subject, "trickle", 1)
        deadline = time.monotonic() + PATIENCE
        while not self._stamps.read_text():
            if time.monotonic() > deadline:
                raise GivenUp(f"the first job was not started: {self._log()}")
            time.sleep(0.05)
        time.sleep(0.5)

    @contextmanager
    def _worker(self, subject: Subject, command: Sequence[str]) -> Iterator[subprocess.Popen[Any]]:
        with (self._folder / "log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=self._folder, env=self._env(subject), stdout=log, stderr=log
            )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _run(self, subject: Subject, command: Sequence[str]) -> str:
        done = subprocess.run(
            command, cwd=self._folder, env=self._env(subject), capture_output=True, text=True
        )
        if done.returncode:
            raise GivenUp((done.stderr or done.stdout).strip()[-2_000:])
        return done.stdout

    def _env(self, subject: Subject) -> dict[str, str]:
        return self._environment | {"BENCH_SUBJECT": subject.name}

    def _log(self) -> str:
        return (self._folder / "log").read_text(errors="replace").strip()[-1_000:]


@contextmanager
def stage(settings: dict[str, Any]) -> Iterator[Stage]:
    """Make a database of our own on the server of ``settings``, and a project that uses it."""
    name = f"bench_ddj_{os.getpid()}"
    given = {
        "dbname": settings["NAME"],
        "user": settings["USER"],
        "password": settings["PASSWORD"],
        "host": settings["HOST"],
        "port": settings["PORT"],
    }
    server = psycopg.connect(**{k: v for k, v in given.items() if v}, autocommit=True)
    with server, TemporaryDirectory(prefix="ddj-bench-") as folder:
        project = Path(folder, "project")
        shutil.copytree(FOLDER / "project", project)
        server.execute(f'CREATE DATABASE "{name}"')
        try:
            given["dbname"] = name
            with psycopg.connect(**{k: v for k, v in given.items() if v}, autocommit=True) as own:
                plain = {k: v for k, v in settings.items() if k != "TEST"}
                yield Stage(plain | {"NAME": name}, project, own)
        finally:
            server.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
