"""What do a hundred thousand loop records cost?

    python benchmarks/loops.py [--db postgres] [--records 100000] [--due 5000] [--slots 4]

Records that recur every hour are put in past the sync; then it prints, for each of these, the
seconds, the statements, the statements for a thousand records, and how long the longest step took
(the leader fires no schedule meanwhile):

- the first sync, which puts in a job for each
- a reconcile in which nothing has changed; it must write nothing
- an edit of some of them by ``update()``: they are due now
- the minute in which these are due, by a worker in this process whose threads run them; each
  occurrence writes one row of the project's
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests import databases  # noqa: E402

PATIENCE = 60.0  # seconds without an occurrence's end after which it is given up
WRITES = ("INSERT", "UPDATE", "DELETE", "WITH NEW", "REPLACE")


class Counter:
    """The statements of all threads but those that only look on."""

    def __init__(self) -> None:
        self.statements = self.writes = 0
        self.onlookers: set[int] = set()

    def count(self, sql: str) -> None:
        if threading.get_ident() not in self.onlookers:
            self.statements += 1
            self.writes += str(sql).lstrip().upper().startswith(WRITES)

    @contextmanager
    def counting(self) -> Iterator[None]:
        from django.db.backends.utils import CursorWrapper

        plain: Any = CursorWrapper._execute_with_wrappers

        def counted(wrapper: Any, sql: str, *args: Any, **options: Any) -> Any:
            self.count(sql)
            return plain(wrapper, sql, *args, **options)

        CursorWrapper._execute_with_wrappers = counted
        try:
            yield
        finally:
            CursorWrapper._execute_with_wrappers = plain

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Leave out what this thread asks."""
        self.onlookers.add(threading.get_ident())
        try:
            yield
        finally:
            self.onlookers.discard(threading.get_ident())


_NAMES = ("seconds", "statements", "a thousand", "writes", "step, ms")
HEAD = f"{'':<28} {_NAMES[0]:>9} {_NAMES[1]:>11} {_NAMES[2]:>11} {_NAMES[3]:>8} {_NAMES[4]:>9}"


def measured(counter: Counter, name: str, records: int, act: Callable[[], float]) -> int:
    """Print what ``act`` took; return how many statements wrote."""
    statements, writes = counter.statements, counter.writes
    begun = time.perf_counter()
    longest = act()
    took = time.perf_counter() - begun
    statements, writes = counter.statements - statements, counter.writes - writes
    each = statements / records * 1_000
    print(
        f"{name:<28} {took:>9.1f} {statements:>11,} {each:>11,.1f} {writes:>8,}"
        f" {longest * 1_000:>9,.0f}",
        flush=True,
    )
    return writes


def steps() -> float:
    """Reconcile everything; return the seconds of the longest step."""
    from django_durable_jobs.loops import sync_steps
    from tests.app.models import Reminder

    longest, before = 0.0, time.perf_counter()
    for _ in sync_steps(Reminder):
        longest = max(longest, (now := time.perf_counter()) - before)
        before = now
    return longest


def put_in(count: int) -> None:
    from tests.app.models import Reminder

    now = datetime.now(UTC)
    for start in range(0, count, 1_000):
        some = range(start, min(start + 1_000, count))
        Reminder._base_manager.bulk_create(
            [Reminder(text=str(n), every=timedelta(hours=1), updated_at=now) for n in some]
        )


def make_due(due: int) -> float:
    from tests.app.models import Reminder

    last = Reminder.objects.order_by("pk")[due - 1]
    begun = time.perf_counter()
    Reminder.objects.filter(pk__lte=last.pk).update(next_run_at=datetime.now(UTC))
    return time.perf_counter() - begun


def run_due(counter: Counter, due: int, slots: int) -> float:
    from django_durable_jobs.worker import Scheduler
    from tests.app.models import Note

    scheduler = Scheduler(concurrency=slots)
    done, moved_at = 0, time.monotonic()
    with counter.aside():
        scheduler.start()
        while done < due:
            time.sleep(0.1)
            before, done = done, Note.objects.count()
            if done > before:
                moved_at = time.monotonic()
            elif time.monotonic() - moved_at > PATIENCE:
                raise SystemExit(f"given up after {done:,} of {due:,} occurrences")
        scheduler.shutdown()
    return 0.0


def measure(options: argparse.Namespace) -> int:
    import django

    django.setup()
    from django.db import connection

    from django_durable_jobs.models import QueueEntry
    from tests.app.models import Note, Reminder

    connection.creation.create_test_db(verbosity=0, autoclobber=True)
    try:
        put_in(options.records)
        counter, everything = Counter(), options.records
        print(HEAD)
        with counter.counting():
            measured(counter, "first sync", everything, steps)
            with connection.cursor() as cursor:  # as autovacuum would, by and by
                if connection.vendor == "postgresql":
                    cursor.execute("ANALYZE")
            writes = measured(counter, "reconcile, nothing changed", everything, steps)
            due = options.due
            measured(counter, f"update() of {due:,}", due, lambda: make_due(due))
            measured(counter, f"{due:,} due", due, lambda: run_due(counter, due, options.slots))
        notes = Note.objects.count()
        behind = Reminder.objects.filter(next_run_at__lte=datetime.now(UTC)).count()
        queued = QueueEntry.objects.count()
    finally:
        connection.creation.destroy_test_db(connection.settings_dict["NAME"], verbosity=0)
    problems = []
    if writes:
        problems.append(f"the reconcile wrote {writes} times")
    if (notes, behind, queued) != (due, 0, everything):
        problems.append(f"{notes:,} triggered, {behind:,} records behind, {queued:,} jobs queued")
    for problem in problems:
        print(f"WRONG: {problem}")
    return 1 if problems else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--db", choices=databases.NAMES, default="postgres")
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--due", type=int, default=5_000)
    parser.add_argument("--slots", type=int, default=4)
    options = parser.parse_args()
    if databases.VARIABLE in os.environ:
        return measure(options)
    with databases.OPENERS[options.db]() as database:
        python = sys.version.split()[0]
        print(f"{database.version}, Python {python}, {options.records:,} records", flush=True)
        environment = os.environ | {
            databases.VARIABLE: json.dumps(database.settings),
            "DJANGO_SETTINGS_MODULE": "tests.settings",
        }
        return subprocess.call([sys.executable, __file__, *sys.argv[1:]], env=environment)


if __name__ == "__main__":
    sys.exit(main())
