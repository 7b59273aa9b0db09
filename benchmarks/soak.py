"""Does a worker stay as it is, however many jobs it has run?

    python benchmarks/soak.py [--db postgres] [--jobs 200000] [--every 20000] [--slots 10]

One worker process runs jobs that do nothing, put in by the thousand while it runs. Prints, for each
stretch of jobs: the rate; the worker's processor time a job; its resident memory, threads, file
descriptors and sockets; the connections that the server counts for it. The exit code is 0 if these
stayed flat from the first stretch on, within ``GROWTH`` and ``MORE``, and each job ran once.

It reads /proc, so it needs Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests import databases  # noqa: E402

NAME = "ddj-soak-worker"
COMMAND = [sys.executable, "-m", "django", "runscheduler", "--verbosity=0"]
BATCH = 1_000  # jobs to a call of enqueue_many
PATIENCE = 60.0  # seconds without a job's end after which it is given up
# What may be larger than it was after the first stretch, as a ratio: the resident memory at the
# end; the processor time a job, the second half of the later stretches beside their first half.
GROWTH = {"memory": 1.10, "processor": 1.30}
# How many more there may be, at any time: a thread that just ends, a connection just replaced.
MORE = {"threads": 1, "descriptors": 3, "sockets": 1, "connections": 1}


@dataclass(frozen=True)
class Sample:
    """The worker after so many jobs, and how the last stretch of them went."""

    jobs: int
    rate: float  # jobs a second
    processor: float  # microseconds a job
    memory: float  # MB
    threads: int
    descriptors: int
    sockets: int
    connections: int | None  # as the server counts them, None where it is not asked

    def line(self) -> str:
        connections = "-" if self.connections is None else self.connections
        return (
            f"{self.jobs:>9,} {self.rate:>8,.0f} {self.processor:>8,.0f} {self.memory:>7.1f}"
            f" {self.threads:>8} {self.descriptors:>12} {self.sockets:>8} {connections:>12}"
        )


HEAD = "     jobs   jobs/s   µs/job  RSS/MB  threads  descriptors  sockets  connections"


class Soaked:
    """A worker process, looked at from outside."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._proc = Path("/proc", str(process.pid))
        self._seen = 0, time.monotonic(), self._processor()

    def sample(self, jobs: int) -> Sample:
        before, since, busy = self._seen
        self._seen = now = jobs, time.monotonic(), self._processor()
        status = dict(
            line.split(":", 1) for line in (self._proc / "status").read_text().splitlines()
        )
        files = self._files()
        return Sample(
            jobs=jobs,
            rate=(jobs - before) / (now[1] - since),
            processor=(now[2] - busy) / (jobs - before) * 1e6,
            memory=int(status["VmRSS"].split()[0]) / 1024,
            threads=int(status["Threads"]),
            descriptors=len(files),
            sockets=sum(file.startswith("socket:") for file in files),
            connections=_connections(),
        )

    def _processor(self) -> float:
        ticks = (self._proc / "stat").read_text().rsplit(")", 1)[1].split()[11:13]
        return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")

    def _files(self) -> list[str]:
        files = []
        for file in (self._proc / "fd").iterdir():
            with suppress(FileNotFoundError):  # closed since
                files.append(str(file.readlink()))
        return files


def _connections() -> int | None:
    """Return how many connections of the worker PostgreSQL counts."""
    from django.db import connection

    if connection.vendor != "postgresql":
        return None
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE application_name = %s AND datname = current_database()",
            [NAME],
        )
        return int(cursor.fetchone()[0])


def soak(jobs: int, every: int, *, slots: int, tell: Callable[[str], object]) -> list[str]:
    """Run so many jobs in one worker on the database at hand; return what did not stay flat."""
    with TemporaryDirectory(prefix="ddj-soak-") as folder:
        log = Path(folder, "log")
        with log.open("wb") as out:
            worker = subprocess.Popen(
                [*COMMAND, f"--concurrency={slots}"],
                env=databases.subprocess_environment() | {"PGAPPNAME": NAME},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                preexec_fn=databases.die_with_parent(9),
            )
        try:
            samples = _feed(worker, jobs, every, tell)
            worker.terminate()
            code = worker.wait(60)
        finally:
            worker.kill()
            worker.wait()
        said = log.read_text(errors="replace").strip()
    problems = _grown(samples) + _not_run_once(jobs)
    if code:
        problems.append(f"the worker's exit code is {code}")
    if any(word in said for word in ("Traceback", "trouble", "rror")):
        problems.append(f"the worker said: {said[-1_000:]}")
    return problems


def _feed(
    worker: subprocess.Popen[bytes], jobs: int, every: int, tell: Callable[[str], object]
) -> list[Sample]:
    """Put the jobs in as they are run, and look at the worker after each stretch."""
    from django_durable_jobs import enqueue_many
    from django_durable_jobs.models import QueueEntry

    tell(HEAD)
    soaked = Soaked(worker)
    samples: list[Sample] = []
    made = done = 0
    moved_at = time.monotonic()
    while done < jobs:
        left = QueueEntry.objects.count()
        if made < jobs and left <= 2 * BATCH:
            batch = min(BATCH, jobs - made)
            enqueue_many([{"type": "ledger.work"}] * batch)
            made += batch
        else:
            time.sleep(0.05)
        # What is claimed counts as done: a handful of jobs, at any time.
        before, done = done, made - QueueEntry.objects.count()
        if done > before:
            moved_at = time.monotonic()
        elif worker.poll() is not None or time.monotonic() - moved_at > PATIENCE:
            raise SystemExit(f"given up after {done:,} of {jobs:,} jobs")
        if done >= every * (len(samples) + 1) or done == jobs:
            samples.append(soaked.sample(done))
            tell(samples[-1].line())
    return samples


def _grown(samples: list[Sample]) -> list[str]:
    """Return what has grown since the first stretch by more than is tolerated."""
    if len(samples) < 3:
        return [f"{len(samples)} stretches are too few to tell: at least 3"]
    first, *later = samples
    problems = []
    if (ratio := later[-1].memory / first.memory) > GROWTH["memory"]:
        problems.append(f"the memory has grown to {ratio:.2f} times that of the first stretch")
    half = len(later) // 2
    early, late = (
        statistics.median(sample.processor for sample in part)
        for part in (later[:half], later[-half:])
    )
    if (ratio := late / early) > GROWTH["processor"]:
        problems.append(f"the processor time a job has grown to {ratio:.2f} times")
    for name, more in MORE.items():
        before = getattr(first, name)
        most = max(getattr(sample, name) or 0 for sample in later)
        if before is not None and most > before + more:
            problems.append(f"the {name} have grown from {before} to {most}")
    return problems


def _not_run_once(jobs: int) -> list[str]:
    from django_durable_jobs.models import Execution, Job

    completed = Job.objects.filter(state="completed").count()
    executions = Execution.objects.count()
    if completed == executions == jobs:
        return []
    return [f"{jobs:,} jobs: {completed:,} completed, in {executions:,} executions"]


def measure(options: argparse.Namespace) -> int:
    import django

    django.setup()
    from django.db import connection

    connection.creation.create_test_db(verbosity=0, autoclobber=True)
    begun = time.monotonic()
    try:
        problems = soak(
            options.jobs,
            options.every,
            slots=options.slots,
            tell=lambda line: print(line, flush=True),
        )
    finally:
        connection.creation.destroy_test_db(connection.settings_dict["NAME"], verbosity=0)
    print(f"{time.monotonic() - begun:.0f} s in all")
    for problem in problems:
        print(f"NOT FLAT: {problem}")
    if not problems:
        tolerated = ", ".join(f"{name} +{more}" for name, more in MORE.items())
        print(
            f"flat since the first stretch: memory within {GROWTH['memory']:.2f} times,"
            f" processor time a job within {GROWTH['processor']:.2f} times, {tolerated};"
            " each job ran once"
        )
    return 1 if problems else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--db", choices=databases.NAMES, default="postgres")
    parser.add_argument("--jobs", type=int, default=200_000)
    parser.add_argument("--every", type=int, default=20_000, help="jobs to a stretch")
    parser.add_argument("--slots", type=int, default=10)
    options = parser.parse_args()
    if databases.VARIABLE in os.environ:
        return measure(options)
    with databases.OPENERS[options.db]() as database:
        print(f"{database.version}, {options.jobs:,} jobs, {options.slots} slots", flush=True)
        environment = os.environ | {
            databases.VARIABLE: json.dumps(database.settings),
            "DJANGO_SETTINGS_MODULE": "tests.settings",
        }
        return subprocess.call([sys.executable, __file__, *sys.argv[1:]], env=environment)


if __name__ == "__main__":
    sys.exit(main())
