"""Many workers at once: each job is claimed once, and no cap is exceeded, not for a moment."""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, connections

from django_durable_jobs import claims
from django_durable_jobs.db import (
    ManualClock,
    Outcome,
    is_transient,
    own_connections,
    retrying,
    statements_for,
    transaction,
    use_clock,
)
from django_durable_jobs.models import Execution, Job, QueueEntry
from django_durable_jobs.states import SETTLED, State
from tests import crowd
from tests.claiming import columns, outcome, request
from tests.databases import subprocess_environment
from tests.factories import assert_queue_is_sound, make_job

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.races]


def together(*parts: Callable[[], Any]) -> list[Any]:
    """Run the parts in threads that start at one moment, each on a connection of its own."""
    barrier = threading.Barrier(len(parts))
    results: list[Any] = [None] * len(parts)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            with own_connections("default") as own:
                own.ensure_connection()
                barrier.wait(30)
                results[number] = parts[number]()
        except BaseException as error:
            errors.append(error)
            barrier.abort()
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


class Tally:
    """Count who holds how much, between each claim's commit and its settlement's beginning.

    Never more than the database counts as active, so that one too many here is one too many
    there, however short it was.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.held: Counter[str] = Counter()
        self.most_of_one = self.most = 0

    def add(self, owners: Sequence[str], sign: int) -> None:
        with self.lock:
            for owner in owners:
                self.held[owner] += sign
            self.most_of_one = max(self.most_of_one, *self.held.values(), 0)
            self.most = max(self.most, self.held.total())


def work(tally: Tally, done: Callable[[], bool], **wanted: Any) -> None:
    """Claim and settle in turns, as a worker whose handlers take no time, until all is done."""
    worker = uuid.uuid4()

    def claim() -> claims.ClaimResult:
        with transaction("default") as own:
            return claims.claim(own, request(worker=worker, **wanted))

    while not done():
        takings = retrying(claim).takings
        tally.add([taking.owner_id for taking in takings], 1)
        outcomes = [outcome(taking) for taking in takings]

        def settle(outcomes: list[Outcome] = outcomes) -> set[uuid.UUID]:
            with transaction("default") as own:
                return claims.settle(own, outcomes)

        tally.add([taking.owner_id for taking in takings], -1)
        if outcomes:
            assert len(retrying(settle)) == len(outcomes)


def all_settled() -> bool:
    return not QueueEntry.objects.exists()


def assert_each_ran_once(count: int) -> None:
    assert Job.objects.filter(state="completed", attempts=1).count() == count
    assert Execution.objects.filter(state="completed").count() == count
    assert Execution.objects.values("job_id").distinct().count() == count
    assert_queue_is_sound()


def test_one_owner_never_has_more_than_its_cap() -> None:
    crowd.add_jobs(200, owners=1, low=1)
    tally = Tally()
    together(*[lambda: work(tally, all_settled, slots=5, owner_cap=1) for _ in range(6)])
    assert tally.most_of_one == 1
    assert_each_ran_once(200)


def test_neither_owners_nor_the_namespace_have_more_than_their_caps() -> None:
    crowd.add_jobs(500, owners=50, low=1)
    tally = Tally()
    together(
        *[lambda: work(tally, all_settled, slots=4, owner_cap=2, global_cap=10) for _ in range(6)]
    )
    assert tally.most_of_one <= 2
    assert tally.most <= 10
    assert_each_ran_once(500)


@pytest.mark.processes
def test_processes_claim_each_job_once() -> None:
    crowd.add_jobs(400, owners=20, low=1)
    program = (
        "import django; django.setup()\n"
        "from tests.races.test_claim_races import Tally, all_settled, work\n"
        "from django_durable_jobs.db import own_connections\n"
        "with own_connections('default'):\n"
        "    work(Tally(), all_settled, slots=5, owner_cap=3)\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program], env=subprocess_environment())
        for _ in range(3)
    ]
    assert [process.wait(100) for process in processes] == [0, 0, 0]
    assert_each_ran_once(400)


# Two parties, one row


@pytest.mark.parametrize("round_number", range(5))
def test_a_cancellation_and_a_claim_of_one_job_have_one_winner(round_number: int) -> None:
    from django_durable_jobs import cancel, errors

    job = make_job()

    def cancelled() -> bool:
        try:
            return retrying(lambda: cancel(job.pk)) is not None
        except errors.NotQueued:
            return False

    def claimed() -> bool:
        def claim() -> claims.ClaimResult:
            with transaction("default") as own:
                return claims.claim(own, request())

        return bool(retrying(claim).takings)

    won = together(cancelled, claimed)
    # The claim passes over what is being cancelled: it never loses and takes nonetheless.
    assert won.count(True) == 1
    assert columns(job)["state"] == ("cancelled" if won[0] else "running")
    assert_queue_is_sound()


@pytest.mark.parametrize("round_number", range(5))
def test_a_settlement_and_a_reaper_of_one_claim_have_one_winner(round_number: int) -> None:
    now = datetime.now(UTC)
    with use_clock(ManualClock(now)):
        jobs = [make_job(State.RUNNING, owner_id=str(n)) for n in range(20)]
        Execution.objects.update(lease_expires_at=now - timedelta(seconds=1))

        def settle() -> set[uuid.UUID]:
            with transaction("default") as own:
                return claims.settle(own, [outcome(job) for job in jobs])

        def reap() -> set[uuid.UUID]:
            with transaction("default") as own:
                done = claims.expire(own, "default", requeue_unstarted=False)
                return {o.claim_id for o in done}

        settled, *reaped = together(
            lambda: retrying(settle), lambda: retrying(reap), lambda: retrying(reap)
        )
    everything = [claim_id for part in (settled, *reaped) for claim_id in part]
    assert Counter(everything) == Counter(job.claim_id for job in jobs)
    for job in jobs:
        ended = "completed" if job.claim_id in settled else "interrupted"
        assert columns(job)["state"] == ended
    assert {job.state for job in Job.objects.all()} <= set(SETTLED)


def test_two_renewals_and_a_settlement_do_not_wait_for_each_other_for_ever() -> None:
    jobs = [make_job(State.RUNNING) for _ in range(30)]
    held = [(job.pk, job.claim_id) for job in jobs]

    def renew() -> set[uuid.UUID]:
        with transaction("default") as own:
            return statements_for(own).renew(held, lease=30)

    def settle() -> set[uuid.UUID]:
        with transaction("default") as own:
            return claims.settle(own, [outcome(job) for job in reversed(jobs)])

    first, second, settled = together(
        lambda: retrying(renew), lambda: retrying(renew), lambda: retrying(settle)
    )
    everything = {claim_id for _, claim_id in held}
    assert settled == everything
    assert first <= everything
    assert second <= everything


# Real trouble, as the database reports it


@pytest.mark.skipif("connection.vendor == 'sqlite'", reason="SQLite has one lock")
def test_a_deadlock_is_transient_and_passes_when_tried_again() -> None:
    first, second = make_job(), make_job()
    met = threading.Barrier(2, timeout=30)
    tries: Counter[str] = Counter()

    def cross(name: str, one: Job, other: Job) -> Callable[[], None]:
        def update() -> None:
            tries[name] += 1
            with transaction("default"):
                Job.objects.filter(pk=one.pk).update(attempts=1)
                if tries[name] == 1:
                    met.wait()
                Job.objects.filter(pk=other.pk).update(attempts=1)

        return lambda: retrying(update)

    together(cross("a", first, second), cross("b", second, first))
    assert tries.total() == 3


@pytest.mark.skipif("connection.vendor == 'sqlite'", reason="it locks no rows, but the file")
def test_a_lock_timeout_is_transient() -> None:
    job = make_job()
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction("default"):
            Job.objects.select_for_update().get(pk=job.pk)
            held.set()
            over.wait(30)

    def wait() -> BaseException | None:
        held.wait(30)
        try:
            with transaction("default") as own, own.cursor() as cursor:
                cursor.execute(
                    "SET LOCAL lock_timeout = '10ms'"
                    if own.vendor == "postgresql"
                    else "SET innodb_lock_wait_timeout = 1"
                )
                Job.objects.filter(pk=job.pk).update(attempts=1)
        except Exception as error:
            return error
        finally:
            over.set()
        return None

    _, error = together(hold, wait)
    assert is_transient(error)


@pytest.mark.skipif("connection.vendor != 'sqlite'", reason="SQLite's one lock")
def test_a_busy_database_is_transient() -> None:
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction("default"):
            make_job()
            held.set()
            over.wait(30)

    def write() -> BaseException | None:
        held.wait(30)
        with connections["default"].cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout = 1")
        try:
            with transaction("default"):
                make_job()
        except Exception as error:
            return error
        finally:
            over.set()
        return None

    _, error = together(hold, write)
    assert is_transient(error)
    assert connection.vendor == "sqlite"
