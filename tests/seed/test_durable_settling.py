"""S1 settle, updateExecution: what a handler leaves behind."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import OperationalError

from django_durable_jobs import (
    Discard,
    claims,
    enqueue,
    get_job,
    get_receipt,
    register_handler,
    requeue,
)
from django_durable_jobs.db import ManualClock, Outcome, transaction
from django_durable_jobs.errors import InvalidJob, StaleClaim
from django_durable_jobs.models import Job
from django_durable_jobs.states import State
from django_durable_jobs.worker import JobContext

from .conftest import Gate, executions, lose, run, settled, until

pytestmark = pytest.mark.django_db(transaction=True)


# settle


def test_settle_completed_has_its_times(clock: ManualClock, scheduler: Any) -> None:
    job = run(scheduler, lambda: clock.advance(3))
    (execution,) = executions(job)
    assert execution.completed_at == job.updated_at == job.finished_at == clock.value
    assert (execution.failed_at, execution.interrupted_at) == (None, None)


def test_settle_failed_has_its_times(clock: ManualClock, scheduler: Any) -> None:
    def handler() -> None:
        clock.advance(3)
        raise ValueError

    job = run(scheduler, handler)
    (execution,) = executions(job)
    assert execution.failed_at == job.updated_at == job.finished_at == clock.value
    assert (execution.completed_at, execution.result) == (None, None)


def test_settle_without_a_result_stores_none(scheduler: Any) -> None:
    job = run(scheduler, lambda: None)
    assert (job.state, executions(job)[0].result) == (State.COMPLETED, None)


@pytest.mark.parametrize("result", [object(), float("nan"), {1: 2}, (1,)])
def test_settle_result_that_is_not_json_fails_the_job(result: object, scheduler: Any) -> None:
    job = run(scheduler, lambda: result, max_attempts=3)
    (execution,) = executions(job)
    assert (job.state, execution.completed_at, execution.result) == (State.FAILED, None, None)
    assert execution.error.startswith("result")


def test_settle_result_that_is_too_large_fails_the_job(scheduler: Any) -> None:
    fits, over = "x" * (64 * 1024 - 2), "x" * (64 * 1024 - 1)
    register_handler("seed.job", lambda fit: fits if fit else over)
    jobs = [enqueue("seed.job", {"fit": fit}) for fit in (True, False)]
    scheduler().start()
    good, bad = settled(*jobs)
    assert (good.state, executions(good)[0].result) == (State.COMPLETED, fits)
    assert (bad.state, executions(bad)[0].result) == (State.FAILED, None)
    assert executions(bad)[0].error.startswith("result")


def test_settle_error_is_cut_at_4096_characters(scheduler: Any) -> None:
    def handler() -> None:
        raise ValueError("é" * 10_000)

    (execution,) = executions(run(scheduler, handler))
    assert 4000 < len(execution.error) <= 4096


def test_settle_error_without_a_message_names_its_class(scheduler: Any) -> None:
    def handler() -> None:
        raise LookupError

    (execution,) = executions(run(scheduler, handler))
    assert "LookupError" in execution.error
    assert "handler" in execution.traceback


def test_settle_discard_is_a_failure_with_a_code(scheduler: Any) -> None:
    def handler() -> None:
        raise Discard("superseded")

    (execution,) = executions(run(scheduler, handler, max_attempts=3))
    assert (execution.error_code, "superseded" in execution.error) == ("discarded", True)


def test_settle_after_the_claim_was_lost_changes_nothing(scheduler: Any, gate: Gate) -> None:
    register_handler("seed.gate", gate)
    job = enqueue("seed.gate")
    works = scheduler()
    works.start()
    until(lambda: gate.entered)
    lose(job)
    gate.let_go()
    until(lambda: works.status()["active"] == 0)
    job.refresh_from_db()
    (execution,) = executions(job)
    assert job.state == execution.state == State.INTERRUPTED
    assert (execution.interruption_reason, execution.completed_at) == ("worker_lost", None)


def test_settle_of_an_earlier_claim_leaves_its_successor_alone(scheduler: Any, gate: Gate) -> None:
    register_handler("seed.gate", gate)
    job = enqueue("seed.gate")
    works = scheduler()
    works.tick()
    until(lambda: gate.entered)
    lose(job)
    old = executions(job)[0].claim_id
    requeue(job.pk)
    assert works.tick() == 1
    with transaction("default") as connection:
        late = Outcome(job_id=job.pk, claim_id=old, edge="complete", result='"late"')
        assert claims.settle(connection, [late]) == set()
    job.refresh_from_db()
    assert job.state == State.RUNNING
    gate.let_go()
    (job,) = settled(job)
    assert [row.state for row in executions(job)] == ["interrupted", "completed"]


def test_settle_of_a_job_that_is_gone_changes_nothing(scheduler: Any, gate: Gate) -> None:
    register_handler("seed.gate", gate)
    job = enqueue("seed.gate")
    works = scheduler()
    works.start()
    until(lambda: gate.entered)
    Job.objects.filter(pk=job.pk).delete()
    gate.let_go()
    until(lambda: works.status()["active"] == 0)
    assert get_job(job.pk) is None
    assert works.status()["healthy"]


def test_settle_that_fails_is_tried_again(scheduler: Any, monkeypatch: Any) -> None:
    """changed: the seed drops the outcome, and is unhealthy from then on."""
    failed: list[int] = []
    real = claims.settle

    def settle(connection: Any, outcomes: Any) -> Any:
        if outcomes and not failed:
            failed.append(len(outcomes))
            raise OperationalError("the server went away")
        return real(connection, outcomes)

    monkeypatch.setattr(claims, "settle", settle)
    job = run(scheduler, lambda: "done")
    assert failed == [1]
    assert (job.state, executions(job)[0].result) == (State.COMPLETED, "done")


# updateExecution: recordMetadata, recordReceipt


def test_update_execution_stores_and_returns_it(clock: ManualClock, scheduler: Any) -> None:
    returned: list[Any] = []

    def handler(context: JobContext) -> None:
        clock.advance(1)
        returned.append(context.record_metadata({"step": 1}))
        returned.append(context.record_metadata({"step": 2}))
        clock.advance(1)
        returned.append(context.record_receipt(["sent", 7]))

    job = run(scheduler, handler, takes_context=True)
    (execution,) = executions(job)
    assert (execution.metadata, execution.receipt) == ({"step": 2}, ["sent", 7])
    assert [row.metadata for row in returned] == [{"step": 1}, {"step": 2}, {"step": 2}]
    assert [row.receipt for row in returned] == [None, None, ["sent", 7]]
    assert returned[2].updated_at - returned[1].updated_at == clock.value - returned[1].updated_at
    assert get_receipt(job.pk) == ["sent", 7]


@pytest.mark.parametrize("call", ["record_metadata", "record_receipt"])
@pytest.mark.parametrize("value", [object(), float("inf"), "x" * (64 * 1024 - 1)])
def test_update_execution_refuses_what_cannot_be_kept(
    call: str, value: object, scheduler: Any
) -> None:
    def handler(context: JobContext) -> str:
        getattr(context, call)("kept")
        with pytest.raises(InvalidJob):
            getattr(context, call)(value)
        return "went on"

    job = run(scheduler, handler, takes_context=True)
    (execution,) = executions(job)
    assert execution.result == "went on"
    assert getattr(execution, call.removeprefix("record_")) == "kept"


def test_update_execution_is_visible_before_the_handler_ends(scheduler: Any, gate: Gate) -> None:
    def handler(context: JobContext) -> None:
        context.record_receipt("before the effect")
        gate()

    register_handler("seed.job", handler, takes_context=True)
    job = enqueue("seed.job")
    scheduler().start()
    until(lambda: gate.entered)
    assert get_receipt(job.pk) == "before the effect"
    gate.let_go()
    settled(job)


def test_update_execution_after_the_claim_was_lost_is_refused(scheduler: Any, gate: Gate) -> None:
    refused: list[Exception] = []

    def handler(context: JobContext) -> None:
        gate()
        try:
            context.record_receipt("late")
        except StaleClaim as error:
            refused.append(error)

    register_handler("seed.job", handler, takes_context=True)
    job = enqueue("seed.job")
    scheduler().start()
    until(lambda: gate.entered)
    lose(job)
    gate.let_go()
    until(lambda: refused)
    assert "no longer active" in str(refused[0])
    assert get_receipt(job.pk) is None


def test_update_execution_after_the_job_was_settled_is_refused(scheduler: Any) -> None:
    kept: list[JobContext] = []
    job = run(scheduler, lambda context: kept.append(context), takes_context=True)
    with pytest.raises(StaleClaim):
        kept[0].record_metadata("late")
    assert executions(job)[0].metadata is None
