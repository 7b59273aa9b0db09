"""Index the Python standard library with durable jobs, check the result, and show it.

Run it as `make demo`, or with any Python that has django-durable-jobs installed. It may be
stopped or killed at any moment and started again.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
os.environ["DJANGO_SETTINGS_MODULE"] = "testproject.settings"

import django  # noqa: E402

django.setup()

from children import answers, child, free_port, wait_for  # noqa: E402
from direct import Totals, totals  # noqa: E402
from django.conf import settings  # noqa: E402
from django.contrib.auth import get_user_model  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import transaction  # noqa: E402
from django.db.models import QuerySet  # noqa: E402
from library import source  # noqa: E402
from library.jobs import enqueue_files, totals_indexed  # noqa: E402
from library.models import Package, SourceFile  # noqa: E402

from django_durable_jobs import list_jobs, requeue  # noqa: E402
from django_durable_jobs.models import Execution  # noqa: E402

MANAGE = [sys.executable, str(HERE / "manage.py")]
LIVE = ("queued", "claimed", "running")
WORKER_LOG = settings.VAR_DIR / "worker.log"
SERVER_LOG = settings.VAR_DIR / "server.log"


def main() -> int:
    options = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        prepare()
        enqueue(list(source.paths()))
        if options.requeue:
            requeue_all()
        run()
        show_fairness()
        verified = verify()
        if options.serve:
            serve(options.port)
    except KeyboardInterrupt:
        print()
        say("stopped", "start it again to go on where it was")
        return 130
    return 0 if verified else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--no-serve", dest="serve", action="store_false", help="end instead of serving the admin"
    )
    parser.add_argument("--port", type=int, help="serve here (otherwise at 8000 or a free port)")
    parser.add_argument(
        "--requeue", action="store_true", help="run again what was interrupted or failed before"
    )
    return parser.parse_args()


def prepare() -> None:
    call_command("migrate", verbosity=0)
    users = get_user_model()
    if not users.objects.filter(username="admin").exists():
        users.objects.create_superuser("admin", "", "admin")
    say("database", f"SQLite, {relative(settings.DATABASES['default']['NAME'])}")


def enqueue(paths: Sequence[str]) -> None:
    """Put in a job for each file, the largest package first: the others should not wait for it."""
    sizes = Counter(map(source.package_of, paths))
    ordered = sorted(paths, key=lambda path: (-sizes[source.package_of(path)], path))
    version = sys.version.split()[0]
    say("library", f"Python {version}: {len(paths):,} files, {len(sizes)} packages and modules")
    started = time.monotonic()
    with transaction.atomic():
        forget(set(SourceFile.objects.values_list("path", flat=True)) - set(paths))
        new = sum(job.created for job in enqueue_files(ordered))
        look_again(set(sizes))
    took = time.monotonic() - started
    if new:
        say("enqueued", f"{new:,} jobs in one transaction, {took:.1f} s; the largest package first")
    if new < len(paths):
        which = f"{len(paths) - new:,} files" if new else "all files"
        say("known", f"{which} have their job from an earlier run, by its idempotency key")


def forget(gone: set[str]) -> None:
    """Drop what was counted in files that are no more, as after a change of Python's version."""
    for path in gone:
        SourceFile.objects.filter(path=path).delete()


def look_again(packages: set[str]) -> None:
    """Have each package looked through once a minute, by a loop record."""
    Package.objects.exclude(name__in=packages).delete()
    known = set(Package.objects.values_list("name", flat=True))
    minute = timedelta(minutes=1)
    Package.objects.bulk_create(
        Package(name=name, every=minute) for name in sorted(packages - known)
    )


def requeue_all() -> None:
    ended = list_jobs(type="library.index", state__in=("interrupted", "failed"))
    ids = list(ended.values_list("pk", flat=True))
    for id in ids:
        requeue(id)
    say("requeued", f"{len(ids)} jobs, each with one more attempt")


def run() -> None:
    """Have a worker do all that is due, and show how far it is."""
    waiting = list_jobs(type="library.index", state__in=LIVE)
    total = waiting.count()
    if not total:
        say("worker", "has nothing to do: no file is new or changed")
        return
    say("worker", f"manage.py runscheduler --burst (writes to {relative(WORKER_LOG)})")
    started = time.monotonic()
    with child([*MANAGE, "runscheduler", "--burst"], output=WORKER_LOG) as worker:
        progress = Progress(total)
        left = total
        while left and worker.poll() is None:
            progress.show(total - left, time.monotonic() - started)
            time.sleep(0.2)
            left = waiting.count()
        took = time.monotonic() - started
        wait_for(worker, seconds=30)
        left = waiting.count()
        progress.show(total - left, took, last=True)
    if left:
        say("worker", f"ended early, exit code {worker.returncode}: see {relative(WORKER_LOG)}")
    elif total >= 100:
        say("speed", f"{total / took:,.0f} files a second, the worker's start and end included")


class Progress:
    """A bar that redraws itself on a terminal, a line each tenth elsewhere."""

    WIDTH = 40

    def __init__(self, total: int) -> None:
        self.total = total
        self.shown = -1

    def show(self, done: int, seconds: float, *, last: bool = False) -> None:
        share = done / self.total
        rate = f"{done:,}/{self.total:,}  {seconds:4.1f} s"
        if sys.stdout.isatty():
            bar = ("█" * int(share * self.WIDTH)).ljust(self.WIDTH, "·")
            print(f"\r  {'':12}{bar} {share:4.0%}  {rate}", end="\n" if last else "", flush=True)
        elif last or int(share * 10) > self.shown:
            self.shown = int(share * 10)
            print(f"  {'':12}{share:4.0%}  {rate}", flush=True)


def show_fairness() -> None:
    """Tell in which order the packages had their turns, by what is recorded of them."""
    executions = Execution.objects.filter(job__type="library.index")
    owners = list(executions.order_by("id").values_list("owner_id", flat=True))
    if not owners or list_jobs(type="library.index", state__in=LIVE).exists():
        return
    first = list(dict.fromkeys(owners))
    largest, jobs = Counter(owners).most_common(1)[0]
    everyone = owners.index(first[-1]) + 1
    of_largest = owners[:everyone].count(largest)
    say("fairness", f"{largest} was enqueued before all others, with {jobs:,} files; after")
    say("", f"{everyone:,} claims each of the {len(first)} had had a turn, {largest} {of_largest}.")
    say("", f"The first turns: {', '.join(first[:6])}, …")


def verify() -> bool:
    """Count the files directly, compare, and tell what is missing and why."""
    by_jobs = Totals(**totals_indexed())
    directly = totals()
    print(f"\n  {'totals':12}" + "".join(f"{name:>13}" for name in Totals._fields))
    for name, row in (("by jobs", by_jobs), ("directly", directly)):
        print(f"  {name:12}" + "".join(f"{value:>13,}" for value in row))
    print()
    same = by_jobs == directly
    say("result", "verified: the totals are the same" if same else "THE TOTALS DIFFER")
    again = SourceFile.objects.filter(times_indexed__gt=1).count()
    if again:
        say("", f"indexed more than once, since changed or requeued: {files(again)}")
    else:
        say("", "no file was indexed twice")
    waiting = list_jobs(type="library.index", state__in=LIVE).count()
    if waiting:
        say("waiting", f"{files(waiting)}: start the demo again, and it goes on where it was")
    tell_of("interrupted", "their worker died, and nobody can know how far it came with them")
    tell_of("failed", "what went wrong is on their pages in the admin")
    return same


def tell_of(state: str, why: str) -> None:
    number = list_jobs(type="library.index", state=state).count()
    if number:
        say(state, f"{files(number)}: {why}.")
        say("", "Nothing runs again unless somebody says so. Requeue them in the admin,")
        say("", "in Python by requeue(id), or all of them here: make demo ARGS=--requeue")


def serve(wanted: int | None) -> None:
    """Serve the admin, with a worker behind it, until Ctrl-C."""
    port = wanted or free_port(8000)
    address = f"http://127.0.0.1:{port}/admin/django_durable_jobs/overview/"
    server = [*MANAGE, "runserver", "--noreload", f"127.0.0.1:{port}"]
    worker = [*MANAGE, "runscheduler"]
    with child(server, output=SERVER_LOG) as web, child(worker, output=WORKER_LOG) as behind:
        if not answers(address, web):
            say("admin", f"did not start: see {relative(SERVER_LOG)}")
            return
        say("admin", f"{address}  (admin, password admin: for this demo only)")
        say("", "a worker is running behind it; Ctrl-C stops both")
        reports = Reports()
        try:
            while web.poll() is None and behind.poll() is None:
                reports.show()
                time.sleep(0.3)
            say("stopped", f"one of them ended by itself: see {relative(settings.VAR_DIR)}")
        except KeyboardInterrupt:
            print()
            say("stopping", "the admin and its worker")


class Reports:
    """Tells of each run of the schedule `library.report` when it has ended."""

    NAME = "library.report"

    def __init__(self) -> None:
        last = self.newer(0).last()
        self.last = last.pk if last else 0
        say("loops", f"{Package.objects.count()} packages, each looked through once a minute")
        say("schedule", f"{self.NAME}, every 10 s: it has run {self.newer(0).count():,} times")
        self.looked = self.looks()

    def looks(self) -> int:
        """Return how often a package was looked through."""
        return list_jobs(type="loop-occurrence:library.package", state="completed").count()

    def newer(self, pk: int) -> QuerySet[Execution]:
        runs = Execution.objects.filter(job__type=f"schedule:{self.NAME}", state="completed")
        return runs.filter(pk__gt=pk).order_by("pk")

    def show(self) -> None:
        for run in self.newer(self.last):
            self.last = run.pk
            told = f"{run.result['files']:,} files, {run.result['lines']:,} lines"
            if run.result["largest_package"]:
                told += f"; {run.result['largest_package']} is the largest package"
            say("", f"{run.completed_at:%H:%M:%S}  {told}")
            if looks := self.looks() - self.looked:
                self.looked += looks
                say("", f"          {looks:,} packages looked through for files that changed")


def say(what: str, text: str) -> None:
    print(f"  {what:12}{text}", flush=True)


def files(number: int) -> str:
    return f"{number:,} file{'' if number == 1 else 's'}"


def relative(path: str | Path) -> str:
    return os.path.relpath(path)


if __name__ == "__main__":
    sys.exit(main())
