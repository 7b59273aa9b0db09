"""What the tests of the seed's behaviour share: handlers of their own, schedulers, waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from django_durable_jobs import claims, enqueue, register_handler
from django_durable_jobs.conf import settings as durable_settings
from django_durable_jobs.db import ManualClock, transaction, use_clock
from django_durable_jobs.models import Execution, Job
from django_durable_jobs.namespaces import wake_here
from django_durable_jobs.registry import handlers, schedules
from django_durable_jobs.states import LIVE
from django_durable_jobs.worker import Scheduler
from tests.factories import assert_queue_is_sound

DEADLINE = 20.0
START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

Until = Callable[..., Any]
Configure = Callable[..., None]


def until(condition: Callable[[], Any], what: str = "") -> Any:
    """Return what ``condition`` returns as soon as it is true; fail past the deadline."""
    pause, end = threading.Event(), time.monotonic() + DEADLINE
    while not (value := condition()):
        assert time.monotonic() < end, f"never came: {what or condition}"
        pause.wait(0.01)
    return value


def settled(*jobs: Any) -> list[Job]:
    """Return the jobs as they are once no worker will touch them any more."""
    ids = [job.pk for job in jobs]
    live = [state.value for state in LIVE]
    until(lambda: not Job.objects.filter(pk__in=ids, state__in=live).exists(), "settled")
    found = Job.objects.in_bulk(ids)
    return [found[id] for id in ids]


def executions(job: Job) -> list[Execution]:
    return list(Execution.objects.filter(job=job).order_by("id"))


def run(scheduler: Any, function: Any, payload: Any = None, **options: Any) -> Job:
    """Run a job of this handler to its end."""
    register_handler("seed.job", function, **options)
    job = enqueue("seed.job", payload)
    scheduler().start()
    (job,) = settled(job)
    assert_queue_is_sound()
    return job


def lose(job: Job) -> None:
    """Take a running job away from its worker, as whoever finds the lease ended does."""
    job.refresh_from_db()
    assert job.claim_id is not None
    with transaction("default") as connection:
        (row,) = executions(job)
        outcome = claims.interrupt((job.pk, row.claim_id), "worker_lost", repeats=False)
        assert claims.settle(connection, [outcome])


def nudge() -> None:
    """Have the schedulers of this process look again now, as after a change to the clock."""
    wake_here(durable_settings.NAMESPACE, "default")


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    """Forget the handlers and schedules that a test declares."""
    with handlers.preserved(), schedules.preserved():
        yield


@pytest.fixture(autouse=True)
def configure(settings: Any) -> Iterator[Configure]:
    """Set keys of DURABLE_JOBS. Wake-ups stay in the process, so that a shutdown is quick."""

    def set_keys(**keys: Any) -> None:
        settings.DURABLE_JOBS = {**settings.DURABLE_JOBS, **keys}

    settings.DURABLE_JOBS = {"LISTEN": False}
    yield set_keys
    durable_settings.reset()


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    """Let time stand still until the test moves it on."""
    clock = ManualClock(START)
    with use_clock(clock):
        yield clock


@pytest.fixture
def scheduler(transactional_db: None, configure: Configure) -> Iterator[Callable[..., Scheduler]]:
    """Make schedulers, not started; those that still work are shut down at the end."""
    made: list[Scheduler] = []

    def make(*args: Any, **options: Any) -> Scheduler:
        made.append(Scheduler(*args, **options))
        return made[-1]

    yield make
    for each in made:
        each.shutdown(grace=0)


class Gate:
    """A handler that stands still until it is let go, and tells who has come in."""

    def __init__(self) -> None:
        self.entered: list[Any] = []
        self._open = threading.Event()

    def __call__(self, n: int = 0) -> int:
        self.entered.append(n)
        assert self._open.wait(DEADLINE)
        return n

    def let_go(self) -> None:
        self._open.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.let_go()
