"""S1 recover, persist, ensureReady, tick: the life of a scheduler."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError
from django.utils import timezone

from django_durable_jobs import (
    cancel,
    claims,
    enqueue,
    register_handler,
    replace_queued,
    requeue,
)
from django_durable_jobs.db import ManualClock
from django_durable_jobs.errors import ShutDown
from django_durable_jobs.models import Job, Worker
from django_durable_jobs.states import State
from django_durable_jobs.worker.identity import this_process
from tests.factories import assert_queue_is_sound, make_execution, make_job, make_worker

from .conftest import Configure, executions, settled, until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def dead_worker(db: None) -> Worker:
    """A worker of this host whose process is gone: its pid belongs to another process now."""
    me = this_process()
    if not (me.boot_id and me.pid_namespace):
        pytest.skip("this system does not say enough about processes to tell")
    return make_worker(
        host=me.host,
        pid=me.pid,
        boot_id=me.boot_id,
        pid_namespace=me.pid_namespace,
        process_start="1",
    )


# recover


def test_recover_claimed_and_running_become_interrupted(
    dead_worker: Worker, clock: ManualClock, scheduler: Any
) -> None:
    jobs = [make_job(state, worker=dead_worker) for state in ("claimed", "running")]
    scheduler().start()
    for job in settled(*jobs):
        (execution,) = executions(job)
        assert job.state == execution.state == State.INTERRUPTED
        assert job.updated_at == execution.interrupted_at == clock.value
        assert execution.interruption_reason == "server_restarted_after_claim"


def test_recover_leaves_every_other_state_alone(dead_worker: Worker, scheduler: Any) -> None:
    left = {State.CLAIMED, State.RUNNING}
    for state in State:
        if state not in left:
            make_job(state, worker=dead_worker)
    before = list(Job.objects.order_by("pk").values())
    assert scheduler().tick() == 0
    after = list(Job.objects.order_by("pk").values())
    held = ("held_reason", "held_since", "claimable_at", "updated_at")  # nobody knows "test.job"
    for old, new in zip(before, after, strict=True):
        changed = {name for name in old if old[name] != new[name]}
        assert changed <= set(held if old["state"] == State.QUEUED else ())


def test_recover_never_runs_again_what_it_interrupted(dead_worker: Worker, scheduler: Any) -> None:
    ran: list[int] = []
    register_handler("test.job", lambda: ran.append(1))
    job = make_job("running", worker=dead_worker)
    works = scheduler()
    works.start()
    (job,) = settled(job)
    assert works.wait_until_idle(10)
    assert ran == []
    requeue(job.pk)  # an operator may
    (job,) = settled(job)
    assert (job.state, ran) == (State.COMPLETED, [1])


def test_recover_a_job_without_an_execution_is_interrupted(
    scheduler: Any, configure: Configure
) -> None:
    configure(HEARTBEAT=0.05)
    job = make_job(State.RUNNING, execution=False)
    scheduler().start()
    until(lambda: Job.objects.get(pk=job.pk).state == State.INTERRUPTED, "the repair")


def test_recover_leaves_what_a_live_worker_holds(scheduler: Any) -> None:
    """changed: the seed is the only process there is, so whatever was claimed is its own."""
    job = make_job("running", worker=make_worker())
    assert scheduler().tick() == 0
    job.refresh_from_db()
    assert job.state == State.RUNNING


def test_recover_elsewhere_waits_for_the_lease(scheduler: Any, configure: Configure) -> None:
    """changed: whether a process on another host lives is told by its lease."""
    configure(HEARTBEAT=0.05)
    job = make_job("running", execution=False)
    make_execution(job, lease_expires_at=timezone.now() - timedelta(seconds=1))
    scheduler().start()
    (job,) = settled(job)
    assert executions(job)[0].interruption_reason == "worker_lost"


def test_recover_unstarted_can_be_requeued(
    dead_worker: Worker, scheduler: Any, configure: Configure
) -> None:
    """changed: the seed has no choice of it."""
    configure(RECOVER_UNSTARTED="requeue")
    claimed, running = (make_job(state, worker=dead_worker) for state in ("claimed", "running"))
    scheduler().tick()
    claimed.refresh_from_db()
    running.refresh_from_db()
    assert (claimed.state, claimed.attempts) == (State.QUEUED, 0)
    assert running.state == State.INTERRUPTED
    assert_queue_is_sound()


@pytest.mark.parametrize("target", [{}, [], {"kind": "x"}, {"kind": " ", "id": "1"}])
def test_recover_invalid_row_fails_alone(target: Any, scheduler: Any) -> None:
    """changed: the seed refuses to start with "Scheduler store contains invalid durable data"."""
    register_handler("seed.job", lambda: None)
    bad, good = enqueue("seed.job", owner_id="o"), enqueue("seed.job", owner_id="o")
    Job.objects.filter(pk=bad.pk).update(target=target)
    works = scheduler()
    works.start()
    bad, good = settled(bad, good)
    assert (bad.state, good.state) == (State.FAILED, State.COMPLETED)
    assert "target" in executions(bad)[0].error
    assert works.status()["healthy"]


# persist and ensureReady


@pytest.fixture
def outage(monkeypatch: Any) -> threading.Event:
    """While this is set, no claim reaches the database."""
    out, claim = threading.Event(), claims.claim

    def fails(*args: Any) -> Any:
        if out.is_set():
            raise OperationalError("the disk is full")
        return claim(*args)

    monkeypatch.setattr(claims, "claim", fails)
    return out


def test_persist_trouble_makes_it_unhealthy_until_it_works_again(
    outage: threading.Event, scheduler: Any
) -> None:
    """changed: after one failed save the seed stays unhealthy for ever."""
    register_handler("seed.job", lambda: None)
    works = scheduler()
    outage.set()
    works.start()
    until(lambda: not works.status()["healthy"])
    assert "the disk is full" in works.status()["error"]
    job = enqueue("seed.job")
    outage.clear()
    (job,) = settled(job)
    assert job.state == State.COMPLETED
    until(lambda: works.status()["healthy"])
    assert works.status()["error"] is None


def test_persist_failed_tick_raises_what_the_database_raised(
    outage: threading.Event, scheduler: Any
) -> None:
    works = scheduler()
    outage.set()
    with pytest.raises(OperationalError, match="the disk is full"):
        works.tick()
    outage.clear()
    assert works.tick() == 0


def test_persist_failed_claim_leaves_the_job_queued(
    outage: threading.Event, scheduler: Any
) -> None:
    register_handler("seed.job", lambda: None)
    job = enqueue("seed.job")
    works = scheduler()
    outage.set()
    with pytest.raises(OperationalError):
        works.tick()
    job.refresh_from_db()
    assert (job.state, executions(job)) == (State.QUEUED, [])
    assert_queue_is_sound()


def test_ensure_ready_after_shutdown_raises(scheduler: Any) -> None:
    works = scheduler()
    works.start()
    works.shutdown()
    with pytest.raises(ShutDown, match="shut down"):
        works.start()
    with pytest.raises(ShutDown, match="shut down"):
        works.tick()


def test_ensure_ready_is_not_asked_of_those_who_enqueue(scheduler: Any) -> None:
    """changed: the seed's enqueue, cancel and replaceQueued need a scheduler that works."""
    works = scheduler()
    works.start()
    works.shutdown()
    job = enqueue("seed.job")
    assert replace_queued(job.pk, payload=1) is not None
    assert cancel(job.pk) is not None
    register_handler("seed.job", lambda: None)()


# tick


def test_tick_returns_how_many_jobs_it_started(scheduler: Any) -> None:
    register_handler("seed.job", lambda: None)
    works = scheduler(concurrency=4)
    assert works.tick() == 0
    jobs = [enqueue("seed.job") for _ in range(3)]
    assert works.tick() == 3
    assert {job.state for job in settled(*jobs)} == {State.COMPLETED}


def test_tick_without_start_takes_only_what_is_due_now(scheduler: Any) -> None:
    """changed: in the seed a job that ends ticks again, started or not."""
    register_handler("seed.job", lambda: None)
    jobs = [enqueue("seed.job") for _ in range(3)]
    works = scheduler(concurrency=2)
    assert works.tick() == 2
    until(lambda: works.status()["active"] == 0)
    assert Job.objects.filter(state=State.QUEUED).count() == 1
    assert works.tick() == 1
    settled(*jobs)


def test_tick_asks_can_run_and_leaves_the_job_to_the_next(scheduler: Any) -> None:
    """changed: the seed asks while it ticks; here foreign code never holds up a claim."""
    asked = threading.Event()

    def can_run(job: Job) -> bool:
        asked.set()
        return True

    register_handler("seed.job", lambda: None, can_run=can_run)
    job = enqueue("seed.job")
    works = scheduler()
    started = works.tick()
    assert asked.wait(10)
    until(lambda: started or works.tick())
    (job,) = settled(job)
    assert job.state == State.COMPLETED
