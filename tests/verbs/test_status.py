"""What `status` tells, and how `health` judges it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from django_durable_jobs import astatus, insight, pause, status
from django_durable_jobs.claims import NEVER
from django_durable_jobs.db import ManualClock, statements_for, transaction, use_clock
from django_durable_jobs.errors import InvalidJob
from django_durable_jobs.ids import uuid7
from django_durable_jobs.insight import Place, health
from django_durable_jobs.models import Schedule, Worker
from django_durable_jobs.states import State
from tests.claiming import digest
from tests.factories import make_job, make_worker, now

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def clock() -> Iterator[ManualClock]:
    clock = ManualClock(now())
    with use_clock(clock):
        yield clock


def codes(**asked: Any) -> list[str]:
    return [problem.code for problem in health(**asked).problems]


def due(seconds: float, **values: Any) -> Any:
    return make_job(run_at=now() - timedelta(seconds=seconds), **values)


# Status


def test_an_empty_namespace_has_nothing_to_tell(clock: ManualClock) -> None:
    assert status() == {
        "namespace": "default",
        "at": clock.value,
        "paused_at": None,
        "started": False,
        "leader": None,
        "workers": [],
        "counts": {"queued": 0, "claimed": 0, "running": 0},
        "oldest_due": None,
        "next_due": None,
        "throughput": {"seconds": 300.0, "completed": 0, "failed": 0, "interrupted": 0},
        "schedules": [],
        "aggregate": {
            "total": 0,
            "running": 0,
            "with_errors": 0,
            "total_fires": 0,
            "total_misses": 0,
            "non_leader_skips": 0,
            "tick_claim_lost": 0,
        },
    }


def test_workers_are_told_of_until_they_have_signed_off(clock: ManualClock) -> None:
    worker = make_worker(
        active=2, stuck=1, healthy=False, error="no", queues=["a"], heartbeat_at=clock.value
    )
    later = make_worker(state="draining", started_at=clock.value + timedelta(seconds=1))
    for state in ("stopped", "lost"):
        make_worker(state=state)
    make_worker(namespace="other")
    told, drains = status()["workers"]
    assert told == {
        "id": worker.pk,
        "host": "host.example",
        "pid": 4_242,
        "started_at": worker.started_at,
        "state": "running",
        "healthy": False,
        "error": "no",
        "active": 2,
        "stuck": 1,
        "heartbeat_at": worker.heartbeat_at,
        "concurrency": 4,
        "queues": ["a"],
        "excluded_queues": [],
        "live": True,
    }
    assert (drains["id"], drains["state"]) == (later.pk, "draining")


def test_a_worker_lives_for_a_lease_after_its_last_sign_of_life(clock: ManualClock) -> None:
    make_worker(heartbeat_at=clock.value)
    clock.advance(30)
    assert status()["workers"][0]["live"]
    clock.advance(0.001)
    assert not status()["workers"][0]["live"]


def test_what_has_not_ended_is_counted() -> None:
    for state in State:
        for _ in range(2):
            make_job(state)
    make_job(namespace="other")
    assert status()["counts"] == {"queued": 2, "claimed": 2, "running": 2}
    assert status("other")["counts"]["queued"] == 1


def test_counting_ends_at_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(insight, "COUNTED", 3)
    for _ in range(5):
        make_job()
    assert status()["counts"]["queued"] == 3


def test_a_pause_is_told() -> None:
    pause("default")
    assert status()["paused_at"] is not None


def test_reading_changes_nothing_and_costs_the_same_however_much_there_is() -> None:
    make_worker()
    with CaptureQueriesContext(connection) as few:
        status()
    for number in range(20):
        make_job()
        make_worker(queues=["a"])
        make_schedule(f"s{number}")
    before = digest()
    with CaptureQueriesContext(connection) as many:
        status()
    assert len(many) == len(few) <= 12
    assert digest() == before


def test_a_senseless_namespace_is_refused() -> None:
    with pytest.raises(InvalidJob, match="namespace"):
        status("")


def test_the_async_twin_says_the_same() -> None:
    make_worker()
    assert async_to_sync(astatus)() == status()


# The leader


def test_started_is_a_namespace_that_a_worker_serves(clock: ManualClock) -> None:
    make_worker(state="draining")
    make_worker(namespace="other")
    assert not status()["started"]
    make_worker(heartbeat_at=clock.value)
    assert status()["started"]
    clock.advance(31)
    assert not status()["started"]


def test_the_leader_is_told_with_its_lease(clock: ManualClock) -> None:
    worker = uuid7()
    with transaction("default") as inside:
        statements_for(inside).take_lead("default", worker, lease=30)
    assert status()["leader"] == {
        "worker": worker,
        "epoch": 1,
        "since": clock.value,
        "lease_ends_at": clock.value + timedelta(seconds=30),
        "live": True,
    }
    assert status("other")["leader"] is None
    clock.advance(30)
    assert not status()["leader"]["live"]
    with transaction("default") as inside:
        statements_for(inside).give_up_lead("default", 1)
    assert status()["leader"] is None


# Schedules


def make_schedule(name: str, **values: Any) -> Schedule:
    columns = {"namespace": "default", "kind": "every", "when": "every 60 s", "timezone": "UTC"}
    columns |= {"rule": "x", "declared_at": now()} | values
    return Schedule.objects.create(name=name, **columns)


def test_schedules_are_told_as_their_rows_have_them(clock: ManualClock) -> None:
    given = {
        "name": "s",
        "kind": "cron",
        "when": "cron 0 2 * * * UTC",
        "timezone": "UTC",
        "next_fire": clock.value + timedelta(hours=1),
        "last_run": clock.value,
        "last_finish": clock.value + timedelta(seconds=2),
        "last_error": "ValueError: no",
        "running": True,
        "fires": 7,
        "misses": 1,
        "non_leader_skips": 2,
        "tick_claim_lost": 3,
        "failures_in_row": 4,
        "paused_at": clock.value,
        "paused_by": "ann",
        "paused_reason": "because",
        "waiting": None,
        "declared_at": clock.value,
        "retired_at": None,
        "last_job_id": None,
    }
    make_schedule(**given)
    make_schedule("s", namespace="other")
    assert status()["schedules"] == [given]


def test_schedules_are_told_by_name_those_gone_from_the_code_last() -> None:
    for name, retired_at in (("c", None), ("a", now()), ("b", None)):
        make_schedule(name, retired_at=retired_at)
    assert [each["name"] for each in status()["schedules"]] == ["b", "c", "a"]


def test_the_aggregate_is_of_the_schedules_that_there_are() -> None:
    numbers = {"fires": 5, "misses": 4, "non_leader_skips": 3, "tick_claim_lost": 2}
    make_schedule("a", running=True, last_error="no", **numbers)
    make_schedule("b", **numbers)
    make_schedule("gone", retired_at=now(), running=True, last_error="no", **numbers)
    assert status()["aggregate"] == {
        "total": 2,
        "running": 1,
        "with_errors": 1,
        "total_fires": 10,
        "total_misses": 8,
        "non_leader_skips": 6,
        "tick_claim_lost": 4,
    }


# The oldest that is due


def test_the_oldest_due_job_is_told_with_its_age(clock: ManualClock) -> None:
    make_worker()
    due(10)
    oldest = due(100)
    make_job(run_at=now() + timedelta(seconds=5))
    told = status()["oldest_due"]
    assert (told["id"], told["type"], told["queue"]) == (oldest.pk, "test.job", "default")
    assert told["age"] == (clock.value - oldest.run_at).total_seconds()


def test_a_job_that_no_claim_has_marked_due_yet_counts_as_well(clock: ManualClock) -> None:
    make_worker()
    waiting = make_job(run_at=now() + timedelta(seconds=5))
    assert status()["oldest_due"] is None
    clock.advance(20)
    assert status()["oldest_due"]["id"] == waiting.pk


@pytest.mark.parametrize(
    ("worker", "job"),
    [
        ({"queues": ["a"]}, {}),
        ({"excluded_queues": ["default"]}, {}),
        ({"types": ["other"]}, {}),
        ({"state": "draining"}, {}),
        ({"heartbeat_at": now() - timedelta(days=1)}, {}),
        ({"namespace": "other"}, {}),
        ({}, {"claimable_at": NEVER}),
    ],
)
def test_what_no_live_worker_could_claim_is_not_late(
    worker: dict[str, Any], job: dict[str, Any]
) -> None:
    make_worker(**worker)
    late = due(100, **job)
    assert status()["oldest_due"] is None
    if not job:
        make_worker(queues=["default"])
        assert status()["oldest_due"]["id"] == late.pk


def test_each_worker_serves_its_own_types_from_its_own_queues() -> None:
    """What one knows and another serves nobody claims."""
    make_worker(types=["x"], queues=["a"])
    make_worker(types=["y"], queues=["b"])
    due(300, type="x", queue="b")
    due(200, type="y", queue="a")
    claimable = due(100, type="y", queue="b")
    assert status()["oldest_due"]["id"] == claimable.pk


def test_the_next_that_becomes_due_is_told(clock: ManualClock) -> None:
    make_job(claimable_at=NEVER)
    assert status()["next_due"] is None
    waiting = make_job(run_at=clock.value + timedelta(seconds=60))
    make_job(run_at=clock.value + timedelta(seconds=90))
    make_job(run_at=clock.value + timedelta(seconds=30), namespace="other")
    assert status()["next_due"] == waiting.run_at


# Throughput


def ended(clock: ManualClock, state: str, seconds: float, **values: Any) -> None:
    """Make a job that ended so many seconds ago, after a second."""
    end = clock.value - timedelta(seconds=seconds)
    make_job(state, created_at=end - timedelta(seconds=1), finished_at=end, **values)


def test_throughput_counts_what_ended_in_the_last_minutes_by_outcome(clock: ManualClock) -> None:
    for state, seconds in (
        *(("completed", 0), ("completed", 299), ("failed", 10), ("interrupted", 20)),
        *(("completed", 301), ("failed", 4_000)),
    ):
        ended(clock, state, seconds)
    ended(clock, "completed", 5, namespace="other")
    make_job(State.RUNNING)
    counts = {"completed": 2, "failed": 1, "interrupted": 1}
    assert status()["throughput"] == {"seconds": 300.0, **counts}


def test_throughput_tells_of_less_time_where_more_happened_than_is_looked_at(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(insight, "LOOKED", 3)
    for seconds in (200, 100, 59, 39, 19):
        ended(clock, "completed", seconds)
    told = status()["throughput"]
    assert told == {"seconds": 60.0, "completed": 3, "failed": 0, "interrupted": 0}


# Health


def test_a_live_worker_is_enough() -> None:
    make_worker()
    found = health()
    assert found.healthy
    assert (found.live, found.oldest_due) == (1, None)


def test_without_a_live_worker_it_is_not_well(clock: ManualClock) -> None:
    assert codes() == ["no-worker"]
    make_worker()
    assert codes() == []
    clock.advance(60)
    assert codes() == ["no-worker"]


def test_a_dead_worker_beside_a_live_one_is_not_the_namespaces_trouble() -> None:
    make_worker()
    make_worker(heartbeat_at=now() - timedelta(days=1), healthy=False)
    assert codes() == []


def test_a_worker_in_trouble_is_told() -> None:
    make_worker()
    make_worker(healthy=False, error="OperationalError: gone")
    found = health()
    assert [p.code for p in found.problems] == ["worker-unhealthy"]
    assert found.problems[0].message == "1 of 2 live workers is in trouble with the database."


HERE = Place("web-1", "pid:[1]")


def test_of_one_place_only_its_own_workers_count() -> None:
    make_worker(healthy=False)
    own = make_worker(host="web-1", pid_namespace="pid:[1]", pid=7)
    make_worker(host="web-1", pid_namespace="pid:[2]", pid=7, healthy=False)
    found = health(place=HERE)
    assert found.healthy
    assert [worker["id"] for worker in found.workers] == [own.pk]
    assert codes(place=Place("web-1", "pid:[1]", 7)) == []
    assert codes(place=Place("web-1", "pid:[1]", 8)) == ["no-worker"]
    assert codes(place=Place("web-2")) == ["no-worker"]
    assert codes(place=Place("web-1")) == ["worker-unhealthy"]


def test_a_worker_of_this_place_that_is_silent_is_told_beside_a_live_one() -> None:
    make_worker(host="web-1", pid_namespace="pid:[1]")
    make_worker(host="web-1", pid_namespace="pid:[1]", heartbeat_at=now() - timedelta(seconds=31))
    (problem,) = health(place=HERE).problems
    assert problem.code == "worker-silent"
    assert problem.message == "1 of 2 workers here gave no sign of life for 30 s."


def test_a_worker_that_drains_lives() -> None:
    """A probe must not kill what is busy ending in order."""
    make_worker(host="web-1", pid_namespace="pid:[1]", state="draining")
    assert codes(place=HERE) == []


def test_how_long_a_job_may_be_due_is_asked_only_with_a_limit() -> None:
    make_worker()
    due(100)
    assert codes() == []
    assert codes(max_age=200) == []
    assert codes(max_age=timedelta(seconds=50)) == ["job-late"]
    assert health(max_age=200).oldest_due == pytest.approx(100, abs=20)


def test_a_paused_namespace_has_no_late_jobs() -> None:
    make_worker()
    due(100)
    pause("default")
    assert codes(max_age=50) == []


@pytest.mark.parametrize("age", [-1, "1", float("nan")])
def test_a_senseless_limit_is_refused(age: Any) -> None:
    with pytest.raises(InvalidJob, match="max_age"):
        health(max_age=age)


def test_a_question_is_a_few_reads() -> None:
    make_worker()
    due(100)
    for asked, most in (({}, 1), ({"max_age": 5}, 4)):
        with CaptureQueriesContext(connection) as queries:
            health(**asked)
        assert len(queries) == most
        assert all(query["sql"].startswith("SELECT") for query in queries)


def test_a_database_without_our_tables_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker._meta, "db_table", "django_durable_jobs_nosuch")
    (problem,) = health().problems
    assert problem.code == "no-tables"
    assert "migrate" in problem.message


def test_a_database_that_does_not_answer_is_told_without_its_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(*args: Any) -> Any:
        raise OperationalError("connection to db-7.internal as admin failed")

    with connection.execute_wrapper(refuse):
        (problem,) = health().problems
    assert problem.code == "database"
    assert problem.message == "The database does not answer (OperationalError)."
    assert "db-7.internal" in caplog.text
