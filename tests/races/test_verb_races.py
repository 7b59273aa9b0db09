"""Two calls at once: exactly one wins, the other is told, nothing is half done."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection
from django.db.transaction import atomic

from django_durable_jobs import cancel, enqueue, enqueue_many, replace_queued, requeue
from django_durable_jobs.claims import ClaimRequest, claim, settle
from django_durable_jobs.db import Outcome, is_transient, transaction
from django_durable_jobs.errors import (
    DuplicateJob,
    IdempotencyConflict,
    NotQueued,
    WrongState,
)
from django_durable_jobs.models import Job, QueueEntry
from django_durable_jobs.states import State
from tests.factories import assert_queue_is_sound, make_job
from tests.racing import meanwhile, race

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.races]

ROUNDS = 8


def claim_all() -> list[uuid.UUID]:
    request = ClaimRequest(
        namespace="default",
        worker=uuid.uuid4(),
        slots=10,
        types=frozenset({"x", "y"}),
        lease=30.0,
    )
    with transaction("default") as own:
        return [taking.job_id for taking in claim(own, request).takings]


@pytest.fixture(params=["as set up", "deferred"], autouse=True)
def host(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run on SQLite with the settings of a project that has never heard of IMMEDIATE, too."""
    if request.param == "as set up":
        yield
        return
    if connection.vendor != "sqlite":
        pytest.skip("only SQLite begins its transactions deferred")
    options = connection.settings_dict["OPTIONS"]
    before = dict(options)
    connection.close()
    options.pop("transaction_mode")
    yield
    connection.close()
    options.update(before)


# Keys


@pytest.mark.parametrize("count", [2, 8])
def test_racing_for_one_key_makes_one_job_and_all_get_it(count: int) -> None:
    for number in range(ROUNDS):
        values = {"idempotency_key": f"k{number}", "owner_id": "acme"}
        results = race(*[lambda values=values: enqueue("x", {"a": 1}, **values)] * count)
        assert all(isinstance(result, Job) for result in results), results
        assert len({result.pk for result in results}) == 1
        assert [result.created for result in results].count(True) == 1
        assert {result.payload["a"] for result in results} == {1}
    assert Job.objects.count() == ROUNDS
    assert_queue_is_sound()


def test_racing_for_one_key_with_other_data_tells_the_losers() -> None:
    def runner(number: int, key: str) -> Callable[[], Job]:
        return lambda: enqueue("x", {"n": number}, idempotency_key=key)

    for key in ("a", "b", "c"):
        results = race(*[runner(number, key) for number in range(8)])
        made = [result for result in results if isinstance(result, Job)]
        lost = [result for result in results if isinstance(result, IdempotencyConflict)]
        assert (len(made), len(lost)) == (1, 7), results
        assert {error.job_id for error in lost} == {made[0].pk}
    assert Job.objects.count() == 3
    assert_queue_is_sound()


@pytest.mark.parametrize("key", [None, "k"])
def test_racing_for_one_id_makes_one_job(key: str | None) -> None:
    for number in range(ROUNDS):
        id = uuid.UUID(int=number + 1)
        given = {"id": id} | ({"idempotency_key": f"{key}{number}"} if key else {})
        results = race(*[lambda given=given: enqueue("x", **given)] * 4)
        made = [result for result in results if isinstance(result, Job)]
        assert [result.created for result in made].count(True) == 1, results
        assert {result.pk for result in made} == {id}
        others = [result for result in results if not isinstance(result, Job)]
        assert all(isinstance(result, DuplicateJob) for result in others), results
        assert len(others) == (0 if key else 3)
    assert_queue_is_sound()


def test_racing_bulks_with_the_same_keys_in_any_order_do_not_deadlock() -> None:
    jobs = [{"type": "x", "payload": [n], "idempotency_key": f"k{n}"} for n in range(50)]
    results = race(*[lambda: enqueue_many(jobs), lambda: enqueue_many(jobs[::-1])] * 2, timeout=60)
    assert all(isinstance(result, list) for result in results), results
    assert results[0] == results[2] == results[1][::-1] == results[3][::-1]
    assert sum(job.created for result in results for job in result) == 50
    assert_queue_is_sound()


@pytest.mark.parametrize("commits", [True, False])
def test_the_second_waits_for_the_first_that_has_not_committed(commits: bool) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def first() -> Job:
        with transaction("default"):
            made = enqueue("x", {"a": 1}, idempotency_key="k")
            inside.set()
            assert go_on.wait(30)
            if not commits:
                raise ZeroDivisionError
        return made

    one = meanwhile(first)
    assert inside.wait(30)
    two = meanwhile(lambda: enqueue("x", {"a": 1}, idempotency_key="k"))
    time.sleep(0.3)
    assert two.running()
    go_on.set()
    winner, loser = one(), two()
    assert isinstance(loser, Job), loser
    if commits:
        assert (loser, loser.created) == (winner, False)
    else:
        assert isinstance(winner, ZeroDivisionError)
        assert loser.created
    assert Job.objects.get() == loser
    assert_queue_is_sound()


def test_the_outer_transaction_of_the_loser_stays_usable() -> None:
    def inside(number: int) -> tuple[bool, int]:
        # As SQLite's own transactions of the machinery begin, so that the race is for the key.
        with transaction("default"):
            made = enqueue("x", idempotency_key="k")
            time.sleep(0.02)
            later = enqueue("y", {"n": number})
            return made.created, Job.objects.filter(pk=later.pk).count()

    results = race(*[lambda n=n: inside(n) for n in range(4)])
    if connection.vendor == "mysql":
        # InnoDB guards the gaps around a key, too, and may take the caller's transaction for it.
        results = [each for each in results if not is_transient(_error(each))]
    else:
        assert len(results) == 4
    assert sorted(results) == [(False, 1)] * (len(results) - 1) + [(True, 1)]
    assert Job.objects.count() == 1 + len(results)
    assert_queue_is_sound()


def _error(result: Any) -> BaseException | None:
    return result if isinstance(result, BaseException) else None


def test_a_crowd_that_enqueues_at_once_is_never_told_that_the_database_is_locked() -> None:
    def runner(number: int) -> Callable[[], list[Job]]:
        return lambda: [enqueue("x", {"n": n}, owner_id=f"o{number}") for n in range(15)]

    results = race(*[runner(number) for number in range(8)])
    assert all(isinstance(result, list) for result in results), results
    assert Job.objects.count() == 120
    assert_queue_is_sound()


# Before the claim against the claim, and against one another


def test_cancelling_twice_at_once_succeeds_once() -> None:
    for _ in range(ROUNDS):
        queued = enqueue("x")
        results = race(*[lambda queued=queued: cancel(queued.pk, "why")] * 2)
        errors = [result for result in results if isinstance(result, Exception)]
        assert [type(error) for error in errors] == [NotQueued], results
        assert errors[0].state == State.CANCELLED
    assert_queue_is_sound()


def test_cancel_against_claim_has_one_winner() -> None:
    won: set[str] = set()
    for _ in range(ROUNDS):
        queued = enqueue("x")
        cancelled, taken = race(lambda queued=queued: cancel(queued.pk), claim_all)
        queued.refresh_from_db()
        if isinstance(cancelled, Job):
            assert (taken, queued.state) == ([], State.CANCELLED)
        else:
            assert isinstance(cancelled, NotQueued), cancelled
            assert (taken, queued.state) == ([queued.pk], State.RUNNING)
        won.add(queued.state)
        assert_queue_is_sound()
        Job.objects.all().delete()


@pytest.mark.parametrize("verb", ["cancel", "replace"])
def test_what_was_claimed_and_not_committed_is_waited_for(verb: str) -> None:
    queued = enqueue("x", {"old": 1})
    claimed, go_on = threading.Event(), threading.Event()
    request = ClaimRequest(
        namespace="default", worker=uuid.uuid4(), slots=1, types=frozenset({"x"}), lease=30.0
    )

    def claiming() -> int:
        with transaction("default") as own:
            count = len(claim(own, request).takings)
            claimed.set()
            assert go_on.wait(30)
            return count

    one = meanwhile(claiming)
    assert claimed.wait(30)
    change: Callable[[], Any] = (
        (lambda: cancel(queued.pk))
        if verb == "cancel"
        else (lambda: replace_queued(queued.pk, payload={"new": 1}))
    )
    two = meanwhile(change)
    time.sleep(0.2)
    go_on.set()
    assert one() == 1
    assert isinstance(two(), NotQueued)
    queued.refresh_from_db()
    assert (queued.state, queued.payload) == (State.RUNNING, {"old": 1})
    assert_queue_is_sound()


def test_a_job_that_is_being_replaced_is_passed_over_or_claimed_as_new() -> None:
    queued, other = enqueue("x", {"old": 1}), enqueue("x", owner_id="other")
    replaced, go_on = threading.Event(), threading.Event()

    def replacing() -> Job | None:
        with transaction("default"):
            found = replace_queued(queued.pk, payload={"new": 1})
            replaced.set()
            assert go_on.wait(30)
            return found

    one = meanwhile(replacing)
    assert replaced.wait(30)
    two = meanwhile(claim_all)
    time.sleep(0.3)
    go_on.set()
    assert isinstance(one(), Job)
    taken = two()
    assert other.pk in taken
    queued.refresh_from_db()
    assert queued.payload == {"new": 1}
    assert (queued.pk in taken) == (queued.state == State.RUNNING)
    assert claim_all() == ([] if queued.pk in taken else [queued.pk])
    assert_queue_is_sound()


def test_replace_against_claim_never_mixes_old_and_new() -> None:
    for _ in range(ROUNDS):
        queued = enqueue("x", {"v": "old"}, priority=1)
        replaced, taken = race(
            lambda queued=queued: replace_queued(queued.pk, payload={"v": "new"}, priority=2),
            claim_all,
        )
        queued.refresh_from_db()
        if isinstance(replaced, Job):
            assert (queued.payload, queued.priority) == ({"v": "new"}, 2)
            assert queued.state == (State.RUNNING if taken else State.QUEUED)
        else:
            assert isinstance(replaced, NotQueued), replaced
            assert (queued.payload, queued.priority) == ({"v": "old"}, 1)
            assert taken == [queued.pk]
        assert_queue_is_sound()
        Job.objects.all().delete()
        QueueEntry.objects.all().delete()


def test_replacing_twice_at_once_applies_both_or_either_wholly() -> None:
    for _ in range(ROUNDS):
        queued = enqueue("x")
        results = race(
            lambda queued=queued: replace_queued(queued.pk, payload={"a": 1}, owner_id="a"),
            lambda queued=queued: replace_queued(queued.pk, payload={"b": 1}, owner_id="b"),
        )
        assert all(isinstance(result, Job) for result in results), results
        queued.refresh_from_db()
        assert (queued.payload, queued.owner_id) in [({"a": 1}, "a"), ({"b": 1}, "b")]
        assert_queue_is_sound()


@pytest.mark.parametrize("state", [State.FAILED, State.INTERRUPTED, State.CANCELLED])
def test_requeueing_twice_at_once_succeeds_once(state: State) -> None:
    for _ in range(ROUNDS // 2):
        settled = make_job(state, type="x")
        results = race(*[lambda settled=settled: requeue(settled.pk)] * 2)
        errors = [result for result in results if isinstance(result, Exception)]
        assert [type(error) for error in errors] == [WrongState], results
        assert errors[0].state == State.QUEUED
        settled.refresh_from_db()
        assert settled.max_attempts == (None if state == State.CANCELLED else 2)
    assert_queue_is_sound()


def test_requeue_against_enqueue_of_its_key_leaves_the_key_to_one() -> None:
    for number in range(ROUNDS):
        values = {"idempotency_key": f"k{number}", "key_scope": "live"}
        settled = make_job(State.FAILED, type="x", **values)
        again, made = race(
            lambda settled=settled: requeue(settled.pk),
            lambda values=values: enqueue("x", **values),
        )
        assert isinstance(made, Job), made
        if isinstance(again, Job):
            assert made == settled
        else:
            assert isinstance(again, IdempotencyConflict), again
            assert again.job_id == made.pk != settled.pk
    assert_queue_is_sound()


def test_a_claim_that_came_first_inside_one_transaction_can_be_rolled_back() -> None:
    queued = enqueue("x")
    block = atomic()
    block.__enter__()
    assert cancel(queued.pk) is not None
    block.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert claim_all() == [queued.pk]
    assert_queue_is_sound()


@pytest.mark.parametrize("queued_by", ["retry", "requeue"])
def test_a_cancel_that_meets_a_job_on_its_way_back_leaves_no_entry_behind(queued_by: str) -> None:
    """The job is queued again between the cancel's look for its entry and its move."""
    state = State.RUNNING if queued_by == "retry" else State.FAILED
    settled = make_job(state, type="x")
    written, go_on = threading.Event(), threading.Event()

    def queueing() -> None:
        with transaction("default") as own:
            if queued_by == "requeue":
                requeue(settled.pk)
            else:
                assert settled.claim_id is not None
                outcome = Outcome(job_id=settled.pk, claim_id=settled.claim_id, edge="retry")
                settle(own, [outcome])
            written.set()
            assert go_on.wait(30)

    one = meanwhile(queueing)
    assert written.wait(30)
    two = meanwhile(lambda: cancel(settled.pk))
    time.sleep(0.3)
    go_on.set()
    assert one() is None
    result = two()
    settled.refresh_from_db()
    if isinstance(result, Job):
        assert settled.state == State.CANCELLED
    else:
        assert isinstance(result, NotQueued), result
        assert settled.state == State.QUEUED
    assert_queue_is_sound()


def test_cancel_against_replace_leaves_no_entry_behind() -> None:
    for _ in range(ROUNDS):
        queued = enqueue("x")
        replaced, cancelled = race(
            lambda queued=queued: replace_queued(queued.pk, priority=5, run_at=None),
            lambda queued=queued: cancel(queued.pk),
        )
        assert isinstance(cancelled, Job), cancelled
        assert isinstance(replaced, (Job, NotQueued)), replaced
        queued.refresh_from_db()
        assert queued.state == State.CANCELLED
        assert_queue_is_sound()
