"""From the claim to the end: starting, settling, renewing, expiring, fenced by the claim id."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import DatabaseError, connection

from django_durable_jobs import claims
from django_durable_jobs.db import ManualClock, Outcome, statements_for, transaction, use_clock
from django_durable_jobs.models import Execution, Job, QueueEntry
from django_durable_jobs.states import (
    ACTIVE,
    EDGES,
    ENDED_AT,
    SETTLED,
    InterruptionReason,
    State,
)
from tests.claiming import columns, digest, outcome, settle, take
from tests.factories import assert_queue_is_sound, make_job, make_worker

pytestmark = pytest.mark.django_db(transaction=True)

NOW = datetime(2026, 1, 1, tzinfo=UTC)

SETTLEMENTS = ("complete", "fail", "retry", "interrupt", "retry_interrupted", "release")
WAYS = [(edge, source) for edge in SETTLEMENTS for source in EDGES[edge].sources]


@pytest.fixture(autouse=True)
def clock() -> Iterator[ManualClock]:
    clock = ManualClock(NOW)
    with use_clock(clock):
        yield clock


def held(state: str = State.RUNNING, **values: Any) -> Job:
    """Make a job that a worker holds."""
    return make_job(state, **({"created_at": NOW - timedelta(hours=1)} | values))


def execution(job: Job) -> Execution:
    return Execution.objects.get(job=job)


VALUES: dict[str, dict[str, Any]] = {
    "complete": {"result": '{"a": [1, "é"]}'},
    "fail": {"error": "ValueError: é", "error_code": "bad", "traceback": "Traceback …"},
    "retry": {"error": "ValueError", "delay": 90.0, "held_reason": "retry"},
    "interrupt": {"reason": InterruptionReason.TIMED_OUT.value},
    "retry_interrupted": {"reason": InterruptionReason.WORKER_LOST.value},
    "release": {},
}


# Every edge


@pytest.mark.parametrize("together", [False, True], ids=["alone", "together"])
@pytest.mark.parametrize(("edge", "source"), WAYS)
def test_each_edge_writes_what_the_tables_demand(
    edge: str, source: State, together: bool, clock: ManualClock
) -> None:
    jobs = [held(source, attempts=2, owner_id=str(n)) for n in range(3 if together else 1)]
    assert settle([outcome(job, edge, **VALUES[edge]) for job in jobs]) == {
        job.claim_id for job in jobs
    }
    way, values = EDGES[edge], VALUES[edge]
    assert way.execution is not None
    for job in jobs:
        row, attempt = columns(job), execution(job)
        assert (row["state"], row["updated_at"]) == (way.target, NOW)
        assert row["attempts"] == (1 if edge == "release" else 2)
        assert (attempt.state, attempt.updated_at) == (way.execution, NOW)
        ends = {name: getattr(attempt, name) for name in ENDED_AT.values()}
        assert ends == dict.fromkeys(ends) | {ENDED_AT[way.execution]: NOW}
        assert attempt.result == json.loads(values.get("result", "null"))
        for name, column in (
            ("error", attempt.error),
            ("error_code", attempt.error_code),
            ("traceback", attempt.traceback),
            ("reason", attempt.interruption_reason),
        ):
            assert column == values.get(name, "")
        if edge == "release":
            assert attempt.started_at is None
        if way.target in SETTLED:
            assert row["finished_at"] == NOW
            assert row["claim_id"] == job.claim_id
        else:
            later = NOW + timedelta(seconds=values.get("delay", 0))
            assert (row["claim_id"], row["finished_at"]) == (None, None)
            assert row["claimable_at"] == later
            assert row["held_reason"] == values.get("held_reason", "")
            assert row["held_since"] == (NOW if "held_reason" in values else None)
            entry = QueueEntry.objects.get(pk=job.pk)
            assert (entry.due, entry.claimable_at) == (later <= NOW, later)
            assert (entry.attempts, entry.rank) == (row["attempts"], -job.priority)
    assert_queue_is_sound()


def test_outcomes_of_all_kinds_travel_together() -> None:
    jobs = {edge: held(attempts=1) for edge in SETTLEMENTS * 2}
    jobs |= {f"{edge} again": held(attempts=1) for edge in SETTLEMENTS}
    outcomes = [
        outcome(job, edge.split()[0], **VALUES[edge.split()[0]]) for edge, job in jobs.items()
    ]
    assert settle(outcomes) == {job.claim_id for job in jobs.values()}
    for edge, job in jobs.items():
        assert columns(job)["state"] == EDGES[edge.split()[0]].target
    assert_queue_is_sound()


def test_more_outcomes_than_one_statement_takes_are_all_written() -> None:
    jobs = [held() for _ in range(130)]
    outcomes = [outcome(job, result=json.dumps(n)) for n, job in enumerate(jobs)]
    assert len(settle(outcomes)) == 130
    for number, job in list(enumerate(jobs))[::43]:
        assert execution(job).result == number


def test_each_job_gets_its_own_result_in_a_group() -> None:
    jobs = [held() for _ in range(3)]
    results = ['{"a": 1}', None, "null"]
    settle([outcome(job, result=text) for job, text in zip(jobs, results, strict=True)])
    assert [execution(job).result for job in jobs] == [{"a": 1}, None, None]


@pytest.mark.parametrize("edge", SETTLEMENTS)
@pytest.mark.parametrize("number", [1, 2])
def test_a_live_key_is_freed_by_the_end_and_by_nothing_else(edge: str, number: int) -> None:
    jobs = [held(key_scope=scope) for scope in ("live", "ever") for _ in range(number)]
    settle([outcome(job, edge) for job in jobs])
    for job in jobs:
        freed = job.key_scope == "live" and EDGES[edge].target in SETTLED
        assert (columns(job)["key_hash"] is None) is freed


def test_an_edge_that_is_not_in_the_list_raises_and_writes_nothing() -> None:
    job = held()
    before = digest()
    with pytest.raises(KeyError):
        settle([outcome(job, "cancel_running")])
    with pytest.raises(KeyError):
        Job.objects.filter(pk=job.pk).move("cancel_running")
    assert digest() == before


@pytest.mark.parametrize("edge", EDGES)
def test_move_leaves_alone_what_is_in_none_of_the_edges_sources(edge: str) -> None:
    way = EDGES[edge]
    for state in State:
        if state in way.sources:
            continue
        job = make_job(state)
        before = columns(job)
        assert Job.objects.filter(pk=job.pk).move(edge) == 0
        assert columns(job) == before


# Losing


@pytest.mark.parametrize("together", [False, True], ids=["alone", "together"])
@pytest.mark.parametrize("edge", SETTLEMENTS)
def test_a_stale_claim_changes_nothing(edge: str, together: bool) -> None:
    jobs = [held() for _ in range(3 if together else 1)]
    before = digest()
    stale = [
        Outcome(job_id=job.pk, claim_id=uuid.uuid4(), edge=edge, **VALUES[edge]) for job in jobs
    ]
    # The claim of another job is no better.
    stale += [
        Outcome(job_id=jobs[0].pk, claim_id=other.claim_id, edge=edge)  # type: ignore[arg-type]
        for other in jobs[1:]
    ]
    assert settle(stale) == set()
    assert digest() == before


@pytest.mark.parametrize("edge", SETTLEMENTS)
@pytest.mark.parametrize("first", SETTLEMENTS)
def test_whoever_settles_second_changes_nothing(first: str, edge: str) -> None:
    jobs = [held(attempts=1) for _ in range(2)]
    settle([outcome(job, first) for job in jobs])
    before = digest()
    assert settle([outcome(job, edge) for job in jobs]) == set()
    assert settle([outcome(jobs[0], edge)]) == set()
    assert digest() == before


@pytest.mark.parametrize("together", [False, True], ids=["alone", "together"])
@pytest.mark.parametrize("edge", ["complete", "fail", "retry"])
def test_what_was_not_started_cannot_end_as_if_it_had_been(edge: str, together: bool) -> None:
    jobs = [held(State.CLAIMED) for _ in range(2 if together else 1)]
    before = digest()
    assert settle([outcome(job, edge) for job in jobs]) == set()
    assert digest() == before


def test_in_a_group_only_the_claims_still_held_are_settled_and_named() -> None:
    good, gone, stale = held(), held(), held()
    settle([outcome(gone, "interrupt")])
    before = columns(gone), columns(stale)
    wrong = Outcome(job_id=stale.pk, claim_id=uuid.uuid4(), edge="fail")
    assert settle([outcome(good), outcome(gone), wrong]) == {good.claim_id}
    assert (columns(gone), columns(stale)) == before


@pytest.mark.parametrize("together", [False, True], ids=["alone", "together"])
def test_a_job_deleted_while_it_ran_is_lost_and_holds_nothing_any_more(together: bool) -> None:
    gone, *others = [held() for _ in range(3 if together else 1)]
    Job.objects.filter(pk=gone.pk)._raw_delete("default")
    assert settle([outcome(job) for job in (gone, *others)]) == {j.claim_id for j in others}
    assert not Execution.objects.filter(state__in=ACTIVE)


# A refused outcome


def test_one_refused_outcome_refuses_its_group_and_alone_only_itself() -> None:
    good, bad, other = held(), held(), held()
    outcomes = [outcome(good), outcome(bad, result="{no json"), outcome(other, "retry")]
    before = digest()
    with pytest.raises(DatabaseError):
        settle(outcomes)
    assert digest() == before
    with transaction("default") as own:
        done = claims.settle_apart(own, outcomes)
    assert done.held == {good.claim_id, other.claim_id}
    ((refused, why),) = done.refused
    assert refused.job_id == bad.pk
    assert isinstance(why, DatabaseError)
    assert columns(bad)["state"] == "running"
    assert execution(bad).state == "running"
    assert settle([outcome(bad, "fail", error=str(why))]) == {bad.claim_id}
    assert_queue_is_sound()


def test_settling_apart_says_whose_claim_was_lost() -> None:
    good, stale = held(), held()
    wrong = Outcome(job_id=stale.pk, claim_id=uuid.uuid4(), edge="complete")
    with transaction("default") as own:
        done = claims.settle_apart(own, [outcome(good), wrong])
    assert (done.held, done.refused) == ({good.claim_id}, [])


# Starting and recording


def test_a_claimed_job_starts_once_and_is_not_held_any_more(clock: ManualClock) -> None:
    job = held(State.CLAIMED, held_since=NOW, held_reason="not_eligible")
    clock.advance(1)
    statements = statements_for(connection)
    assert statements.start(job.pk, job.claim_id) is True
    row, attempt = columns(job), execution(job)
    assert (row["state"], row["held_since"], row["held_reason"]) == ("running", None, "")
    assert (attempt.state, attempt.started_at) == ("running", clock.value)
    before = digest()
    assert statements.start(job.pk, job.claim_id) is False
    assert statements.start(job.pk, uuid.uuid4()) is False
    assert digest() == before


@pytest.mark.parametrize("column", ["metadata", "receipt", "progress"])
def test_only_a_running_execution_takes_a_record(column: str) -> None:
    job, waiting = held(), held(State.CLAIMED)
    record = statements_for(connection).record
    assert record(job.pk, job.claim_id, column, '{"a": 1}') is True
    assert getattr(execution(job), column) == {"a": 1}
    settle([outcome(job)])
    before = digest()
    assert record(job.pk, job.claim_id, column, "{}") is False
    assert record(job.pk, uuid.uuid4(), column, "{}") is False
    assert record(waiting.pk, waiting.claim_id, column, "{}") is False
    assert digest() == before


# Leases


def renew(jobs: list[Job], lease: float = 60.0) -> set[uuid.UUID]:
    with transaction("default") as own:
        return statements_for(own).renew([(job.pk, job.claim_id) for job in jobs], lease=lease)


def test_leases_are_renewed_for_claims_that_are_held_and_only_these() -> None:
    running, claimed, over = held(), held(State.CLAIMED), held()
    others = held()
    settle([outcome(over)])
    stranger = make_job(State.RUNNING, claim_id=uuid.uuid4())
    stranger.claim_id = uuid.uuid4()
    before = execution(others).lease_expires_at, execution(stranger).lease_expires_at
    kept = renew([running, claimed, over, stranger])
    assert kept == {running.claim_id, claimed.claim_id}
    for job in (running, claimed):
        assert execution(job).lease_expires_at == NOW + timedelta(seconds=60)
    assert (execution(others).lease_expires_at, execution(stranger).lease_expires_at) == before


def expire(*, requeue_unstarted: bool = False) -> list[Outcome]:
    with transaction("default") as own:
        return claims.expire(own, "default", requeue_unstarted=requeue_unstarted)


def test_only_leases_that_are_over_are_ended(clock: ManualClock) -> None:
    running, claimed = held(), held(State.CLAIMED)
    renewed, elsewhere = held(), held(namespace="other")
    renew([running, claimed, elsewhere], 10)
    renew([renewed], 20)
    clock.advance(10)
    assert expire() == []
    clock.advance(0.001)
    assert {o.job_id for o in expire()} == {running.pk, claimed.pk}
    for job in (running, claimed):
        assert columns(job)["state"] == "interrupted"
        assert execution(job).interruption_reason == InterruptionReason.WORKER_LOST
    assert {columns(job)["state"] for job in (renewed, elsewhere)} == {"running"}
    assert expire() == []


def test_what_declared_itself_safe_to_repeat_goes_back_to_the_queue(clock: ManualClock) -> None:
    job = held(attempts=1)
    Execution.objects.update(requeue_on_interrupt=True, lease_expires_at=NOW)
    clock.advance(1)
    expire()
    assert (columns(job)["state"], columns(job)["attempts"]) == ("queued", 1)
    assert execution(job).state == "interrupted"
    assert take() == [job]


def test_unstarted_claims_of_the_dead_are_released_where_the_project_wants_it(
    clock: ManualClock,
) -> None:
    claimed, running = held(State.CLAIMED, attempts=1), held()
    Execution.objects.update(lease_expires_at=NOW)
    clock.advance(1)
    expire(requeue_unstarted=True)
    assert (columns(claimed)["state"], columns(claimed)["attempts"]) == ("queued", 0)
    assert execution(claimed).state == "released"
    assert columns(running)["state"] == "interrupted"


def test_a_claim_that_starts_while_the_reaper_looks_is_not_released() -> None:
    """What the reaper read as unstarted is running when it writes: it would run twice."""
    job = held(State.CLAIMED)
    found = outcome(job, "release", unstarted=True)
    statements_for(connection).start(job.pk, job.claim_id)
    before = digest()
    assert settle([found]) == set()
    assert digest() == before


def test_a_lease_renewed_while_the_reaper_looks_is_not_ended(clock: ManualClock) -> None:
    job = held()
    renew([job], 10)
    clock.advance(11)
    found = outcome(job, "interrupt")
    renew([job], 10)
    before = digest()
    with transaction("default") as own:
        assert statements_for(own).settle(found, lease_ended=True) is False
    assert digest() == before


def test_everything_that_a_dead_worker_held_is_interrupted() -> None:
    dead, alive = make_worker(), make_worker()
    lost = [held(State.CLAIMED, worker=dead), held(worker=dead)]
    kept = held(worker=alive)
    Execution.objects.filter(job=lost[1]).update(requeue_on_interrupt=True)
    reason = InterruptionReason.SERVER_RESTARTED
    with transaction("default") as own:
        done = claims.interrupt_worker(own, dead.pk, reason, requeue_unstarted=False)
    assert {o.job_id for o in done} == {job.pk for job in lost}
    assert [columns(job)["state"] for job in (*lost, kept)] == ["interrupted", "queued", "running"]
    assert {execution(job).interruption_reason for job in lost} == {reason}
    assert_queue_is_sound()


def test_claims_that_the_worker_knows_nothing_of_are_interrupted() -> None:
    worker = make_worker()
    known, unknown = held(worker=worker), held(worker=worker)
    with transaction("default") as own:
        done = claims.unconfirmed(own, "default", worker.pk, [known.claim_id])
    assert [o.job_id for o in done] == [unknown.pk]
    assert execution(unknown).interruption_reason == InterruptionReason.CLAIM_UNCONFIRMED
    assert columns(known)["state"] == "running"
