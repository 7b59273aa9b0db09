"""S1 getJob, listJobs, getReceipt, status, and the options of attachDurableScheduler."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest

from django_durable_jobs import (
    enqueue,
    get_job,
    get_receipt,
    list_jobs,
    register_handler,
    requeue,
)
from django_durable_jobs.conf import problems
from django_durable_jobs.db import ManualClock, use_clock
from django_durable_jobs.models import Worker
from django_durable_jobs.states import State
from django_durable_jobs.worker import Scheduler
from tests.factories import make_execution, make_job

from .conftest import START, Configure, Gate, executions, settled, until

pytestmark = pytest.mark.django_db(transaction=True)


# getJob, listJobs, getReceipt, status


def test_get_job_returns_a_copy() -> None:
    job = enqueue("seed.job", {"n": 1})
    one = get_job(job.pk)
    assert one is not None
    one.payload["n"] = 2
    again = get_job(job.pk)
    assert again is not None
    assert again.payload == {"n": 1}


def test_list_jobs_is_every_job_of_the_namespace() -> None:
    """changed: a queryset, read when it is used, where the seed copies everything."""
    jobs = {make_job(state).pk for state in State}
    there = enqueue("seed.job", namespace="there")
    assert {job.pk for job in list_jobs()} == jobs
    assert [job.pk for job in list_jobs(namespace="there")] == [there.pk]
    assert list_jobs(state=State.QUEUED).count() == 1


def test_get_receipt_is_none_without_one() -> None:
    assert get_receipt(uuid.uuid4()) is None
    assert get_receipt(enqueue("seed.job").pk) is None
    assert get_receipt(make_job("completed").pk) is None


def test_get_receipt_is_that_of_the_latest_execution() -> None:
    job = make_job("interrupted", execution=False)
    make_execution(job, receipt={"sent": 1}, claim_id=uuid.uuid4())
    make_execution(job, receipt={"sent": 2})
    assert get_receipt(job.pk) == {"sent": 2}
    requeue(job.pk)
    assert get_receipt(job.pk) == {"sent": 2}


def test_status_tells_the_scheduler(scheduler: Any, gate: Gate) -> None:
    works = scheduler()
    fresh = {"started": False, "closed": False, "healthy": True, "error": None, "active": 0}
    fresh |= {"stuck": 0, "is_leader": False}
    assert works.status() == fresh
    register_handler("seed.gate", gate)
    job = enqueue("seed.gate")
    works.start()
    leads = {"started": True, "active": 1, "is_leader": True}
    until(lambda: works.status() == fresh | leads)
    gate.let_go()
    settled(job)
    until(lambda: works.status()["active"] == 0)
    works.shutdown()
    assert works.status() == fresh | {"closed": True}


# The options


def test_option_namespace_keeps_jobs_apart(scheduler: Any) -> None:
    register_handler("seed.job", lambda: None)
    here, there = enqueue("seed.job"), enqueue("seed.job", namespace="there")
    scheduler("there").start()
    settled(there)
    here.refresh_from_db()
    assert here.state == State.QUEUED


def test_option_namespace_left_out_is_the_setting(scheduler: Any, configure: Configure) -> None:
    """changed: the seed requires it."""
    configure(NAMESPACE="chosen")
    register_handler("seed.job", lambda: None)
    job = enqueue("seed.job")
    scheduler().start()
    (job,) = settled(job)
    assert (job.namespace, job.state) == ("chosen", State.COMPLETED)


@pytest.mark.parametrize("namespace", [" ", "x" * 65, 7, "a\x00b"])
def test_option_namespace_must_be_text(namespace: Any, transactional_db: None) -> None:
    with pytest.raises((TypeError, ValueError), match="namespace"):
        Scheduler(namespace)


def test_option_now_is_the_clock(scheduler: Any) -> None:
    clock = ManualClock(START)
    register_handler("seed.job", lambda: None)
    with use_clock(clock):
        job = enqueue("seed.job", run_at=START + timedelta(seconds=60))
    works = scheduler(clock=clock)
    assert works.tick() == 0
    clock.advance(60)
    assert works.tick() == 1
    (job,) = settled(job)
    assert job.finished_at == clock.value
    works.shutdown()


def test_option_make_id_makes_worker_and_claim_ids(scheduler: Any) -> None:
    """changed: job ids are made by enqueue, which has no scheduler."""
    ids = [uuid.uuid4() for _ in range(2)]
    made = iter(ids)
    register_handler("seed.job", lambda: None)
    job = enqueue("seed.job")
    works = scheduler(make_id=lambda: next(made))
    assert works.tick() == 1
    (job,) = settled(job)
    assert [works.id, executions(job)[0].claim_id] == ids
    assert Worker.objects.get().pk == ids[0]


@pytest.mark.parametrize("value", [0, -1, 0.001, "30", None])
def test_option_max_timer_delay_senseless_values_are_refused(
    value: Any, configure: Configure
) -> None:
    """changed: the seed moves them to the nearest sensible one."""
    configure(MAX_SLEEP=value)
    assert [problem.key for problem in problems()] == ["MAX_SLEEP"]


def test_option_global_concurrency_is_4_unless_told(scheduler: Any, gate: Gate) -> None:
    register_handler("seed.gate", gate)
    jobs = [enqueue("seed.gate") for _ in range(6)]
    works = scheduler()
    assert works.tick() == 4
    gate.let_go()
    works.start()
    settled(*jobs)


@pytest.mark.parametrize("value", [-1, 1.5, "4", True])
def test_option_global_concurrency_must_be_a_whole_number(
    value: Any, configure: Configure, transactional_db: None
) -> None:
    """changed: the seed takes anything and moves it to 1 at least."""
    with pytest.raises((TypeError, ValueError), match="concurrency"):
        Scheduler(concurrency=value)
    configure(CONCURRENCY=value)
    assert [problem.key for problem in problems()] == ["CONCURRENCY"]


def test_option_per_owner_concurrency_is_1_unless_told(scheduler: Any, gate: Gate) -> None:
    register_handler("seed.gate", gate)
    jobs = [enqueue("seed.gate", owner_id="o") for _ in range(2)]
    works = scheduler()
    assert (works.tick(), works.tick()) == (1, 0)
    gate.let_go()
    works.start()
    settled(*jobs)
