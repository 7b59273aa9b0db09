"""What the audit trail tells of jobs that are put in and steered: once, after the commit."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import TestCase
from django.test.utils import CaptureQueriesContext

from django_durable_jobs import (
    cancel,
    claims,
    enqueue,
    enqueue_many,
    replace_queued,
    request_stop,
    requeue,
    resolve,
)
from django_durable_jobs.audit import AuditEvent
from django_durable_jobs.errors import DurableJobsError, IdempotencyConflict, NotQueued, WrongState
from django_durable_jobs.models import Execution, Job
from django_durable_jobs.states import State
from tests.factories import make_job, now
from tests.hearing import Ear, connected

pytestmark = pytest.mark.django_db(transaction=True)

LOGGER = "django_durable_jobs.audit"


@pytest.fixture
def ear() -> Iterator[Ear]:
    with Ear() as ear:
        yield ear


def test_an_enqueued_job_is_told_of(ear: Ear) -> None:
    job = enqueue("a.b", {"secret": "hush"}, owner_id="ann")
    (told,) = ear.events
    assert (told.action, told.outcome, told.reason) == ("job.enqueued", "success", "")
    assert told.metadata == {"job_id": str(job.pk), "type": "a.b", "owner_id": "ann"}


def test_it_is_told_of_when_the_callers_transaction_commits(ear: Ear) -> None:
    with transaction.atomic():
        enqueue("a.b")
        with transaction.atomic():
            enqueue("c.d")
        assert ear.events == []
    assert ear.actions == ["job.enqueued"] * 2


def test_what_is_rolled_back_was_never_told_of(ear: Ear) -> None:
    job = make_job()
    with transaction.atomic():
        enqueue("a.b")
        enqueue_many([{"type": "a.b"}] * 3)
        replace_queued(job, priority=7)
        cancel(job)
        requeue(job)
        transaction.set_rollback(True)
    assert ear.events == []


def test_a_savepoint_that_is_rolled_back_takes_its_events_along(ear: Ear) -> None:
    with transaction.atomic():
        kept = enqueue("kept")
        with transaction.atomic():
            enqueue("lost")
            transaction.set_rollback(True)
    assert [told.metadata["job_id"] for told in ear.events] == [str(kept.pk)]


def test_many_jobs_are_told_of_in_the_order_given(ear: Ear) -> None:
    jobs = enqueue_many({"type": f"t{n % 7}", "namespace": f"n{n % 3}"} for n in range(50))
    assert [told.metadata["job_id"] for told in ear.events] == [str(job.pk) for job in jobs]


def test_a_key_that_has_its_job_tells_of_nothing(ear: Ear) -> None:
    enqueue("a.b", idempotency_key="once")
    enqueue("a.b", idempotency_key="once")
    enqueue_many([{"type": "a.b", "idempotency_key": key} for key in ("once", "new", "new")])
    with pytest.raises(IdempotencyConflict):
        enqueue("c.d", idempotency_key="once")
    assert ear.actions == ["job.enqueued"] * 2


def test_a_cancelled_job_is_told_of_with_its_reason(ear: Ear) -> None:
    job = make_job(owner_id="ann")
    cancel(job, "not\nwanted")
    (told,) = ear.events
    assert (told.action, told.outcome, told.reason) == ("job.cancelled", "success", "not\nwanted")
    assert told.metadata == {"job_id": str(job.pk), "type": job.type, "owner_id": "ann"}


def test_a_queued_job_that_is_stopped_is_cancelled_and_one_that_runs_is_not_told_of_yet(
    ear: Ear,
) -> None:
    request_stop(make_job(), "enough")
    request_stop(make_job(State.RUNNING), "enough")
    assert [(told.action, told.reason) for told in ear.events] == [("job.cancelled", "enough")]


def test_a_replaced_job_is_told_of_once_something_has_changed(ear: Ear) -> None:
    job = enqueue("a.b", owner_id="ann")
    replace_queued(job, owner_id="ann")
    replace_queued(job, owner_id="bob", run_at=now() + timedelta(hours=1))
    assert ear.actions == ["job.enqueued", "job.replaced"]
    assert ear.events[1].metadata["owner_id"] == "bob"


def test_a_requeued_job_is_told_of(ear: Ear) -> None:
    for state in (State.FAILED, State.INTERRUPTED, State.CANCELLED):
        job = make_job(state)
        requeue(job)
        told = ear.events.pop()
        assert (told.action, told.outcome, ear.events) == ("job.requeued", "success", [])
        assert told.metadata["job_id"] == str(job.pk)


def test_a_resolved_job_is_told_of_with_its_note_and_who_says_so(ear: Ear) -> None:
    job = make_job(State.INTERRUPTED)
    resolve(job, "seen in the bank's list", by="ann")
    (told,) = ear.events
    assert (told.action, told.outcome) == ("job.resolved", "success")
    assert told.reason == "seen in the bank's list"
    assert told.metadata["by"] == "ann"
    assert told.metadata["claim_id"] == str(job.claim_id)


def test_what_is_refused_is_not_told_of(ear: Ear) -> None:
    running, done = make_job(State.RUNNING), make_job(State.COMPLETED)
    refused: list[tuple[Any, type[DurableJobsError]]] = [
        (lambda: cancel(running), NotQueued),
        (lambda: replace_queued(running, priority=3), NotQueued),
        (lambda: requeue(running), WrongState),
        (lambda: resolve(done, "well"), WrongState),
        (lambda: request_stop(done), WrongState),
    ]
    for call, error in refused:
        with pytest.raises(error):
            call()
    assert ear.events == []


def test_the_log_has_a_line_for_each_and_never_the_payload(
    ear: Ear, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    secret = {"secret": "hush-hush"}
    target = {"kind": "k", "id": "hush-hush"}
    job = enqueue("a.b", secret, owner_id="ann", target=target, meta=secret)
    replace_queued(job, payload={"secret": "hush-hush", "n": 2})
    cancel(job, "no need")
    lines = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    about = f"job_id={job.pk} type=a.b owner_id=ann"
    assert lines == [
        f"job.enqueued outcome=success {about}",
        f"job.replaced outcome=success {about}",
        f'job.cancelled outcome=success reason="no need" {about}',
    ]
    records = [str(vars(record)) for record in caplog.records]
    events = [json.dumps(told.metadata) + told.reason for told in ear.events]
    assert "hush" not in "".join([*records, *events, *lines])


def test_the_events_can_be_turned_off(
    ear: Ear, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    settings.DURABLE_JOBS = {"AUDIT": False}
    cancel(enqueue("a.b"))
    assert (ear.events, caplog.records) == ([], [])


def test_a_receiver_that_raises_takes_no_call_along(ear: Ear) -> None:
    def receiver(**kwargs: Any) -> None:
        raise ValueError("broken")

    with connected(receiver):
        cancel(enqueue("a.b"))
    assert Job.objects.get().state == "cancelled"
    assert ear.actions == ["job.enqueued", "job.cancelled"]


def test_a_receiver_sees_what_is_committed_and_may_go_to_the_database(ear: Ear) -> None:
    seen: list[str] = []

    def receiver(event: AuditEvent, **kwargs: Any) -> None:
        assert not connection.in_atomic_block
        seen.append(Job.objects.get(pk=event.metadata["job_id"]).state)

    with connected(receiver):
        cancel(enqueue("a.b"))
    assert seen == ["queued", "cancelled"]


def test_outside_of_autocommit_it_is_told_of_once_that_is_on_again(ear: Ear) -> None:
    transaction.set_autocommit(False)
    try:
        enqueue("a.b")
        transaction.rollback()
        enqueue("c.d")
        assert ear.events == []
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    assert [told.metadata["type"] for told in ear.events] == ["c.d"]


class InATestCase(TestCase):
    def test_it_is_told_of_where_hooks_are_called(self) -> None:
        with Ear() as ear:
            with self.captureOnCommitCallbacks(execute=True):
                enqueue("a.b")
                assert ear.events == []
            assert ear.actions == ["job.enqueued"]


def test_whoever_hears_costs_no_statement() -> None:
    def count() -> int:
        job = make_job(State.INTERRUPTED)
        with CaptureQueriesContext(connection) as queries:
            enqueue("a.b")
            requeue(job)
            replace_queued(job, priority=1)
            cancel(job)
        return len(queries)

    unheard = count()
    with Ear() as ear:
        assert count() == unheard
    assert len(ear.events) == 4


# Rows that were edited by hand


def test_a_job_that_repair_interrupts_is_told_of_once(ear: Ear) -> None:
    lost, sound = make_job(State.RUNNING, owner_id="ann"), make_job(State.RUNNING)
    Execution.objects.filter(job=lost).delete()
    for _ in range(2):
        claims.repair(connection, "default")
    (told,) = ear.events
    assert (told.action, told.outcome, told.reason) == (
        "job.interrupted",
        "failure",
        claims.NO_EXECUTION,
    )
    assert told.metadata["job_id"] == str(lost.pk)
    assert (told.metadata["owner_id"], told.metadata["retry"]) == ("ann", False)
    assert Job.objects.get(pk=sound.pk).state == "running"
