"""Workers are replaced one by one under load, by ones whose code has other jobs.

DDJ_DEPLOY_SECONDS makes the drill last longer: releases are rolled out, and back, for so long.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from uuid import UUID

import pytest
from django.db import connections

from django_durable_jobs import enqueue
from django_durable_jobs.models import Execution, Job, Worker
from tests import ledger
from tests.factories import assert_queue_is_sound
from tests.processes.harness import WorkerProcess, Workers, states, until

SECONDS = float(os.environ.get("DDJ_DEPLOY_SECONDS", "0"))

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.timeout(2 * SECONDS + 120),
]

BOTH, REMOVED, ADDED = "deployed.both", "deployed.removed", "deployed.added"
KNOWN = {"old": REMOVED, "new": ADDED}
WORKERS, OWNERS = 3, 4
# As long as a handler takes at most, well within the grace.
LONGEST = 0.8


@dataclass
class Load:
    """What a busy project enqueues while its workers are replaced."""

    over: threading.Event = field(default_factory=threading.Event)
    made: dict[UUID, str] = field(default_factory=dict)  # type, by id
    errors: list[Exception] = field(default_factory=list)

    def produce(self) -> None:
        rng = random.Random(7)
        try:
            while not self.over.wait(0.03):
                type = rng.choices([BOTH, REMOVED, ADDED], [8, 1, 1])[0]
                seconds = rng.choice([0.0, 0.02, 0.1, LONGEST])
                job = enqueue(type, {"seconds": seconds}, owner_id=f"owner-{rng.randrange(OWNERS)}")
                self.made[job.pk] = type
        except Exception as error:
            self.errors.append(error)
        finally:
            connections.close_all()

    def of(self, type: str) -> list[UUID]:
        return [id for id, made in list(self.made.items()) if made == type]


@contextmanager
def under_load() -> Iterator[Load]:
    load = Load()
    thread = threading.Thread(target=load.produce)
    thread.start()
    try:
        yield load
    finally:
        load.over.set()
        thread.join()


@dataclass
class Site:
    """The workers of a project, one release or two at a time."""

    workers: Workers
    live: list[WorkerProcess] = field(default_factory=list)

    def start(self, release: str) -> None:
        environment = {"DDJ_RELEASE": release}
        self.live.append(
            self.workers.start("--concurrency=2", environment=environment, OWNER_CONCURRENCY=2)
        )

    def replace_oldest(self, release: str) -> None:
        """Start one of this release, and stop the oldest by SIGTERM, while it is at work."""
        self.start(release)
        self.live[-1].ready()
        oldest = self.live.pop(0)
        until(lambda: self.is_at_work(oldest), "a running job of the worker that is stopped")
        oldest.signal(signal.SIGTERM)
        assert oldest.ended() == 0, oldest.output

    def is_at_work(self, worker: WorkerProcess) -> bool:
        lines = [line for line in self.workers.lines() if line.pid == worker.pid]
        return len(ledger.of(lines, "start")) > len(ledger.of(lines, "end"))


def test_workers_are_replaced_one_by_one_under_load_and_nothing_is_lost_or_run_twice(
    workers: Workers,
) -> None:
    site = Site(workers)
    for _ in range(WORKERS):
        site.start("old")
    for worker in site.live:
        worker.ready()
    last_roll = time.monotonic() + SECONDS
    with under_load() as load:
        for release in cycle(["new", "old"]):
            roll(site, load, release)
            # It ends with the new release.
            if release == "new" and time.monotonic() >= last_roll:
                break
    assert load.errors == []
    left = known_to_nobody(site, load, REMOVED)
    known = load.of(BOTH) + load.of(ADDED)
    until(lambda: not unfinished(known), "all jobs that the new release knows")
    site.start("old")
    until(lambda: not unfinished(left), "the jobs of the removed type, once it is known again")
    judge(workers, load)
    for worker in site.live:
        assert worker.ready().stop() == 0
    assert set(Worker.objects.values_list("state", flat=True)) == {"stopped"}
    assert workers.trouble() == []
    assert_queue_is_sound()


def roll(site: Site, load: Load, release: str) -> None:
    """Replace all workers; before the first, see what becomes of the release's own type."""
    waiting = known_to_nobody(site, load, KNOWN[release])
    for number in range(WORKERS):
        site.replace_oldest(release)
        if not number:
            until(lambda: not unfinished(waiting), "the jobs that waited for this release")


def known_to_nobody(site: Site, load: Load, type: str) -> list[UUID]:
    """Return jobs of a type that no worker knows: they wait, and hold nobody up."""
    # Ahead of everything else of their owner.
    stuck = [enqueue(type, owner_id="owner-0", priority=100) for _ in range(5)]
    load.made.update((job.pk, type) for job in stuck)
    behind = enqueue(BOTH, owner_id="owner-0", priority=99)
    load.made[behind.pk] = BOTH
    until(lambda: states(behind) == ["completed"], "a job that stands behind unknown ones")
    held = Job.objects.filter(pk__in=[job.pk for job in stuck])
    assert list(held.values_list("state", "held_reason")) == [("queued", "no_handler")] * 5
    return unfinished(load.of(type))


def unfinished(ids: list[UUID]) -> list[UUID]:
    """Return those of these jobs that are not completed."""
    done: set[UUID] = set()
    for start in range(0, len(ids), 500):
        found = Job.objects.filter(pk__in=ids[start : start + 500], state="completed")
        done |= set(found.values_list("pk", flat=True))
    return [id for id in ids if id not in done]


def judge(workers: Workers, load: Load) -> None:
    """Hold what the handlers wrote against what was enqueued."""
    starts = workers.lines("start")
    assert Counter(line.job for line in starts) == dict.fromkeys(load.made, 1)
    assert {line.job for line in workers.lines("end")} == set(load.made)
    for line in starts:
        type = load.made[line.job]
        assert type == BOTH or type == KNOWN[line.note], f"{type} ran in the {line.note} release"
    assert {line.note for line in starts if load.made[line.job] == BOTH} == {"old", "new"}
    assert len({line.pid for line in starts}) >= WORKERS
    # What a worker had claimed and not begun when it was stopped is given back; nothing more.
    assert not Execution.objects.exclude(state__in=["completed", "released"]).exists()
    assert Execution.objects.filter(state="completed").count() == len(load.made)
    assert Job.objects.exclude(state="completed").count() == 0
    print(f"\n{len(load.made)} jobs in {len(workers.all)} workers, each run once")
