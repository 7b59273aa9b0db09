"""Handlers that do not end: the worker goes on without them, and then asks to be restarted."""

from __future__ import annotations

import signal

import pytest

from django_durable_jobs import enqueue, request_stop
from tests.factories import assert_queue_is_sound
from tests.processes.harness import Workers, attempts, states, until

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.once]

TIMED_OUT = [(1, "interrupted", "timed_out")]


def test_with_more_stuck_threads_than_slots_it_drains_and_exits_with_75(workers: Workers) -> None:
    first = enqueue("ledger.stuck", {"inside": "C"})
    between = enqueue("ledger.work")
    second = enqueue("ledger.stuck", {"inside": "a loop"})
    worker = workers.start("--concurrency=1", "--grace=20").ready()
    assert worker.ended(60) == 75, worker.output
    # The one slot was not lost to the first.
    assert states(first, between, second) == ["interrupted", "completed", "interrupted"]
    assert attempts(first) == attempts(second) == TIMED_OUT
    row = worker.row()
    assert (row.state, row.stuck, row.active) == ("stopped", 2, 0)
    assert [event["stuck"] for event in worker.events("stuck")] == [1, 2]
    assert worker.events("stopped")[0]["code"] == 75
    assert workers.trouble() == []
    assert_queue_is_sound()


def test_a_stuck_thread_does_not_hold_the_exit_up(workers: Workers) -> None:
    job = enqueue("ledger.stuck", {"inside": "C"})
    worker = workers.start("--concurrency=2", "--grace=600").ready()
    until(lambda: worker.events("stuck"), "its thread to be given up")
    other = enqueue("ledger.work")
    until(lambda: states(other) == ["completed"], "another job")
    worker.signal(signal.SIGTERM)
    assert worker.ended(10) == 0
    assert attempts(job) == TIMED_OUT
    assert (worker.row().state, worker.row().stuck) == ("stopped", 1)


def test_a_job_is_stopped_in_another_process(workers: Workers) -> None:
    job = enqueue("ledger.hang")
    worker = workers.start("--concurrency=1").ready()
    until(lambda: workers.started(), "the start")
    request_stop(job, "enough")
    until(lambda: states(job) == ["interrupted"], "the stop")
    assert attempts(job) == [(1, "interrupted", "stop_requested")]
    assert len(workers.lines("end")) == 1  # its clean-up ran
    after = enqueue("ledger.work")
    until(lambda: states(after) == ["completed"], "the next job")
    assert worker.stop() == 0
