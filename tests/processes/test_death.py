"""Workers that die, and workers that come back from the dead."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from django.db import connection

from django_durable_jobs import enqueue, requeue
from django_durable_jobs.db import current_clock
from django_durable_jobs.models import Execution, Job, Worker
from django_durable_jobs.states import State
from tests.factories import assert_queue_is_sound
from tests.processes.harness import Workers, attempts, digest, freeze, states, until

pytestmark = [pytest.mark.processes, pytest.mark.slow]

RESTARTED = "server_restarted_after_claim"


def running(workers: Workers, *jobs: Job) -> None:
    until(lambda: {job.pk for job in jobs} <= set(workers.started()), "the handlers' starts")


def test_after_kill_9_the_next_worker_interrupts_exactly_what_ran_and_at_once(
    workers: Workers,
) -> None:
    # No lease runs out in this test: that the process is gone is proof enough.
    patient = {"LEASE": 60, "HEARTBEAT": 5}
    ended = enqueue("ledger.work")
    first = workers.start("--concurrency=3", **patient)
    until(lambda: states(ended) == ["completed"], "the short job")
    killed = [enqueue("ledger.work", {"seconds": 3_600}), enqueue("ledger.await", {"seconds": 600})]
    neighbour = enqueue("ledger.work", {"seconds": 3_600})
    running(workers, *killed, neighbour)
    waiting = [enqueue("ledger.work"), enqueue("ledger.work", owner_id="someone")]
    first.kill()

    # Where the jobs outlive a lease they are interrupted by its end too, which is another test.
    second = workers.start("--concurrency=3", **patient).ready()
    gone = [*killed, neighbour]
    until(lambda: states(*gone) == ["interrupted"] * 3, "the interruption", seconds=10)
    for job in gone:
        assert attempts(job) == [(1, "interrupted", RESTARTED)]
    until(lambda: states(*waiting) == ["completed"] * 2, "the jobs that waited")
    assert states(ended) == ["completed"]
    assert attempts(ended) == [(1, "completed", "")]
    assert Worker.objects.get(pk=first.id).state == Worker.Status.LOST
    started = workers.started()
    assert len(started) == len(set(started)) == 6

    for job in gone:
        Job.objects.filter(pk=job.pk).update(payload={"seconds": 0})
        requeue(job.pk)
    until(lambda: states(*gone) == ["completed"] * 3, "the requeued jobs")
    for job in gone:
        assert attempts(job) == [(1, "interrupted", RESTARTED), (2, "completed", "")]
    assert second.stop() == 0
    assert_queue_is_sound()
    assert workers.trouble() == []


def test_a_worker_whose_pid_proves_nothing_is_lost_when_its_lease_ends_and_not_before(
    workers: Workers,
) -> None:
    lease = {"LEASE": 4, "HEARTBEAT": 0.5}
    job = enqueue("ledger.work", {"seconds": 3_600})
    first = workers.start(**lease).ready()
    running(workers, job)
    # As if on another machine, whose processes cannot be seen from here.
    Worker.objects.filter(pk=first.id).update(host="elsewhere.example")
    first.kill()
    lease_ends = Execution.objects.get(job=job).lease_expires_at

    workers.start(**lease).ready()
    until(lambda: states(job) == ["interrupted"], "the end of the lease")
    execution = Execution.objects.get(job=job)
    assert execution.interruption_reason == "worker_lost"
    assert execution.interrupted_at is not None
    assert execution.interrupted_at >= lease_ends
    assert workers.started() == [job.pk]


def test_a_pid_that_another_process_has_now_proves_the_worker_gone(workers: Workers) -> None:
    job = enqueue("ledger.work", {"seconds": 3_600})
    first = workers.start(LEASE=60, HEARTBEAT=5).ready()
    running(workers, job)
    first.kill()
    # This very test's process, which lives but started at another time.
    import os

    Worker.objects.filter(pk=first.id).update(pid=os.getpid())
    workers.start(LEASE=60, HEARTBEAT=5).ready()
    until(lambda: states(job) == ["interrupted"], "the interruption", seconds=10)
    assert attempts(job) == [(1, "interrupted", RESTARTED)]


def test_a_live_worker_is_not_taken_over_by_one_that_starts(workers: Workers) -> None:
    job = enqueue("ledger.work", {"seconds": 3})
    workers.start().ready()
    running(workers, job)
    workers.start().ready()
    until(lambda: states(job) == ["completed"], "the end of the job")
    assert attempts(job) == [(1, "completed", "")]


def test_a_handler_that_ends_the_process_takes_its_neighbours_along_and_nothing_runs_again(
    workers: Workers,
) -> None:
    neighbours = [
        enqueue("ledger.work", {"seconds": 3_600}),
        enqueue("ledger.await", {"seconds": 60}),
    ]
    first = workers.start("--concurrency=3", LEASE=60, HEARTBEAT=5).ready()
    running(workers, *neighbours)
    deadly = enqueue("ledger.work", {"how": "die"})
    assert first.ended() == 9

    workers.start("--concurrency=3", LEASE=60, HEARTBEAT=5).ready()
    until(lambda: states(deadly, *neighbours) == ["interrupted"] * 3, "the interruption")
    after = enqueue("ledger.work")
    until(lambda: states(after) == ["completed"], "the job after them")
    for job in (deadly, *neighbours):
        assert attempts(job) == [(1, "interrupted", RESTARTED)]
    assert sorted(workers.started()) == sorted(job.pk for job in (deadly, *neighbours, after))


def test_a_zombie_settles_nothing_and_goes_on_with_other_jobs(
    workers: Workers, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    job = enqueue("ledger.late", {"gate": str(gate)})
    zombie = workers.start("--concurrency=2").ready()
    running(workers, job)
    workers.start("--queues=other").ready()  # reaps, and takes no job of these
    freeze(zombie.pid)
    until(lambda: states(job) == ["interrupted"], "the end of its lease")
    assert attempts(job) == [(1, "interrupted", "worker_lost")]
    gate.touch()
    before = digest(job)

    zombie.signal(signal.SIGCONT)
    until(lambda: workers.lines("end"), "the end of the late handler")
    after = enqueue("ledger.work")
    until(lambda: states(after) == ["completed"], "a job after that")
    until(lambda: any(event["outcome"] == "claim lost" for event in zombie.events("job")), "loss")

    assert digest(job) == before
    refused = [line.note for line in workers.lines("refused")]
    assert refused == [["metadata", "StaleClaim"], ["receipt", "StaleClaim"]]
    assert workers.lines("recorded") == []
    assert {line.pid for line in workers.lines("start")} == {zombie.pid}
    # It writes that it lives, and keeps the claims it takes from now on.
    until(lambda: zombie.row().state == "running", "its row")
    long = enqueue("ledger.work", {"seconds": 3})
    until(lambda: states(long) == ["completed"], "a job longer than a lease")
    assert zombie.stop() == 0


def test_a_zombie_tells_the_handler_whose_claim_it_lost_to_stop(workers: Workers) -> None:
    job = enqueue("ledger.hang", {"ignores_stop": False})
    zombie = workers.start().ready()
    running(workers, job)
    workers.start("--queues=other").ready()
    freeze(zombie.pid)
    until(lambda: states(job) == ["interrupted"], "the end of its lease")
    zombie.signal(signal.SIGCONT)
    until(lambda: workers.lines("end"), "the handler's end")
    assert states(job) == ["interrupted"]


def test_when_all_stood_still_nobody_judges_anybody(workers: Workers) -> None:
    jobs = [enqueue("ledger.work", {"seconds": 6}) for _ in range(2)]
    both = [workers.start("--concurrency=1").ready() for _ in range(2)]
    running(workers, *jobs)
    for worker in both:
        freeze(worker.pid)
    last = max(Execution.objects.values_list("lease_expires_at", flat=True))
    until(lambda: current_clock().now(connection) > last, "the end of both leases")
    for worker in both:
        worker.signal(signal.SIGCONT)
    until(lambda: states(*jobs) == ["completed"] * 2, "both jobs")
    assert Job.objects.filter(state=State.INTERRUPTED).count() == 0
