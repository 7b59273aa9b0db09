"""What plots and the overview are made of: counts, percentiles, lanes, backlog, failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_durable_jobs import figures
from django_durable_jobs.claims import NEVER
from django_durable_jobs.db import ManualClock, use_clock
from django_durable_jobs.figures import newest
from django_durable_jobs.models import Execution, Job, Worker
from tests.factories import make_entry, make_execution, make_job, make_worker

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 3, 1, 12, 0, 30, tzinfo=UTC)
MINUTES = figures.SPANS["15m"]


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


@pytest.fixture(autouse=True)
def clock() -> Iterator[ManualClock]:
    clock = ManualClock(NOW)
    with use_clock(clock):
        yield clock


def ran(
    state: str, *, ended: float, took: float = 1, waited: float = 2, **values: Any
) -> Execution:
    """Make an execution that ended so many seconds ago, and its job, settled alike."""
    start = ago(ended + took)
    job = make_job(
        state,
        execution=False,
        created_at=start - timedelta(seconds=waited),
        finished_at=ago(ended),
        namespace=values.pop("namespace", "default"),
        type=values.pop("type", "test.job"),
    )
    values = {"claimed_at": start, "started_at": start, "updated_at": ago(ended)} | values
    return make_execution(job, **values)


def look(span: figures.Span = MINUTES) -> figures.Recent:
    return figures.recent("default", span, using="default")


def waits(namespace: str = "default") -> figures.Backlog:
    return figures.backlog(namespace, NOW, using="default")


def waiting(since: float = 60, *, due: bool = True, **values: Any) -> Job:
    """Make a queued job that has been due for so long, or is in so long where it is negative."""
    job = make_job(created_at=ago(max(since, 0)), run_at=ago(since), state="queued", **values)
    job.queue_entry.delete()
    make_entry(job, due=due)
    return job


# What ended


def test_each_minute_counts_what_ended_in_it_by_outcome() -> None:
    for ended in (10, 20, 29):  # the present minute began 30 s ago
        ran("completed", ended=ended)
    ran("failed", ended=31)
    ran("interrupted", ended=95)
    ran("completed", ended=15, namespace="other")
    found = look()
    assert [each.ended for each in found.buckets[-3:]] == [
        {"completed": 0, "failed": 0, "interrupted": 1},
        {"completed": 0, "failed": 1, "interrupted": 0},
        {"completed": 3, "failed": 0, "interrupted": 0},
    ]
    assert found.ended == Counter(completed=3, failed=1, interrupted=1)
    assert found.buckets[-1].start == datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
    assert len(found.buckets) == 15


def test_what_was_given_back_before_it_began_is_no_outcome() -> None:
    job = waiting()
    make_execution(job, "released", claimed_at=ago(20), released_at=ago(10), updated_at=ago(10))
    found = look()
    assert found.ended.total() == 0
    assert (found.waiting, found.running) == (None, None)


def test_waiting_time_counts_where_it_ended_and_run_time_where_that_did() -> None:
    for n in range(1, 21):
        ran("completed", ended=5, took=60 + n / 10, waited=n)
    found = look()
    assert found.buckets[-1].running == pytest.approx(figures.Spread(61.0, 61.9, 20))
    assert found.buckets[-1].waiting is None
    assert found.buckets[-2].waiting == pytest.approx(figures.Spread(10.0, 19.0, 20))
    assert found.waiting == pytest.approx(figures.Spread(10.0, 19.0, 20))


def test_the_waiting_time_of_an_attempt_before_the_last_is_not_known() -> None:
    execution = ran("failed", ended=5)
    Job.objects.filter(pk=execution.job_id).update(claim_id=make_worker().pk)
    assert look().waiting is None
    assert look().running is not None


def test_clocks_that_differ_make_no_negative_times() -> None:
    ran("completed", ended=5, took=-3, waited=-3)
    found = look()
    assert found.running is not None
    assert found.running.p50 == 0


def test_only_the_newest_executions_are_looked_at_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(newest, "NEWEST", 3)
    for ended in (400, 300, 200, 100, 20):
        ran("completed", ended=ended, took=0)
    found = look()
    assert found.covered_from == ago(300)
    assert found.ended == Counter(completed=3)
    covered = [each.start for each in found.buckets if each.covered]
    assert covered[0] == datetime(2026, 3, 1, 11, 56, tzinfo=UTC)
    assert len(covered) == 5


def test_executions_from_before_the_span_do_not_leave_it_uncovered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(newest, "NEWEST", 1)
    ran("completed", ended=4_000)
    ran("completed", ended=20)
    assert look().covered_from is None
    assert all(each.covered for each in look().buckets)


def test_a_day_has_buckets_of_a_quarter_of_an_hour() -> None:
    ran("completed", ended=80_000)
    found = look(figures.SPANS["24h"])
    assert len(found.buckets) == 96
    assert found.ended.total() == 1


# Lanes


def test_lanes_hold_what_each_worker_ran_by_start_those_still_running_included() -> None:
    one, two = make_worker(host="a", pid=1), make_worker(host="b", pid=2)
    ran("failed", ended=10, took=5, worker=two)
    ran("completed", ended=50, took=5, worker=one)
    ran("completed", ended=5_000, worker=one)
    job = make_job("running", execution=False)
    make_execution(job, worker=one, claimed_at=ago(7_200), started_at=ago(7_200))
    lanes = look().lanes
    assert [lane.name for lane in lanes] == ["a:1", "b:2"]
    assert lanes[0].runs == (
        figures.Run("running", ago(7_200), None),
        figures.Run("completed", ago(55), ago(50)),
    )
    assert lanes[1].runs == (figures.Run("failed", ago(15), ago(10)),)


def test_lanes_are_of_the_workers_that_began_something_last() -> None:
    for n in range(newest.MOST_LANES + 3):
        ran("completed", ended=100 - n, worker=make_worker(host=f"h{n:02}"))
    found = look()
    assert found.lanes_left_out == 3
    assert [lane.name.split(":")[0] for lane in found.lanes] == [
        f"h{n:02}" for n in range(3, newest.MOST_LANES + 3)
    ]


def test_a_worker_whose_row_is_gone_keeps_its_lane() -> None:
    worker = make_worker()
    ran("completed", ended=10, worker=worker)
    Worker.objects.all().delete()
    assert [(lane.worker, lane.name) for lane in look().lanes] == [(worker.pk, "")]


# What waits


def test_the_backlog_is_by_owner_with_what_runs_of_each_whoever_has_most_first() -> None:
    for since in (10, 20, 30):
        waiting(since, owner_id="big")
    waiting(90, owner_id="small", due=False)  # no claim has marked it yet
    make_job("running", owner_id="small")
    make_job("claimed", owner_id="busy")
    waiting(40, owner_id="big", namespace="other")
    found = waits()
    assert found.owners == (
        figures.OwnerShare("big", 3, 0),
        figures.OwnerShare("small", 1, 1),
        figures.OwnerShare("busy", 0, 1),
    )
    assert (found.due, found.oldest, found.later) == (4, ago(90), 0)
    assert (found.claimed, found.running, found.owners_left_out) == (1, 1, 0)


def test_of_many_owners_those_with_most_due_are_told_and_how_many_others_there_are() -> None:
    for n in range(figures.waiting.MOST_OWNERS + 3):
        waiting(owner_id=f"o{n:02}")
    waiting(owner_id="o22")
    make_job("running", owner_id="o22")
    found = waits()
    assert len(found.owners) == figures.waiting.MOST_OWNERS
    assert found.owners[0] == figures.OwnerShare("o22", 2, 1)
    assert found.owners_left_out == 3


def test_what_comes_next_is_told_by_type_with_its_first_job() -> None:
    later = waiting(-60, due=False, type="b")
    first = waiting(-30, due=False, type="a")
    waiting(-90, due=False, type="a")
    found = waits()
    assert found.soon == (
        figures.Soon(first.pk, "a", ago(-30), "", 2),
        figures.Soon(later.pk, "b", ago(-60), "", 1),
    )
    assert (found.due, found.later) == (0, 3)


def test_what_is_put_off_is_counted_by_its_reason() -> None:
    waiting(-5, due=False, type="a", held_reason="not_eligible", held_since=ago(1))
    job = make_job(type="b", claimable_at=NEVER, held_reason="no_handler", held_since=ago(1))
    assert job.queue_entry.due is False
    found = waits()
    assert found.held == Counter({("not_eligible", "a"): 1, ("no_handler", "b"): 1})
    assert [each.type for each in found.soon] == ["a"]


def test_executions_whose_lease_ran_out_are_counted() -> None:
    make_job("running")
    make_execution(make_job("running", execution=False), lease_expires_at=ago(1))
    Execution.objects.exclude(lease_expires_at=ago(1)).update(lease_expires_at=ago(-30))
    assert waits().silent == 1


def told(*workers: Worker) -> list[tuple[str, int, tuple[str, ...]]]:
    return [(each.code, each.count, each.names) for each in figures.reasons(waits(), workers, NOW)]


def test_without_a_worker_that_is_the_reason_for_all_that_is_due() -> None:
    waiting(type="unknown")
    waiting()
    assert told() == [("no_worker", 2, ())]
    assert told(make_worker(types=["test.job", "unknown"])) == []


def test_types_and_queues_that_no_live_worker_has_are_named() -> None:
    waiting(type="unknown")
    make_job(type="unknown", claimable_at=NEVER, held_reason="no_handler", held_since=ago(1))
    waiting(queue="mail")
    worker = make_worker(queues=["default"])
    assert told(worker) == [("no_handler", 2, ("unknown",)), ("no_queue", 1, ("mail",))]
    assert told(worker, make_worker(types=["unknown"], excluded_queues=["mail"])) == [
        ("no_queue", 1, ("mail",))
    ]
    assert told(worker, make_worker(types=["unknown", "test.job"])) == []


def test_caps_that_are_reached_are_told_once_something_has_waited_for_them(settings: Any) -> None:
    settings.DURABLE_JOBS = {"OWNER_CONCURRENCY": 1, "GLOBAL_CONCURRENCY": 2}
    worker = make_worker(concurrency=2)
    make_job("running", owner_id="full")
    waiting(1, owner_id="full")
    assert told(worker) == []
    waiting(60, owner_id="full")
    assert told(worker) == [("owner_full", 2, ("full",))]
    make_job("running", owner_id="other")
    assert told(worker) == [("owner_full", 2, ("full",)), ("namespace_full", 2, ())]
    settings.DURABLE_JOBS = {"OWNER_CONCURRENCY": 5}
    assert told(worker) == [("busy", 2, ())]


def test_what_is_put_off_by_can_run_or_for_a_retry_is_told_by_type() -> None:
    waiting(-5, due=False, type="a", held_reason="not_eligible", held_since=ago(1))
    waiting(-5, due=False, type="b", held_reason="retry", held_since=ago(1))
    assert told(make_worker()) == [("not_eligible", 1, ("a",)), ("retry", 1, ("b",))]


# What failed


def test_failures_that_are_alike_are_one_line_latest_first() -> None:
    ran("failed", ended=50, type="a", error="ValueError: no", error_code="")
    latest = ran("failed", ended=20, type="a", error="ValueError: no", error_code="")
    ran("failed", ended=30, type="b", error="ValueError: no", error_code="E1")
    ran("failed", ended=30, type="b", namespace="other")
    ran("completed", ended=30, type="b")
    found = figures.failures("default", using="default")
    assert [(each.type, each.count, each.error_code) for each in found] == [
        ("a", 2, ""),
        ("b", 1, "E1"),
    ]
    assert (found[0].at, found[0].job, found[0].job_state) == (ago(20), latest.job_id, "failed")


def test_only_the_beginning_of_an_error_is_read() -> None:
    ran("failed", ended=5, error="x" * 4_000)
    assert len(figures.failures("default", using="default")[0].error) == 1_024


def test_what_was_interrupted_waits_for_a_decision_until_there_was_one() -> None:
    first, second = ran("interrupted", ended=50), ran("interrupted", ended=20)
    resolved, requeued = ran("interrupted", ended=10), ran("interrupted", ended=9)
    Job.objects.filter(pk=resolved.job_id).update(state="completed")
    Job.objects.filter(pk=requeued.job_id).update(state="queued", claim_id=None, finished_at=None)
    found = figures.undecided("default", using="default")
    assert [each.job for each in found] == [second.job_id, first.job_id]
    assert (found[0].reason, found[0].at) == ("worker_lost", ago(20))


# What it costs


def test_the_number_of_queries_does_not_depend_on_what_there_is(
    django_assert_num_queries: Any,
) -> None:
    for n in range(12):
        ran("failed", ended=n, worker=make_worker())
        waiting(owner_id=f"o{n}", type=f"t{n}")
        if n not in (0, 11):
            continue
        with django_assert_num_queries(6):
            look()
        with django_assert_num_queries(8):
            waits()
        with django_assert_num_queries(2):
            figures.failures("default", using="default")
        with django_assert_num_queries(2):
            figures.undecided("default", using="default")


def test_nothing_at_all_is_told_as_such() -> None:
    found = look()
    assert (found.ended.total(), found.waiting, found.lanes, found.covered_from) == (
        *(0, None, (), None),
    )
    assert (waits().due, waits().owners, waits().soon) == (0, (), ())
    assert figures.failures("default", using="default") == []
