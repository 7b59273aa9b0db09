"""Several worker processes at the same jobs: each runs once, the caps hold, nobody is starved."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from django_durable_jobs import enqueue_many, pause, resume
from django_durable_jobs.models import Execution, Job, Worker
from django_durable_jobs.states import State
from tests import ledger
from tests.factories import assert_queue_is_sound
from tests.processes.harness import Workers, until

# 2,000 in .ci/run.
JOBS = int(os.environ.get("DDJ_RACE_JOBS", "800"))

pytestmark = [pytest.mark.races, pytest.mark.processes, pytest.mark.slow]


@pytest.fixture
def workers(transactional_db: None, tmp_path: Path) -> Iterator[Workers]:
    with Workers(tmp_path) as workers:
        yield workers


def make_jobs(count: int, owners: Sequence[str], *, seconds: float = 0.0) -> list[Job]:
    jobs: list[dict[str, Any]] = [
        {
            "type": "ledger.work",
            "owner_id": owners[number % len(owners)],
            "payload": {"seconds": seconds},
        }
        for number in range(count)
    ]
    return enqueue_many(jobs)


def test_four_workers_run_each_job_once_and_exceed_no_cap(workers: Workers) -> None:
    # Three of the 50 have half of all jobs: in the end there are no others, and the cap of an
    # owner is what holds them back.
    owners = [f"owner-{number:02}" for number in range(50)]
    jobs = make_jobs(JOBS, [*owners, *owners[:3] * 16], seconds=0.01)
    pause("default")  # until all four are there: else the first one up has done half of it
    for _ in range(4):
        # Without a lease so short that a machine this busy could miss it. Three of them have
        # fewer slots than the cap allows, so that all four have a share.
        workers.start(
            "--concurrency=3", OWNER_CONCURRENCY=2, GLOBAL_CONCURRENCY=10, HEARTBEAT=5, LEASE=30
        )
    for worker in workers.all:
        worker.ready()
    resume("default")
    done = Job.objects.filter(state=State.COMPLETED)
    until(lambda: done.count() == JOBS or workers.trouble(), f"{JOBS} completed", seconds=90)
    codes = [worker.stop() for worker in workers.all]

    lines = workers.lines()
    most, most_of_owner = ledger.most_at_once(lines, {job.pk: job.owner_id for job in jobs})
    starts = Counter(line.job for line in ledger.of(lines, "start"))
    assert workers.trouble() == []
    assert codes == [0, 0, 0, 0]
    assert set(starts) == {job.pk for job in jobs}
    assert set(starts.values()) == {1}
    assert len(ledger.of(lines, "end")) == JOBS
    assert Execution.objects.filter(started_at__isnull=False).count() == JOBS
    assert Execution.objects.filter(state="completed").count() == JOBS
    assert most <= 10
    assert max(most_of_owner.values()) == 2  # and it was reached
    # All had a share in it, so they did race.
    assert {line.pid for line in lines} == {worker.pid for worker in workers.all}
    assert_queue_is_sound()
    assert set(Worker.objects.values_list("state", flat=True)) == {"stopped"}
    print(f"most at once: {most} in all, {max(most_of_owner.values())} of one owner")


def test_a_big_backlog_has_no_more_than_its_turns_while_others_wait(workers: Workers) -> None:
    small = [f"small-{number:02}" for number in range(20)]
    big_jobs = make_jobs(20_000, ["big"])
    small_jobs = make_jobs(200, small)
    owners = {job.pk: job.owner_id for job in [*big_jobs, *small_jobs]}
    worker = workers.start("--concurrency=4", OWNER_CONCURRENCY=4, HEARTBEAT=5, LEASE=30)

    def small_ones_started() -> bool:
        return sum(owners[job] != "big" for job in workers.started()) == 200

    until(lambda: small_ones_started() or workers.trouble(), "the 200 jobs of the others")
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0
    assert workers.trouble() == []

    executions = Execution.objects.filter(started_at__isnull=False)
    assert set(workers.started()) == set(executions.values_list("job_id", flat=True))
    # Threads write their start lines late when the machine is busy, so turns are counted by the
    # claims; what was taken in one claim has one time.
    claims: dict[Any, Counter[str]] = {}
    for job, claimed_at in executions.order_by("id").values_list("job_id", "claimed_at"):
        claims.setdefault(claimed_at, Counter())[owners[job]] += 1
    order = [claims[moment] for moment in sorted(claims)]
    last = max(place for place, taken in enumerate(order) if set(taken) != {"big"})
    # Each of the others has 10 jobs: 10 rounds have somebody besides the big owner in them, which
    # has one turn in each, and may have had the very first turn of all.
    assert sum(taken["big"] for taken in order[:last]) <= 11
    for owner in small:
        places = [place for place, taken in enumerate(order) if owner in taken]
        assert sum(taken[owner] for taken in order) == 10
        for here, there in pairwise(places):
            assert sum(taken["big"] for taken in order[here + 1 : there]) <= 1
    print(
        f"claims: {len(order)}, turns of the big owner before the last: "
        f"{sum(taken['big'] for taken in order[:last])}"
    )
