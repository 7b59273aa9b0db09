"""How a worker ends: what it waits for, what it interrupts, and that it does end."""

from __future__ import annotations

import signal
import time

import pytest

from django_durable_jobs import enqueue
from django_durable_jobs.models import Execution, Job, Worker
from tests.factories import assert_queue_is_sound
from tests.processes.harness import WorkerProcess, Workers, attempts, states, until

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SHUTDOWN = "scheduler_shutdown"
STOPS = [signal.SIGTERM, signal.SIGINT]


def signed_off(worker: WorkerProcess) -> bool:
    row = worker.row()
    return row.state == "stopped" and row.active == 0 and row.stopped_at is not None


@pytest.mark.parametrize("number", STOPS)
def test_an_idle_worker_ends_at_once_with_code_0(workers: Workers, number: signal.Signals) -> None:
    worker = workers.start("--grace=30").ready()
    worker.signal(number)
    assert worker.ended(10) == 0
    assert signed_off(worker)
    assert workers.trouble() == []


def test_it_waits_for_running_handlers_and_claims_nothing_more(workers: Workers) -> None:
    jobs = [enqueue("ledger.work", {"seconds": 1.5}), enqueue("ledger.await", {"seconds": 1.5})]
    # Longer than a lease: what is waited for is kept.
    jobs.append(enqueue("ledger.work", {"seconds": 3}))
    worker = workers.start("--concurrency=4", "--grace=30").ready()
    until(lambda: len(workers.started()) == 3, "the starts")
    worker.signal(signal.SIGTERM)
    until(lambda: worker.events("stopping"), "what it waits for")
    late = [enqueue("ledger.work") for _ in range(3)]
    assert worker.ended() == 0
    assert states(*jobs) == ["completed"] * 3
    assert states(*late) == ["queued"] * 3
    assert Execution.objects.filter(job__in=late).count() == 0
    assert signed_off(worker)
    assert worker.events("stopping")[0]["running"] == 3
    assert_queue_is_sound()


def test_what_runs_past_the_grace_is_interrupted_and_a_hung_thread_holds_nobody_up(
    workers: Workers,
) -> None:
    hung = [enqueue("ledger.hang"), enqueue("ledger.await", {"seconds": 3_600})]
    brief = enqueue("ledger.work", {"seconds": 0.5})
    worker = workers.start("--concurrency=4", "--grace=1.5").ready()
    until(lambda: len(workers.started()) == 3, "the starts")
    worker.signal(signal.SIGTERM)
    assert worker.ended(10) == 0
    assert states(*hung, brief) == ["interrupted", "interrupted", "completed"]
    for job in hung:
        assert attempts(job) == [(1, "interrupted", SHUTDOWN)]
    assert signed_off(worker)
    assert worker.events("interrupted")[0]["jobs"] == 2


@pytest.mark.parametrize("second", STOPS)
def test_a_second_signal_ends_the_grace(workers: Workers, second: signal.Signals) -> None:
    job = enqueue("ledger.hang")
    worker = workers.start("--grace=600").ready()
    until(lambda: workers.started(), "the start")
    worker.signal(signal.SIGTERM)
    until(lambda: worker.events("stopping"), "what it waits for")
    worker.signal(second)
    assert worker.ended(10) == 0
    assert attempts(job) == [(1, "interrupted", SHUTDOWN)]
    assert signed_off(worker)


@pytest.mark.parametrize("whom", ["scribe", "keeper"])
def test_after_a_second_signal_no_thread_holds_the_exit_up(workers: Workers, whom: str) -> None:
    job = enqueue("ledger.block", {"whom": whom})
    worker = workers.start("--grace=600", LEASE=600).ready()
    until(lambda: states(job) == ["completed"], "the job")
    worker.signal(signal.SIGTERM)
    until(lambda: worker.events("stopping"), "the stop")
    worker.signal(signal.SIGTERM)
    code = worker.ended(15)
    assert "threads hang, leaving without them" in worker.output
    # The keeper is ended before the last word is written, the scribe after it.
    expected = (0, "stopped") if whom == "scribe" else (1, "draining")
    assert (code, worker.row().state) == expected


@pytest.mark.parametrize(
    ("on_interrupt", "told", "state"),
    [("keep", (1, 0), "interrupted"), ("requeue", (0, 1), "queued")],
)
def test_it_says_what_becomes_of_what_it_interrupted(
    workers: Workers, on_interrupt: str, told: tuple[int, int], state: str
) -> None:
    job = enqueue("ledger.hang")
    worker = workers.start("--grace=0", ON_INTERRUPT=on_interrupt).ready()
    until(lambda: workers.started(), "the start")
    worker.signal(signal.SIGTERM)
    assert worker.ended(10) == 0
    assert states(job) == [state]
    [event] = worker.events("interrupted")
    assert (event["jobs"], event["requeued"]) == told


def test_a_claimed_job_whose_second_can_run_still_thinks_is_given_back(workers: Workers) -> None:
    # Asked before the claim too, which takes as long.
    job = enqueue("ledger.asked", {"slow": 1.0})
    worker = workers.start("--grace=20").ready()
    until(lambda: states(job) == ["claimed"], "the claim")
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0
    job.refresh_from_db()
    assert (job.state, job.attempts) == ("queued", 0)
    assert attempts(job) == [(1, "released", "")]
    assert workers.started() == []
    assert signed_off(worker)
    assert_queue_is_sound()


def test_a_can_run_that_never_answers_does_not_hold_the_exit_up(workers: Workers) -> None:
    job = enqueue("ledger.asked", {"slow": 600})
    worker = workers.start("--grace=1").ready()
    other = enqueue("ledger.work")
    until(lambda: states(other) == ["completed"], "a job that needs no asking")
    worker.signal(signal.SIGTERM)
    assert worker.ended(10) == 0
    assert states(job) == ["queued"]


def test_threads_that_handlers_leave_behind_do_not_hold_the_exit_up(workers: Workers) -> None:
    job = enqueue("ledger.thread")
    worker = workers.start("--grace=1").ready()
    until(lambda: states(job) == ["completed"], "the job")
    worker.signal(signal.SIGTERM)
    assert worker.ended(10) == 0


@pytest.mark.parametrize("after", [0.0, 0.05, 0.1, 0.2, 0.3])
def test_a_signal_right_after_the_start_ends_it_with_code_0(workers: Workers, after: float) -> None:
    jobs = [enqueue("ledger.work", {"seconds": 0.2}) for _ in range(3)]
    worker = workers.start("--grace=20")
    until(lambda: worker.output or worker.is_over(), "its first line")
    time.sleep(after)
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0, worker.output
    assert workers.trouble() == []
    # What it took it finished or gave back.
    assert set(states(*jobs)) <= {"queued", "completed"}
    assert not Execution.objects.filter(state__in=["claimed", "running"]).exists()
    assert set(Worker.objects.values_list("state", flat=True)) <= {"stopped"}
    assert_queue_is_sound()


@pytest.mark.parametrize("after", [0.0, 0.1, 0.3])
def test_a_signal_before_the_worker_could_hear_it_leaves_nothing_behind(
    workers: Workers, after: float
) -> None:
    enqueue("ledger.work", {"seconds": 0.2})
    worker = workers.start("--grace=20")
    time.sleep(after)
    worker.signal(signal.SIGTERM)
    # While Python itself starts there is nobody to hear it, and the system ends the process.
    assert worker.ended() in (0, -signal.SIGTERM), worker.output
    assert workers.trouble() == []
    assert not Execution.objects.filter(state__in=["claimed", "running"]).exists()
    assert set(Worker.objects.values_list("state", flat=True)) <= {"stopped"}


def test_no_claim_is_made_after_the_signal(workers: Workers) -> None:
    for _ in range(40):
        enqueue("ledger.work", {"seconds": 0.05})
    worker = workers.start("--concurrency=2", "--grace=20").ready()
    until(lambda: len(workers.lines("end")) >= 4, "a few jobs")
    worker.signal(signal.SIGTERM)
    at = time.monotonic_ns()
    assert worker.ended() == 0
    assert all(line.at < at + 1e9 for line in workers.lines("start"))
    assert Job.objects.filter(state="queued").exists()
    assert not Job.objects.filter(state__in=["claimed", "running", "interrupted"]).exists()
    assert signed_off(worker)
