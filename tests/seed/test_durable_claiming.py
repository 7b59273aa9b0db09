"""S1 activeOwnerCount, isEligible, dueByFairOwner: who runs next."""

from __future__ import annotations

import threading
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from django_durable_jobs import enqueue, register_handler, wake
from django_durable_jobs.db import ManualClock
from django_durable_jobs.models import Job
from django_durable_jobs.states import State
from tests.factories import make_job, make_worker

from .conftest import Configure, Gate, nudge, settled, until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def order() -> list[Any]:
    """Register a handler that notes in which order it is called."""
    order: list[Any] = []
    register_handler("seed.job", lambda n: order.append(n))
    return order


def put(n: Any, **options: Any) -> Job:
    return enqueue("seed.job", {"n": n}, **options)


def run_in_order(scheduler: Any, *jobs: Job) -> None:
    """Run jobs one at a time."""
    scheduler(concurrency=1).start()
    settled(*jobs)


# What is due


@pytest.mark.parametrize("state", [state.value for state in State if state != State.QUEUED])
def test_due_by_fair_owner_leaves_out_what_is_not_queued(
    state: str, scheduler: Any, order: list[Any]
) -> None:
    make_job(state, type="seed.job", payload={"n": 1}, worker=make_worker())
    assert scheduler().tick() == 0
    assert order == []


def test_due_by_fair_owner_run_at_must_have_come(
    clock: ManualClock, scheduler: Any, order: list[Any]
) -> None:
    job = put(1, run_at=clock.value + timedelta(seconds=1))
    works = scheduler()
    assert works.tick() == 0
    clock.advance(1)  # to the very moment
    assert works.tick() == 1
    settled(job)


def test_due_by_fair_owner_leaves_out_types_without_a_handler(
    scheduler: Any, order: list[Any]
) -> None:
    stranger = enqueue("seed.unknown")
    assert scheduler().tick() == 0
    stranger.refresh_from_db()
    assert (stranger.state, stranger.held_reason) == (State.QUEUED, "no_handler")


def test_due_by_fair_owner_nothing_due_is_zero(scheduler: Any, order: list[Any]) -> None:
    assert scheduler().tick() == 0


# In which order


def test_due_by_fair_owner_sorts_an_owners_jobs(
    clock: ManualClock, scheduler: Any, order: list[Any]
) -> None:
    """By run_at, then created_at, then id, whatever order they were put in."""
    now = clock.value
    first, second = sorted((make(now, 0), make(now, 0)), key=lambda job: job.pk)
    for job, n in ((first, "id 1"), (second, "id 2")):
        Job.objects.filter(pk=job.pk).update(payload={"n": n})
    jobs = [
        make(now, 0, created=1, n="created later"),
        make(now, -1, created=2, n="earlier run_at"),
    ]
    run_in_order(scheduler, first, second, *jobs)
    assert order == ["earlier run_at", "id 1", "id 2", "created later"]


def make(now: Any, seconds: int, *, created: int = 0, n: Any = 0, **values: Any) -> Job:
    times = {
        "run_at": now + timedelta(seconds=seconds),
        "created_at": now - timedelta(seconds=60 - created),
    }
    return make_job(type="seed.job", payload={"n": n}, owner_id="o", **times, **values)


def test_due_by_fair_owner_priority_comes_first_within_an_owner(
    scheduler: Any, order: list[Any]
) -> None:
    """changed: the seed has no priorities."""
    jobs = [put("low", owner_id="o", priority=-1), put("none", owner_id="o")]
    jobs.append(put("high", owner_id="o", priority=1))
    run_in_order(scheduler, *jobs)
    assert order == ["high", "none", "low"]


def test_due_by_fair_owner_gives_each_owner_one_a_round(scheduler: Any, order: list[Any]) -> None:
    jobs = [put(f"{owner}{n}", owner_id=owner) for owner in "abc" for n in range(3)]
    run_in_order(scheduler, *jobs)
    assert order == [f"{owner}{n}" for n in range(3) for owner in "abc"]


def test_due_by_fair_owner_deals_rounds_until_the_slots_are_full(
    scheduler: Any, gate: Gate, configure: Configure
) -> None:
    configure(OWNER_CONCURRENCY=5)
    register_handler("seed.gate", gate)
    for owner, count in (("a", 5), ("b", 2)):
        for _ in range(count):
            enqueue("seed.gate", owner_id=owner)
    works = scheduler(concurrency=5)
    assert works.tick() == 5
    running = Job.objects.filter(state=State.RUNNING)
    assert running.filter(owner_id="a").count() == 3
    assert running.filter(owner_id="b").count() == 2
    gate.let_go()
    until(lambda: works.status()["active"] == 0)


def test_due_by_fair_owner_rotates_the_first_owner(scheduler: Any, order: list[Any]) -> None:
    """changed: the turn goes to the owner after the one served last, not one further a tick."""
    jobs = [put(f"{owner}{n}", owner_id=owner) for owner in "abc" for n in range(2)]
    works = scheduler(concurrency=1)
    seen = []
    for _ in jobs:
        assert works.tick() == 1
        until(lambda: works.status()["active"] == 0)
        seen.append(order[-1])
    assert seen == ["a0", "b0", "c0", "a1", "b1", "c1"]


def test_due_by_fair_owner_turn_survives_a_restart(scheduler: Any, order: list[Any]) -> None:
    """changed: the seed's cursor lives in the process, so every restart begins with the first."""
    for owner in "ab":
        for n in range(2):
            put(f"{owner}{n}", owner_id=owner)
    for _ in range(4):
        works = scheduler(concurrency=1)
        assert works.tick() == 1
        until(lambda works=works: works.status()["active"] == 0)
        works.shutdown()
    assert order == ["a0", "b0", "a1", "b1"]


def test_due_by_fair_owner_a_backlog_does_not_delay_another_owner(
    scheduler: Any, order: list[Any]
) -> None:
    backlog = [put(f"big{n}", owner_id="big") for n in range(30)]
    small = put("small", owner_id="small")
    run_in_order(scheduler, *backlog, small)
    assert order.index("small") <= 1


# Caps


def test_due_by_fair_owner_takes_no_more_than_global_concurrency(
    scheduler: Any, gate: Gate
) -> None:
    """changed: the seed's globalConcurrency is that of one process: `concurrency` here."""
    register_handler("seed.gate", gate)
    jobs = [enqueue("seed.gate") for _ in range(5)]
    works = scheduler(concurrency=2)
    assert works.tick() == 2
    assert works.tick() == 0  # no slot is free
    gate.let_go()
    works.start()
    settled(*jobs)


def test_due_by_fair_owner_global_concurrency_counts_the_whole_namespace(
    scheduler: Any, gate: Gate, configure: Configure
) -> None:
    """changed: the seed knows one process."""
    configure(GLOBAL_CONCURRENCY=3)
    register_handler("seed.gate", gate)
    jobs = [enqueue("seed.gate") for _ in range(5)]
    one, other = scheduler(concurrency=2), scheduler(concurrency=2)
    assert (one.tick(), other.tick()) == (2, 1)
    gate.let_go()
    one.start()
    settled(*jobs)


def test_due_by_fair_owner_takes_no_more_than_per_owner_concurrency(
    scheduler: Any, gate: Gate, configure: Configure
) -> None:
    configure(OWNER_CONCURRENCY=2)
    register_handler("seed.gate", gate)
    jobs = [enqueue("seed.gate", owner_id="o") for _ in range(4)]
    works = scheduler()
    assert works.tick() == 2
    assert works.tick() == 0
    gate.let_go()
    works.start()
    settled(*jobs)


def test_due_by_fair_owner_full_owner_leaves_slots_to_others(scheduler: Any, gate: Gate) -> None:
    register_handler("seed.gate", gate)
    jobs = [enqueue("seed.gate", owner_id=owner) for owner in ("a", "a", "a", "b")]
    works = scheduler()
    assert works.tick() == 2
    owners = Job.objects.filter(state=State.RUNNING).values_list("owner_id", flat=True)
    assert sorted(owners) == ["a", "b"]
    gate.let_go()
    works.start()
    settled(*jobs)


@pytest.mark.parametrize("owner", ["", "local-user"])
def test_due_by_fair_owner_nobody_has_no_cap(owner: str, scheduler: Any, gate: Gate) -> None:
    """changed: the seed caps its one local user like any owner."""
    register_handler("seed.gate", gate)
    jobs = [enqueue("seed.gate", owner_id=owner) for _ in range(4)]
    works = scheduler()
    assert works.tick() == 4
    gate.let_go()
    settled_by(works, jobs)


def settled_by(works: Any, jobs: list[Job]) -> None:
    works.start()
    assert {job.state for job in settled(*jobs)} == {State.COMPLETED}


def test_active_owner_count_counts_what_every_worker_holds(scheduler: Any, gate: Gate) -> None:
    """changed: the seed counts what its own process holds, which is all there is to it."""
    register_handler("seed.gate", gate)
    jobs = [enqueue("seed.gate", owner_id="o") for _ in range(2)]
    one, other = scheduler(), scheduler()
    assert (one.tick(), other.tick()) == (1, 0)
    gate.let_go()
    settled_by(other, jobs[:1])
    settled_by(one, jobs)


def test_active_owner_count_leaves_out_other_owners(scheduler: Any, gate: Gate) -> None:
    register_handler("seed.gate", gate)
    first = enqueue("seed.gate", owner_id="a")
    works = scheduler()
    assert works.tick() == 1
    second = enqueue("seed.gate", owner_id="b")
    assert works.tick() == 1
    gate.let_go()
    settled_by(works, [first, second])


# isEligible


def is_put_off(job: Job) -> bool:
    job.refresh_from_db()
    return job.held_reason == "not_eligible"


def test_is_eligible_without_can_run_is_true(scheduler: Any, order: list[Any]) -> None:
    job = put(1)
    assert scheduler().tick() == 1
    settled(job)


@pytest.mark.parametrize("answer", [False, None, 1, "yes", [True]])
def test_is_eligible_anything_but_true_means_not_now(answer: Any, scheduler: Any) -> None:
    asked = threading.Event()

    def can_run(job: Job) -> Any:
        asked.set()
        return answer

    register_handler("seed.gated", lambda: None, can_run=can_run)
    job = enqueue("seed.gated")
    scheduler().start()
    assert asked.wait(10)
    until(lambda: is_put_off(job))
    job.refresh_from_db()
    assert (job.state, job.attempts, job.latest_execution) == (State.QUEUED, 0, None)


def test_is_eligible_that_raises_means_not_now(scheduler: Any, caplog: Any) -> None:
    """changed: the exception is logged; the seed swallows it."""

    def can_run(job: Job) -> bool:
        raise ZeroDivisionError

    register_handler("seed.gated", lambda: None, can_run=can_run)
    job = enqueue("seed.gated")
    scheduler().start()
    until(lambda: is_put_off(job))
    assert any(record.exc_info for record in caplog.records)


def test_is_eligible_true_lets_the_job_run(scheduler: Any) -> None:
    register_handler("seed.gated", lambda: None, can_run=lambda job: True)
    job = enqueue("seed.gated")
    scheduler().start()
    (job,) = settled(job)
    assert job.state == State.COMPLETED


def test_is_eligible_is_shown_a_copy(scheduler: Any) -> None:
    def can_run(job: Job) -> bool:
        job.payload["n"] = 2
        job.owner_id = "other"
        return True

    seen: list[int] = []
    register_handler("seed.gated", lambda n: seen.append(n), can_run=can_run)
    job = enqueue("seed.gated", {"n": 1}, owner_id="o")
    scheduler().start()
    (job,) = settled(job)
    assert (job.payload, job.owner_id, seen) == ({"n": 1}, "o", [1])


def test_is_eligible_no_holds_nobody_else_up(scheduler: Any, order: list[Any]) -> None:
    register_handler("seed.gated", lambda: None, can_run=lambda job: False)
    for _ in range(20):
        enqueue("seed.gated", owner_id="o", priority=100)
    behind = put(1, owner_id="o")
    scheduler(concurrency=1).start()
    settled(behind)
    assert order == [1]


def test_is_eligible_is_asked_again_after_a_growing_pause(
    clock: ManualClock, scheduler: Any
) -> None:
    """changed: the seed asks at every tick, and ticks again at once after a refusal."""
    asked: list[Any] = []

    def can_run(job: Job) -> bool:
        asked.append(clock.value)
        return len(asked) > 3

    register_handler("seed.gated", lambda: None, can_run=can_run)
    job = enqueue("seed.gated")
    scheduler().start()
    for _ in range(3):
        count = len(asked)
        until(lambda: is_put_off(job) and job.claimable_at > clock.value)
        assert len(asked) == max(count, 1)
        clock.value = job.claimable_at
        nudge()  # its own timer goes by real time
        until(lambda count=count: len(asked) > max(count, 1))
    settled(job)
    pauses = [(later - now).total_seconds() for now, later in pairwise(asked)]
    assert pauses[:3] == [1.0, 2.0, 4.0]


def test_is_eligible_is_asked_again_at_once_after_a_wake(scheduler: Any) -> None:
    may = threading.Event()
    register_handler("seed.gated", lambda: None, can_run=lambda job: may.is_set())
    job = enqueue("seed.gated")
    scheduler().start()
    until(lambda: is_put_off(job))
    may.set()
    wake()
    (job,) = settled(job)
    assert job.state == State.COMPLETED
