"""Retention: which jobs go, what goes with them, how much at a time, and races for them."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.db.transaction import set_rollback
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_durable_jobs import aprune_jobs, enqueue, prune_jobs, requeue, resolve, retention
from django_durable_jobs.db import ManualClock, transaction, use_clock
from django_durable_jobs.errors import InvalidJob, JobDoesNotExist, WrongState
from django_durable_jobs.ids import first_uuid7_of, uuid7
from django_durable_jobs.models import Execution, Job, QueueEntry, Schedule, TickClaim
from django_durable_jobs.retention import Pruner
from django_durable_jobs.states import SETTLED, State
from tests.claiming import digest
from tests.factories import assert_queue_is_sound, make_execution, make_job, now
from tests.racing import meanwhile, race

pytestmark = pytest.mark.django_db(transaction=True)

DAY = timedelta(days=1)


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    clock = ManualClock(now())
    with use_clock(clock):
        yield clock


def make_old(state: str = State.COMPLETED, *, days: float = 31, **values: Any) -> Job:
    """Make a job that ended so many days ago; one that has not ended was made then."""
    then = now() - timedelta(days=days)
    id = uuid.UUID(int=first_uuid7_of(then).int | uuid7().int & (1 << 62) - 1)
    ended = {"finished_at": then} if state in SETTLED else {}
    return make_job(state, **({"id": id, "created_at": then, **ended} | values))


def make_schedule(name: str, last_job: Job | None) -> Schedule:
    moment = now()
    return Schedule.objects.create(
        namespace="default",
        name=name,
        kind="every",
        when="every day",
        timezone="UTC",
        rule="",
        declared_at=moment,
        last_job=last_job,
    )


def ids() -> set[uuid.UUID]:
    return set(Job.objects.values_list("pk", flat=True))


# Which go


@pytest.mark.parametrize("state", State)
def test_only_jobs_that_have_ended_go(state: State) -> None:
    job = make_old(state)
    assert prune_jobs(0) == (1 if state in SETTLED else 0)
    assert ids() == (set() if state in SETTLED else {job.pk})
    assert_queue_is_sound()


def test_the_setting_says_how_old_they_must_be() -> None:
    old, young = make_old(days=31), make_old(days=29)
    assert prune_jobs() == 1
    assert ids() == {young.pk}
    assert old.pk not in ids()


@override_settings(DURABLE_JOBS={"JOB_RETENTION": None})
def test_none_keeps_all_unless_an_age_is_given() -> None:
    make_old(days=10_000)
    with CaptureQueriesContext(connection) as queries:
        assert prune_jobs() == 0
    assert len(queries) == 0
    assert prune_jobs(DAY) == 1


def test_a_job_that_ended_just_so_long_ago_stays(clock: ManualClock) -> None:
    """Judged by the database's clock, for which another one stands in here."""
    job = make_job(State.FAILED, finished_at=clock.value)
    clock.advance(3_600)
    assert prune_jobs(3_600) == 0
    clock.advance(0.001)
    assert prune_jobs(3_600) == 1
    assert job.pk not in ids()


def test_when_a_job_was_made_does_not_matter() -> None:
    """A job that was put in long ago and ended today is as new as one put in today."""
    make_old(days=90, finished_at=now())
    assert prune_jobs() == 0
    make_job(State.COMPLETED, id=uuid.uuid4(), finished_at=now() - 31 * DAY)
    assert prune_jobs() == 1


def test_other_namespaces_keep_theirs() -> None:
    make_old(namespace="other")
    make_old()
    assert prune_jobs() == 1
    assert prune_jobs(namespace="nobody") == 0
    assert prune_jobs(namespace="other") == 1


def test_a_schedules_last_run_stays() -> None:
    last, before = make_old(), make_old()
    schedule = make_schedule("nightly", last)
    make_schedule("never", None)
    assert prune_jobs() == 1
    assert ids() == {last.pk}
    assert last.executions.count() == 1
    Schedule.objects.filter(pk=schedule.pk).update(last_job=make_job(State.QUEUED))
    assert prune_jobs() == 1
    assert before.pk not in ids()


@pytest.mark.parametrize("age", [-1, float("nan"), float("inf"), "30 days", True])
def test_a_senseless_age_is_refused(age: Any) -> None:
    with pytest.raises(ValueError, match=r"older_than .*accepted: None, or a timedelta"):
        prune_jobs(age)


def test_a_senseless_namespace_is_refused() -> None:
    with pytest.raises(InvalidJob, match="namespace"):
        prune_jobs(namespace=" ")


Rows = list[tuple[State, float, bool, str, bool, int]]
ROWS = st.lists(
    st.tuples(
        st.sampled_from(list(State)),
        st.floats(0, 60, allow_nan=False).filter(lambda days: abs(days - 30) > 0.01),
        st.booleans(),  # an id that tells its time, or a random one
        st.sampled_from(["default", "other"]),
        st.booleans(),  # a schedule's last run
        st.integers(0, 2),  # attempts before the last
    ),
    max_size=25,
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=ROWS, batch=st.integers(1, 4), stretch=st.integers(4, 9), little=st.booleans())
def test_whatever_the_rows_exactly_the_old_ones_go(
    rows: Rows, batch: int, stretch: int, little: bool
) -> None:
    """``little``: by a worker, little by little, rather than by the call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retention, "BATCH", batch)
        patch.setattr(retention, "STRETCH", stretch)
        go, stay, attempts = set(), set(), {}
        for number, (state, days, timed, namespace, is_last, before) in enumerate(rows):
            given_id = {} if timed else {"id": uuid.uuid4()}
            job = make_old(state, days=days, namespace=namespace, **given_id)
            for _ in range(before):
                make_execution(job, "failed")
            attempts[job.pk] = job.executions.count()
            if is_last:
                make_schedule(f"schedule {number}", job)
            old = state in SETTLED and days > 30 and namespace == "default" and not is_last
            (go if old else stay).add(job.pk)
        if little:
            time = iter(range(0, 10_000_000, 61))
            pruner = Pruner("default", now=lambda: next(time))
            for _ in range(60):
                pruner.step(connection)
        else:
            assert prune_jobs() == len(go)
        assert ids() == stay
        left = dict.fromkeys(stay, 0)
        for job_id in Execution.objects.values_list("job_id", flat=True):
            left[job_id] += 1
        assert left == {pk: attempts[pk] for pk in stay}
        assert_queue_is_sound()
        for model in (Schedule, Execution, QueueEntry, Job):
            model.objects.all().delete()


# What goes with them


def test_executions_go_with_their_job_and_nobody_elses() -> None:
    gone, kept = make_old(State.FAILED), make_old(State.FAILED, days=1)
    for job in (gone, kept):
        make_execution(job, "released")
    assert prune_jobs() == 1
    assert set(Execution.objects.values_list("job_id", flat=True)) == {kept.pk}
    assert Execution.objects.count() == 2


def test_the_idempotency_key_is_free_again() -> None:
    old = make_old(idempotency_key="invoice-7")
    assert prune_jobs() == 1
    job = enqueue("test.job", idempotency_key="invoice-7")
    assert job.created
    assert job.pk != old.pk


def test_a_tick_stays_and_forgets_its_job() -> None:
    gone, kept = make_old(), make_old(days=1)
    for number, job in enumerate((gone, kept)):
        TickClaim.objects.create(
            namespace="default",
            name=f"tick {number}",
            scheduled_at=now(),
            claimed_at=now(),
            job=job,
            outcome="fired",
        )
    assert prune_jobs() == 1
    assert list(TickClaim.objects.order_by("name").values_list("job_id", flat=True)) == [
        None,
        kept.pk,
    ]


def test_the_async_twin_does_the_same() -> None:
    make_old()
    assert async_to_sync(aprune_jobs)(older_than=DAY) == 1


# How much at a time


def test_large_tables_are_pruned_a_batch_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH", 10)
    for _ in range(35):
        make_old()
    with CaptureQueriesContext(connection) as queries:
        assert prune_jobs() == 35
    deletions = [
        q["sql"] for q in queries if q["sql"].startswith("DELETE FROM django_durable_jobs_job")
    ]
    assert len(deletions) == 4


def test_nothing_to_do_is_only_read() -> None:
    for state in State:
        make_job(state)
    before = digest()
    with CaptureQueriesContext(connection) as queries:
        assert prune_jobs() == 0
    assert len(queries) == 2
    assert all(query["sql"].startswith("SELECT") for query in queries)
    assert digest() == before


def test_no_row_is_loaded_into_python() -> None:
    """Payloads may be large, and a row edited by hand may be one that cannot be loaded."""
    make_old(payload={"secret": "x" * 10_000})
    with CaptureQueriesContext(connection) as queries:
        assert prune_jobs() == 1
    assert not any("payload" in query["sql"] or "traceback" in query["sql"] for query in queries)


def test_inside_a_transaction_of_the_callers_it_is_rolled_back_with_it() -> None:
    job = make_old()
    with transaction("default"):
        assert prune_jobs() == 1
        set_rollback(True)
    assert ids() == {job.pk}
    assert job.executions.count() == 1


# Little by little


class Watch:
    """A monotonic clock that is told the time."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


def test_a_worker_prunes_once_an_interval_and_on_while_there_is_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retention, "BATCH", 10)
    watch = Watch()
    pruner = Pruner("default", now=watch)
    for _ in range(25):
        make_old()
    left = []
    while pruner.step(connection):
        left.append(Job.objects.count())
    assert left == [15, 5]
    assert Job.objects.count() == 0
    make_old()
    assert not pruner.step(connection)
    watch.seconds += 59
    assert not pruner.step(connection)
    assert Job.objects.count() == 1
    watch.seconds += 1
    assert not pruner.step(connection)
    assert Job.objects.count() == 0


def test_a_step_that_fails_is_not_taken_again_before_the_interval_has_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch, tries = Watch(), []

    def fail(*args: Any, **kwargs: Any) -> Any:
        tries.append(watch.seconds)
        raise RuntimeError

    pruner = Pruner("default", now=watch)
    monkeypatch.setattr(retention, "_step", fail)
    for seconds in (0, 5, 54, 1):
        watch.seconds += seconds
        with contextlib.suppress(RuntimeError):
            pruner.step(connection)
    assert tries == [1_000, 1_060]


def test_jobs_that_wait_for_long_do_not_keep_it_from_those_behind_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are old by their ids, and are walked past once, not at every step."""
    monkeypatch.setattr(retention, "STRETCH", 5)
    watch = Watch()
    for number in range(20):
        make_old(State.QUEUED, days=90 - number, run_at=now() + 300 * DAY)
    last = make_old()
    pruner = Pruner("default", now=watch)
    for _ in range(5):
        assert last.pk in ids()
        pruner.step(connection)
        watch.seconds += 60
    assert last.pk not in ids()
    assert Job.objects.count() == 20


@override_settings(DURABLE_JOBS={"JOB_RETENTION": None})
def test_a_worker_that_keeps_all_asks_nothing() -> None:
    make_old()
    with CaptureQueriesContext(connection) as queries:
        assert not Pruner("default").step(connection)
    assert len(queries) == 0


# Races


def test_several_prune_at_once_and_each_job_is_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retention, "BATCH", 7)
    for _ in range(60):
        make_old()
    kept = make_old(days=1)
    results = race(*[prune_jobs] * 4)
    assert all(isinstance(result, int) for result in results), results
    # What one of them held the others left alone.
    assert sum(results) == 60 - (Job.objects.count() - 1)
    assert prune_jobs() == Job.objects.count() - 1 or ids() == {kept.pk}
    assert ids() == {kept.pk}
    assert set(Execution.objects.values_list("job_id", flat=True)) == {kept.pk}


OPERATORS: dict[str, tuple[State, Callable[[Job], Job], State]] = {
    "requeue": (State.FAILED, requeue, State.QUEUED),
    "resolve": (State.INTERRUPTED, lambda job: resolve(job, "it was done"), State.COMPLETED),
}


@pytest.mark.parametrize("verb", OPERATORS)
def test_an_operator_who_steers_a_job_at_that_moment_wins_or_loses_it_whole(verb: str) -> None:
    state, steer, steered_to = OPERATORS[verb]
    for _ in range(25):
        job = make_old(state)
        attempts = job.executions.count()
        first, second, steered = race(prune_jobs, prune_jobs, lambda job=job: steer(job))
        assert isinstance(first, int), first
        assert isinstance(second, int), second
        if isinstance(steered, Job):
            # One resolved is settled anew, and young.
            assert first + second == 0
            assert Job.objects.get(pk=job.pk).state == steered_to
            assert job.executions.count() == attempts
        else:
            assert isinstance(steered, (JobDoesNotExist, WrongState)), steered
            assert first + second == 1
            assert not Job.objects.filter(pk=job.pk).exists()
            assert not Execution.objects.filter(job_id=job.pk).exists()
        assert_queue_is_sound()


@pytest.mark.parametrize("verb", OPERATORS)
def test_a_job_that_an_operator_is_just_steering_is_left_alone(verb: str) -> None:
    state, steer, steered_to = OPERATORS[verb]
    job, other = make_old(state), make_old(state)
    if connection.vendor == "sqlite":
        pytest.skip("one writer at a time: there is no moment between")
    with transaction("default"):
        steer(job)
        pruning = meanwhile(prune_jobs)
        assert pruning() == 1  # without waiting
    assert ids() == {job.pk}
    assert Job.objects.get().state == steered_to
    assert job.executions.count() == 1
    assert other.pk not in ids()


def test_a_job_one_of_whose_attempts_is_locked_is_left_whole() -> None:
    """As a resolve does at its beginning, which goes on to the job."""
    job = make_old(State.INTERRUPTED)
    make_execution(job, "failed")
    if connection.vendor == "sqlite":
        pytest.skip("one writer at a time: there is no moment between")
    with transaction("default"):
        assert job.executions.select_for_update().first()
        pruning = meanwhile(prune_jobs)
        assert pruning() == 0  # without waiting
    assert job.executions.count() == 2
    assert prune_jobs() == 1


def test_a_requeue_that_waited_for_the_pruning_finds_no_job() -> None:
    job = make_old(State.FAILED)
    with transaction("default"):
        assert prune_jobs() == 1
        requeued = meanwhile(lambda: requeue(job))
    assert isinstance(requeued(), JobDoesNotExist)
    assert not QueueEntry.objects.exists()
    assert not Execution.objects.exists()


def test_an_enqueue_with_the_key_of_a_job_that_is_pruned_gets_one_of_the_two() -> None:
    for number in range(20):
        moment = now() - 31 * DAY
        old = make_old(idempotency_key=f"k{number}", run_at=moment)
        pruned, job = race(
            prune_jobs, lambda n=number: enqueue("test.job", idempotency_key=f"k{n}")
        )
        assert isinstance(job, Job), job
        assert job.created == (job.pk != old.pk)
        # On MariaDB the enqueue may hold the old one's lock for as long as it looks at it.
        assert pruned == 1 or (pruned == 0 and not job.created), pruned
        assert Job.objects.filter(pk=old.pk).exists() == (pruned == 0)
        assert Job.objects.filter(pk=job.pk).exists() == (job.created or pruned == 0)
        prune_jobs()
    assert_queue_is_sound()
