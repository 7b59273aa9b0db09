"""S2 create, start, stop and their options, with real workers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

import django_durable_jobs
from django_durable_jobs import JobContext, checks, schedule
from django_durable_jobs.conf import Settings
from django_durable_jobs.errors import ShutDown
from django_durable_jobs.models import Execution, Job, Leader, Schedule, TickClaim
from django_durable_jobs.worker import Scheduler
from tests.hearing import Ear

from .conftest import Configure, until

pytestmark = pytest.mark.django_db(transaction=True)

Make = Callable[..., Scheduler]


def fires(number: int) -> Schedule:
    """Return the schedule once it has fired so often."""
    return until(lambda: Schedule.objects.filter(fires__gte=number).first(), f"{number} fires")


def is_leader(scheduler: Scheduler) -> bool:
    return bool(scheduler.status()["is_leader"])


# create


def test_create_the_calls_are_importable_by_themselves() -> None:
    """changed: what the seed's facade holds are functions, and the worker's calls."""
    for name in ("schedule", "register", "status", "prune_tick_claims", "fire_now"):
        assert callable(getattr(django_durable_jobs, name))
    for name in ("start", "shutdown", "status"):
        assert callable(getattr(Scheduler, name))


def test_create_refuses_unknown_options(settings: Any) -> None:
    """changed: options of the machine are settings, so the system check refuses them."""
    settings.DURABLE_JOBS = {"TICK_RETENTON": 60}
    (error,) = checks.check_settings()
    assert (error.id, error.hint) == ("durable_jobs.E002", "Did you mean 'TICK_RETENTION'?")
    with pytest.raises(TypeError):
        Scheduler(maxJobMs=1)  # type: ignore[call-arg]


def test_option_cluster_is_always_there(scheduler: Make) -> None:
    """changed: a worker that is alone leads too, and leaves a claim of each tick."""
    schedule("seed.a", every=1, run=lambda: None, overlap="allow")
    one = scheduler()
    one.start()
    kept = fires(1)
    assert is_leader(one)
    assert Leader.objects.get().worker == one.id
    claim = TickClaim.objects.order_by("id")[0]
    assert (claim.name, claim.claimed_by) == (kept.name, one.id)


@pytest.mark.parametrize(
    ("key", "default"),
    [
        ("SCHEDULE_MAX_RUN", 600),
        ("TICK_RETENTION", timedelta(days=7)),
        ("PRUNE_INTERVAL", 60),
    ],
)
def test_option_defaults_are_the_seeds(key: str, default: Any) -> None:
    assert getattr(Settings, key).default == default


@pytest.mark.parametrize("value", ["600", -1, 0, None, True])
def test_option_max_job_ms_senseless_values_are_refused(configure: Configure, value: Any) -> None:
    """changed: the seed takes 0 for the default, and anything else as it comes."""
    configure(SCHEDULE_MAX_RUN=value)
    with pytest.raises(ImproperlyConfigured, match="SCHEDULE_MAX_RUN"):
        _ = django_durable_jobs.conf.settings.SCHEDULE_MAX_RUN  # type: ignore[attr-defined]


# start


def test_start_arms_every_schedule(scheduler: Make) -> None:
    for name in ("seed.a", "seed.b"):
        schedule(name, every=1, run=lambda: None)
    scheduler().start()
    until(lambda: Schedule.objects.filter(fires__gte=1).count() == 2, "a fire of each")


def test_start_again_fires_no_tick_twice(scheduler: Make) -> None:
    schedule("seed.a", every=1, run=lambda: None, overlap="allow")
    one = scheduler()
    assert [one.start(), one.start()] == [True, False]
    fires(3)
    one.shutdown()
    claims = TickClaim.objects.filter(outcome="fired")
    assert Job.objects.count() == claims.count() == Schedule.objects.get().fires
    assert claims.values("scheduled_at").distinct().count() == claims.count()
    assert Schedule.objects.get().tick_claim_lost == 0


# stop


def test_stop_ends_the_firing(scheduler: Make) -> None:
    schedule("seed.a", every=1, run=lambda: None, overlap="allow")
    one = scheduler()
    one.start()
    fires(1)
    one.shutdown()
    before = Schedule.objects.values().get()
    assert not is_leader(one)
    assert "leader" not in [thread.name for thread in threading.enumerate()]
    # Whoever begins after it goes on with the same grid.
    other = scheduler()
    other.start()
    kept = fires(before["fires"] + 1)
    assert (kept.next_fire - before["next_fire"]) % timedelta(seconds=1) == timedelta()
    assert kept.anchor == before["anchor"]


def test_stop_then_start_wants_a_new_one(scheduler: Make) -> None:
    """changed: one that was shut down raises; the seed's starts again."""
    one = scheduler()
    one.start()
    one.shutdown()
    with pytest.raises(ShutDown):
        one.start()
    assert scheduler().start()


# _isLeaderHere


def test_is_leader_here_is_one_of_all(scheduler: Make) -> None:
    schedule("seed.a", every=1, run=lambda: None, overlap="allow")
    two = [scheduler(), scheduler()]
    for each in two:
        each.start()
    fires(3)
    assert sorted(is_leader(each) for each in two) == [False, True]
    (leader,) = [each for each in two if is_leader(each)]
    claimed_by = set(TickClaim.objects.values_list("claimed_by", flat=True))
    assert claimed_by == {leader.id}


def test_is_leader_here_another_takes_over(scheduler: Make) -> None:
    schedule("seed.a", every=1, run=lambda: None, overlap="allow")
    first, second = scheduler(), scheduler()
    first.start()
    fires(1)
    assert is_leader(first)
    second.start()
    first.shutdown()
    until(lambda: is_leader(second), "the second one's lead")
    fires(Schedule.objects.get().fires + 1)


# The watchdog


def test_fire_once_watchdog_ends_a_run_that_hangs(scheduler: Make, configure: Configure) -> None:
    """changed: the run itself is ended, where the seed lets the next run beside it."""
    configure(SCHEDULE_MAX_RUN=0.1)
    begun: list[int] = []

    def hangs(context: JobContext) -> None:
        begun.append(1)
        until(lambda: context.should_stop or len(begun) > 1, "the watchdog")
        context.check_stop()

    schedule("seed.a", every=1, run=hangs, takes_context=True)
    with Ear() as ear:
        scheduler().start()
        until(lambda: "scheduler.task.watchdog" in ear.actions, "the watchdog's event")
        fires(2)
    event = next(each for each in ear.events if each.action == "scheduler.task.watchdog")
    assert (event.outcome, event.metadata) == ("failure", {"name": "seed.a", "max_run": 0.1})
    first = Execution.objects.order_by("id")[0]
    assert (first.state, first.interruption_reason) == ("interrupted", "timed_out")
