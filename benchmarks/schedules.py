"""Ten thousand schedules are due in the same minute: how long until the last one's job is put in?

    python benchmarks/schedules.py [--db postgres,sqlite] [--count 10000] [--rounds 3] [--profile]

Beside ours, where they are installed: django-q2's `scheduler()` with its own broker in the same
database, and django-celery-beat's DatabaseScheduler, which sends to a broker in memory. Each runs
in a process and a database of its own; told are the medians of the rounds. Beat compares all its
schedules before each that it sends, so that more take the longer each: it gets a tenth of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.run import wait_for_quiet  # noqa: E402
from tests import databases  # noqa: E402

VARIABLE = "DDJ_BENCH_SCHEDULES"
CRON = "* * * * *"

# What a subject does: the seconds from the minute to the last job, and the statements of that.
Fired = tuple[float, int]


def durable(count: int, profile: bool) -> Fired:
    """Fire as the leader does, on its own connection."""
    from django.db import connections

    from django_durable_jobs.db import (
        ManualClock,
        own_connections,
        statements_for,
        transaction,
        use_clock,
    )
    from django_durable_jobs.ids import uuid7
    from django_durable_jobs.models import Job
    from django_durable_jobs.registry import schedule, schedules
    from django_durable_jobs.ticker import Ticker

    clock = ManualClock(datetime(2026, 5, 4, 12, 0, 30, tzinfo=UTC))
    with use_clock(clock), own_connections("default", lease=30):
        for number in range(count):
            schedule(f"s{number}", cron=CRON, job="nothing", timezone="UTC")
        worker = uuid7()
        with transaction("default") as connection:
            epoch = statements_for(connection).take_lead("default", worker, lease=3_600)
        assert epoch is not None
        ticker = Ticker("default", "default", worker, schedules.all())
        ticker.declare(epoch)
        while ticker.turn(epoch) == 0.0:
            pass
        clock.advance(30)

        def fire() -> None:
            while ticker.turn(epoch) == 0.0:
                pass

        fired = measured(fire, connections["default"], profile)
        assert Job.objects.count() == count
        return fired


def q2(count: int, profile: bool) -> Fired:
    """Fire as django-q2's scheduler does: each job a row in its broker's table."""
    from django.db import connection
    from django_q.models import OrmQ, Schedule
    from django_q.scheduler import scheduler

    minute = datetime.now(UTC).replace(second=0, microsecond=0)
    rows = (
        Schedule(
            name=f"s{n}", func="math.floor", args="1", schedule_type="C", cron=CRON, next_run=minute
        )
        for n in range(count)
    )
    Schedule.objects.bulk_create(rows, batch_size=500)
    fired = measured(scheduler, connection, profile)
    assert OrmQ.objects.count() == count
    return fired


def beat(count: int, profile: bool) -> Fired:
    """Send as beat's loop does, and write down when each was sent last, as it does now and then."""
    from celery import Celery
    from django.db import connection
    from django_celery_beat.models import CrontabSchedule, PeriodicTask
    from django_celery_beat.schedulers import DatabaseScheduler

    app = Celery("bench", broker="memory://", set_as_current=True)
    app.conf.update(timezone="UTC", enable_utc=True)
    cron = CrontabSchedule.objects.create(timezone="UTC")  # every minute
    ago = datetime.now(UTC) - timedelta(minutes=2)
    rows = (
        PeriodicTask(name=f"s{n}", task="nothing", crontab=cron, last_run_at=ago)
        for n in range(count)
    )
    PeriodicTask.objects.bulk_create(rows, batch_size=500)
    scheduler = DatabaseScheduler(app=app)
    assert len(scheduler.schedule) >= count

    def fire() -> None:
        for _ in range(count):
            scheduler.tick()
        scheduler.sync()

    fired = measured(fire, connection, profile)
    sent = PeriodicTask.objects.filter(total_run_count__gt=0).exclude(name__startswith="celery.")
    assert sent.count() >= count - 1, sent.count()
    return fired


SUBJECTS: dict[str, tuple[Callable[[int, bool], Fired], str, list[str]]] = {
    "django-durable-jobs": (durable, "django", ["django_durable_jobs"]),
    "django-q2": (q2, "django-q2", ["django_q"]),
    "django-celery-beat": (beat, "django-celery-beat", ["django_celery_beat"]),
}


def measured(fire: Callable[[], object], connection: Any, profile: bool) -> Fired:
    with counted(connection) as statements, profiled(profile):
        begun = time.perf_counter()
        fire()
        return time.perf_counter() - begun, len(statements)


@contextmanager
def counted(connection: Any) -> Iterator[list[None]]:
    """Count the statements that run on the connection."""
    seen: list[None] = []

    def count(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        seen.append(None)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(count):
        yield seen


@contextmanager
def profiled(wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    import cProfile
    import pstats

    with cProfile.Profile() as profile:
        yield
    pstats.Stats(profile, stream=sys.stderr).sort_stats("cumulative").print_stats(45)


def measure_here(name: str, settings: dict[str, Any], count: int, profile: bool) -> Fired:
    """Measure a subject in this process, in a test database."""
    import django
    from django.conf import settings as django_settings

    fire, _, apps = SUBJECTS[name]
    django_settings.configure(
        SECRET_KEY="bench",
        USE_TZ=True,
        TIME_ZONE="UTC",
        INSTALLED_APPS=["django.contrib.contenttypes", *apps],
        DATABASES={"default": settings},
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        Q_CLUSTER={
            "name": "bench",
            "orm": "default",
            "retry": 120,
            "timeout": 60,
            "log_level": "WARNING",
        },
    )
    django.setup()
    from django.db import connection

    connection.creation.create_test_db(verbosity=0, autoclobber=True)
    try:
        return fire(count, profile)
    finally:
        connection.creation.destroy_test_db(connection.settings_dict["NAME"], verbosity=0)


def measure(name: str, settings: dict[str, Any], options: argparse.Namespace) -> Fired:
    """Measure a subject in a process of its own."""
    count = count_of(name, options.count)
    given = {"name": name, "settings": settings, "count": count, "profile": options.profile}
    output = subprocess.run(
        [sys.executable, __file__],
        env=os.environ | {VARIABLE: json.dumps(given), "PYTHONPATH": str(ROOT)},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    seconds, statements = json.loads(output.splitlines()[-1])
    return seconds, statements


def count_of(name: str, count: int) -> int:
    return count // 10 if name == "django-celery-beat" else count


def missing(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return True
    return False


def main() -> int:
    if given := os.environ.get(VARIABLE):
        print(json.dumps(measure_here(**json.loads(given))))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--db", default="postgres,sqlite", help=f"of {', '.join(databases.NAMES)}")
    parser.add_argument("--count", type=int, default=10_000, help="how many schedules")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--subjects", default=",".join(SUBJECTS))
    parser.add_argument("--wait", type=float, default=0, help="seconds to wait for a quiet machine")
    parser.add_argument("--profile", action="store_true", help="tell where the time goes")
    options = parser.parse_args()
    names = [name for name in options.subjects.split(",") if not missing(SUBJECTS[name][1])]
    for database_name in options.db.split(","):
        with databases.OPENERS[database_name]() as database:
            print(f"{database.version}, {options.count:,} schedules", flush=True)
            found: dict[str, list[Fired]] = {name: [] for name in names}
            for _ in range(options.rounds):
                for name in names:
                    wait_for_quiet(options.wait)
                    found[name].append(measure(name, database.settings, options))
            tell(found, options.count)
    return 0


def tell(found: dict[str, list[Fired]], count: int) -> None:
    first = 0.0
    for name, rounds in found.items():
        many = count_of(name, count)
        seconds = statistics.median(each for each, _ in rounds)
        each = seconds / many * 1e6
        first = first or each
        print(
            f"  {name:20} {many:6,}: {seconds:6.2f} s ({min(rounds)[0]:.2f} to"
            f" {max(rounds)[0]:.2f}), {each:6.0f} µs and {rounds[0][1] / many:5.2f} statements"
            f" a schedule, {each / first:5.1f} times the first",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
