"""Does it cost more to explain a job in a full table? It may cost twice what it does in a small.

    python benchmarks/explain_at_size.py [--db sqlite,postgres,mariadb] [--scale 1.0]

Prints, for each database and each kind of job, the milliseconds of an explanation (the median by
the clock on the wall, and the mean of the processor time, here and in the server, by which it
judges): among 4,000 jobs of 1,001 owners; and among 1,000,000, of which 500,000 have finished,
100,000 are due of 10,000 owners, 300,000 due of one more, and 100,000 wait for their time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import cpu  # noqa: E402
from tests import databases  # noqa: E402

ROUNDS = 60
WARM = 5

Means = dict[str, float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--db", default=",".join(databases.NAMES))
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of rows")
    options = parser.parse_args()
    if databases.VARIABLE in os.environ:
        return measure(options.scale)
    worst = 0
    for name in options.db.split(","):
        with databases.OPENERS[name]() as database:
            print(f"{database.version}", flush=True)
            environment = os.environ | {
                databases.VARIABLE: json.dumps(database.settings),
                "DJANGO_SETTINGS_MODULE": "tests.settings",
            }
            command = [sys.executable, __file__, *sys.argv[1:]]
            worst = max(worst, subprocess.call(command, env=environment))
    return worst


def measure(scale: float) -> int:
    import django

    django.setup()
    from django.db import connection

    from django_durable_jobs.db import own_connections
    from tests import crowd

    connection.creation.create_test_db(verbosity=0, autoclobber=True)
    try:
        with own_connections("default"):
            small = report("small", fill(finished=500, due=1_000, line=2_000, future=500))
            crowd.empty()
            started = time.monotonic()
            numbers = {"finished": 500_000, "due": 100_000, "line": 300_000, "future": 100_000}
            jobs = fill(**{what: int(number * scale) for what, number in numbers.items()})
            print(f"  (filled in {time.monotonic() - started:.0f} s)")
            full = report("full", jobs)
            ratios = {what: full[what] / small[what] for what in small}
            print(
                "  full/small", ", ".join(f"{what} {ratio:.2f}" for what, ratio in ratios.items())
            )
            return int(max(ratios.values()) > 2)
    finally:
        connection.creation.destroy_test_db(connection.settings_dict["NAME"], verbosity=0)


def fill(*, finished: int, due: int, line: int, future: int) -> dict[str, Any]:
    """Fill the tables; return the ids of the jobs to be explained, by the code expected."""
    from django_durable_jobs.models import Job, Namespace, QueueEntry, Worker
    from tests import crowd
    from tests.factories import make_job, make_worker

    Worker.objects.all().delete()
    Namespace.objects.get_or_create(name="default")
    owners = max(due // 10, 1_000)
    crowd.add_jobs(finished, owners=owners, state="completed", low=1)
    crowd.add_jobs(future, owners=owners, seconds=3_600, low=1_500_001)
    crowd.add_jobs(due, owners=owners, low=2_000_001)
    crowd.add_jobs(line, owners=1, low=3_000_001)
    crowd.analyze()
    worker = make_worker(concurrency=100)
    for number in range(50):
        running = make_job("running", owner_id=f"holder-{number}", worker=worker)
    entries = QueueEntry.objects.order_by("-pk")
    return {
        "turn": entries.filter(owner_id="owner-00000000", due=True)[0].pk,
        "turn_owners": entries.filter(owner_id=f"owner-{owners - 1:08}", due=True).last().pk,
        "scheduled": entries.filter(due=False)[0].pk,
        "running": running.pk,
        "completed": Job.objects.filter(state="completed").order_by("pk")[0].pk,
    }


def report(what: str, jobs: dict[str, Any]) -> Means:
    """Explain each job again and again; print and return the milliseconds of processor time."""
    from django.db import connections

    from django_durable_jobs import explain
    from django_durable_jobs.db import current_clock
    from django_durable_jobs.models import Worker

    connection = connections["default"]
    now, means = cpu.clock(connection), {}
    for code, id in jobs.items():
        Worker.objects.update(heartbeat_at=current_clock().now(connection))
        walls, spent = [], []
        for _ in range(ROUNDS + WARM):
            begun, begun_wall = now(), time.perf_counter()
            told = explain(id)
            walls.append((time.perf_counter() - begun_wall) * 1e3)
            spent.append((now() - begun) * 1e3)
            assert told.code == code, told
        means[code] = statistics.mean(spent[WARM:])
        print(
            f"  {what:6} {code:12} {means[code]:6.2f} ms of processor"
            f" (wall: median {statistics.median(walls[WARM:]):.2f} ms, slowest"
            f" {max(walls[WARM:]):.1f})",
            flush=True,
        )
    return means


if __name__ == "__main__":
    sys.exit(main())
