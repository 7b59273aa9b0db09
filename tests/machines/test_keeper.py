"""The keeper of leases: what it judges, how much at a time, and that it goes on."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.db import OperationalError, connection

from django_durable_jobs import Scheduler, retention
from django_durable_jobs.db import ManualClock, use_clock
from django_durable_jobs.ids import uuid7
from django_durable_jobs.models import Execution, Job, Worker
from django_durable_jobs.states import State
from django_durable_jobs.worker import identity, keeper
from django_durable_jobs.worker.enrolment import Enrolment
from django_durable_jobs.worker.identity import Identity, is_gone, this_process
from django_durable_jobs.worker.keeper import Duties, Keeper
from tests.factories import make_execution, make_job, make_worker, now
from tests.processes.harness import until

with_database = pytest.mark.django_db(transaction=True)


def abandoned(count: int = 1, *, at: datetime | None = None) -> list[Job]:
    """Make running jobs of a worker on another host whose leases have just run out."""
    worker = make_worker(host="elsewhere.example")
    jobs = [make_job(State.RUNNING, execution=False) for _ in range(count)]
    for job in jobs:
        ended = (at or now()) - timedelta(seconds=0.1)
        make_execution(job, worker=worker, lease_expires_at=ended)
    return jobs


def interrupted() -> int:
    return Execution.objects.filter(state="interrupted").count()


# Starting


@with_database
def test_a_worker_that_starts_leaves_a_lease_that_has_just_run_out_to_its_keeper(
    make: Callable[..., Scheduler], keys: Callable[..., None]
) -> None:
    """Its owner had the same outage, maybe, and is about to renew."""
    keys(HEARTBEAT=0.1, LEASE=1)
    (job,) = abandoned()
    Enrolment(uuid7(), "default", "default", slots=1, queues=None, excluded=frozenset()).enrol()
    job.refresh_from_db()
    assert job.state == "running"
    make().start()
    until(lambda: interrupted() == 1, "the keeper's judgement")
    assert Execution.objects.get().interruption_reason == "worker_lost"


# Beating


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    clock = ManualClock(now())
    with use_clock(clock):
        yield clock


def make_keeper() -> Keeper:
    """Make a keeper, not started, that renews for half a minute and has a worker's row."""
    duties = Duties(
        held=lambda: [],
        stop=lambda claims: None,
        lost=lambda claims: None,
        freed=lambda: None,
        figures=lambda: {"active": 0},
    )
    worker = make_worker(host=this_process().host)
    return Keeper(worker.pk, "default", "default", duties, lease=30.0, interval=5.0)


def beat_on(one: Keeper, clock: ManualClock, *, seconds: float) -> None:
    """Let it beat every five seconds."""
    for _ in range(int(seconds / 5)):
        clock.advance(5)
        one.keep(connection)


@with_database
@pytest.mark.parametrize("gap", [27.0, 29.9, 31.0, 300.0])
def test_a_keeper_that_was_away_for_about_a_lease_judges_nobody_until_one_has_passed(
    clock: ManualClock, gap: float
) -> None:
    one = make_keeper()
    beat_on(one, clock, seconds=60)
    abandoned(at=clock.now(connection))
    clock.advance(gap)
    one.keep(connection)
    beat_on(one, clock, seconds=25)
    assert interrupted() == 0
    beat_on(one, clock, seconds=15)
    assert interrupted() == 1


@with_database
def test_one_beat_ends_no_more_than_fifty_leases_and_the_next_goes_on(clock: ManualClock) -> None:
    """More would hold up the renewal of the keeper's own."""
    one = make_keeper()
    beat_on(one, clock, seconds=60)
    abandoned(101, at=clock.now(connection))
    for wanted in (50, 100, 101, 101):
        beat_on(one, clock, seconds=5)
        assert interrupted() == wanted


@with_database
def test_a_keeper_whose_connection_cannot_even_be_closed_goes_on(
    make: Callable[..., Scheduler], keys: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys(HEARTBEAT=0.1, LEASE=30)
    beat = keeper.beat
    refused: list[str] = []

    def fail(own: Any, worker: UUID, figures: dict[str, object]) -> None:
        if refused:
            beat(own, worker, figures)
            return
        close = own.close

        def refuse_to_close() -> None:
            own.close = close
            refused.append("close")
            raise OperationalError("cannot close")

        own.close = refuse_to_close
        refused.append("beat")
        raise OperationalError("no connection")

    scheduler = make()
    scheduler.start()
    until(lambda: Worker.objects.exists(), "the worker's row")
    monkeypatch.setattr(keeper, "beat", fail)
    until(lambda: "close" in refused, "the failure")
    seen = Worker.objects.get().heartbeat_at
    until(lambda: Worker.objects.get().heartbeat_at > seen, "the next beat")


# Deleting what ended long ago


@with_database
def test_a_worker_deletes_what_is_older_than_job_retention_says(
    make: Callable[..., Scheduler], keys: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys(HEARTBEAT=0.1, LEASE=1, JOB_RETENTION=3_600, PRUNE_INTERVAL=0.2)
    monkeypatch.setattr(retention, "BATCH", 3)
    long_ago = now() - timedelta(hours=2)
    old = [make_job(State.COMPLETED, finished_at=long_ago).pk for _ in range(8)]
    young = make_job(State.COMPLETED)
    make().start()
    until(lambda: not Job.objects.filter(pk__in=old).exists(), "their end")
    later = make_job(State.FAILED, finished_at=long_ago)
    until(lambda: not Job.objects.filter(pk=later.pk).exists(), "the end of one more")
    assert Job.objects.get() == young
    assert Execution.objects.get().job_id == young.pk


@with_database
def test_a_worker_that_cannot_prune_keeps_its_leases_all_the_same(
    make: Callable[..., Scheduler], keys: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys(HEARTBEAT=0.1, LEASE=30, PRUNE_INTERVAL=0.1)
    tries: list[str] = []

    def fail(*args: Any, **kwargs: Any) -> Any:
        tries.append("prune")
        raise OperationalError("no more space")

    monkeypatch.setattr(retention, "_step", fail)
    make().start()
    until(lambda: tries, "the first try")
    seen = Worker.objects.get().heartbeat_at
    until(lambda: Worker.objects.get().heartbeat_at > seen, "the next beat")
    until(lambda: len(tries) > 1, "the next try", seconds=10)


# Whose process is gone

linux_only = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(command) as process:
        yield process
        process.kill()


def identity_of(process: subprocess.Popen[bytes]) -> Identity:
    start = identity._process_start(process.pid)
    assert start
    return dataclasses.replace(this_process(), pid=process.pid, process_start=start)


@linux_only
def test_a_process_that_lives_is_not_gone(child: subprocess.Popen[bytes]) -> None:
    assert not is_gone(identity_of(child))


@linux_only
def test_a_process_of_which_nothing_can_be_read_is_not_proven_to_be_gone(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    other, read = identity_of(child), identity._read
    monkeypatch.setattr(identity, "_read", lambda path: "" if "stat" in path else read(path))
    assert not is_gone(other)
    here = dataclasses.replace(this_process(), process_start=other.process_start)
    monkeypatch.setattr(identity, "this_process", lambda: here)
    assert not is_gone(other)


@linux_only
def test_a_process_that_is_no_more_is_gone(child: subprocess.Popen[bytes]) -> None:
    other = identity_of(child)
    child.kill()
    child.wait()
    assert is_gone(other)


@linux_only
def test_a_process_that_ended_and_was_not_waited_for_is_gone(
    child: subprocess.Popen[bytes],
) -> None:
    other = identity_of(child)
    child.kill()
    until(lambda: is_gone(other), "the end")
    assert Path(f"/proc/{child.pid}").exists()  # a zombie keeps its number


@linux_only
def test_a_later_process_with_the_same_number_is_another_one(
    child: subprocess.Popen[bytes],
) -> None:
    assert is_gone(dataclasses.replace(identity_of(child), process_start="1"))
