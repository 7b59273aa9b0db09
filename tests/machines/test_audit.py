"""What the audit trail tells of a worker: every transition once, whoever makes it."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import OperationalError

from django_durable_jobs import (
    Discard,
    Retry,
    enqueue,
    register_handler,
    request_stop,
    schedule,
)
from django_durable_jobs.models import Execution, Job, Worker
from django_durable_jobs.registry import schedules
from django_durable_jobs.states import State
from django_durable_jobs.worker import JobContext, Scheduler, desk, identity, recovery, watchdog
from django_durable_jobs.worker.recovery import bury_the_gone, end_late_leases
from tests.app.models import Note
from tests.factories import make_execution, make_job, make_worker, now
from tests.hearing import Ear
from tests.machines.test_lost_replies import CLAIM, SETTLE, Replies
from tests.processes.harness import until
from tests.working import ended, fail_once, not_json, run

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("keys")]

Make = Callable[..., Scheduler]
Keys = Callable[..., None]
WHOLE = ["job.enqueued", "job.claimed", "job.started", "job.completed"]


@pytest.fixture
def ear() -> Iterator[Ear]:
    with Ear() as ear:
        yield ear


def told(ear: Ear, job: Job, last: str) -> list[str]:
    """Return what was told of a job, once that is told of which comes last."""
    until(lambda: last in [event.action for event in ear.of(job)], f"{last} of {job.pk}")
    return [event.action for event in ear.of(job)]


def the(ear: Ear, action: str) -> Any:
    """Return the one event of this action."""
    until(lambda: action in ear.actions, action)
    (event,) = [event for event in ear.events if event.action == action]
    return event


# A job's life


def test_a_job_is_told_of_from_its_enqueue_to_its_end(make: Make, ear: Ear) -> None:
    scheduler = make()
    scheduler.start()
    execution = run(lambda secret: secret, {"secret": "hush"})
    job = execution.job
    assert told(ear, job, "job.completed") == WHOLE
    claim = {
        "job_id": str(job.pk),
        "type": "it",
        "owner_id": "",
        "claim_id": str(execution.claim_id),
        "attempt": 1,
    }
    _, claimed, started, completed = ear.of(job)
    assert claimed.metadata == {**claim, "worker": str(scheduler.id)}
    assert started.metadata == completed.metadata == claim
    assert [event.outcome for event in ear.of(job)] == ["success"] * 4
    assert "hush" not in str([event.metadata for event in ear.events])


async def wait_a_moment() -> None:
    pass


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (wait_a_moment, {}),
        (lambda: None, {"can_run": lambda job: True}),
        (wait_a_moment, {"can_run": lambda job: True}),
        (lambda: Note.objects.create(text="x").text, {"atomic": True}),
    ],
    ids=["async", "gated", "gated-async", "atomic"],
)
def test_every_kind_of_handler_is_told_of(
    make: Make, ear: Ear, function: Callable[..., Any], options: dict[str, Any]
) -> None:
    make().start()
    assert told(ear, run(function, **options).job, "job.completed") == WHOLE


def test_many_jobs_are_told_of_once_each_and_in_order(make: Make, ear: Ear) -> None:
    register_handler("it", lambda: None)
    register_handler("gated", lambda: None, can_run=lambda job: True)
    make(concurrency=8).start()
    jobs = [enqueue("gated" if n % 3 == 0 else "it", owner_id=f"o{n % 5}") for n in range(60)]
    ended(*jobs)
    for job in jobs:
        assert told(ear, job, "job.completed") == WHOLE


# What jobs come to


def fail(text: str = "the payload said hush") -> None:
    raise ValueError(text)


def test_a_failure_is_told_of_by_its_class_and_not_by_its_text(
    make: Make, ear: Ear, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "django_durable_jobs.audit")
    make().start()
    job = run(fail).job
    event = the(ear, "job.failed")
    assert (event.outcome, event.reason, event.metadata["retry"]) == (
        "failure",
        "ValueError",
        False,
    )
    assert "hush" not in str(event)
    until(lambda: any(str(event) == record.getMessage() for record in caplog.records), "the line")
    lines = [r for r in caplog.records if r.name == "django_durable_jobs.audit"]
    assert "hush" not in str([vars(record) for record in lines])
    assert event.metadata["job_id"] == str(job.pk)


def test_an_attempt_that_failed_and_is_made_again_is_told_of_as_a_retry(
    make: Make, ear: Ear
) -> None:
    tries: list[int] = []

    def fail_first() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise Retry(0)

    make().start()
    job = run(fail_first, max_attempts=2).job
    again = ["job.claimed", "job.started"]
    assert told(ear, job, "job.completed") == [*WHOLE[:3], "job.failed", *again, "job.completed"]
    failed = the(ear, "job.failed")
    assert (failed.outcome, failed.metadata["retry"], failed.metadata["attempt"]) == (
        "failure",
        True,
        1,
    )
    assert [event.metadata.get("attempt") for event in ear.of(job)] == [None, 1, 1, 1, 2, 2, 2]


def test_a_discarded_job_has_failed_with_that_code(make: Make, ear: Ear) -> None:
    def discard() -> None:
        raise Discard("hush")

    make().start()
    run(discard)
    assert the(ear, "job.failed").reason == "discarded"


def test_a_job_past_its_time_limit_is_told_of_as_interrupted(
    make: Make, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "STOPPED_WITHIN", 0.2)
    go_on = threading.Event()
    make().start()
    run(lambda: go_on.wait(30), timeout=0.05)
    event = the(ear, "job.interrupted")
    assert (event.outcome, event.reason, event.metadata["retry"]) == ("failure", "timed_out", False)
    go_on.set()


def test_a_job_that_is_asked_to_stop_is_told_of_when_it_has(make: Make, ear: Ear) -> None:
    begun = threading.Event()

    def wait(context: JobContext) -> None:
        begun.set()
        until(lambda: context.should_stop, "the request")
        context.check_stop()

    register_handler("it", wait, takes_context=True)
    make().start()
    job = enqueue("it")
    assert begun.wait(30)
    request_stop(job, "enough")
    assert told(ear, job, "job.interrupted") == [*WHOLE[:3], "job.interrupted"]
    assert the(ear, "job.interrupted").reason == "stop_requested"


def test_a_job_whose_second_can_run_says_no_is_told_of_as_released(make: Make, ear: Ear) -> None:
    answers = [True, False, True, True]
    make().start()
    job = run(lambda: None, can_run=lambda job: answers.pop(0)).job
    assert told(ear, job, "job.completed") == [
        "job.enqueued",
        "job.claimed",
        "job.released",
        "job.claimed",
        "job.started",
        "job.completed",
    ]
    assert the(ear, "job.released").reason == "not_eligible"


def test_an_outcome_that_the_database_refuses_is_told_of_as_what_was_written(
    make: Make, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    not_json(monkeypatch)
    make().start()
    job = run(lambda: "bad").job
    assert told(ear, job, "job.failed") == [*WHOLE[:3], "job.failed"]
    assert the(ear, "job.failed").reason == "outcome-refused"


# A worker's life


def test_a_worker_is_told_of_from_its_start_to_its_stop(make: Make, ear: Ear) -> None:
    scheduler = make()
    scheduler.start()
    run(lambda: None)
    scheduler.shutdown()
    assert ear.actions[-1] == "scheduler.stop"
    for action in ("scheduler.start", "scheduler.stop"):
        event = the(ear, action)
        assert event.outcome == "success"
        assert event.metadata == {"count": 0, "worker": str(scheduler.id)}


def test_a_worker_that_never_leads_counts_no_schedules(make: Make, ear: Ear) -> None:
    with schedules.preserved():
        register_handler("it", lambda: None)
        schedule("hourly", every=3600, job="it")
        scheduler = make(schedules=False)
        scheduler.tick()
        assert the(ear, "scheduler.start").metadata["count"] == 0


def test_a_worker_that_only_ticked_is_told_of_too_and_one_that_did_nothing_is_not(
    make: Make, ear: Ear
) -> None:
    make().shutdown()
    scheduler = make()
    scheduler.tick()
    scheduler.shutdown()
    assert [name for name in ear.actions if name.startswith("scheduler.")] == [
        "scheduler.start",
        "scheduler.stop",
    ]


def test_an_enrolment_that_is_repeated_is_one_start(
    make: Make, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = "django_durable_jobs.worker.scheduler.Sleep"
    left = fail_once(monkeypatch, where, OperationalError("gone"))
    make().start()
    run(lambda: None)
    assert not left
    until(lambda: "job.completed" in ear.actions, "the end")
    assert ear.actions.count("scheduler.start") == 1


def test_a_shutdown_tells_of_what_it_interrupts_and_gives_back(make: Make, ear: Ear) -> None:
    go_on, begun, asked = threading.Event(), threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        go_on.wait(30)

    answers: list[str] = []

    def may(job: Job) -> bool:
        answers.append(job.state)
        if job.state == State.CLAIMED:
            asked.set()
            go_on.wait(30)
        return True

    register_handler("hang", wait)
    register_handler("gated", lambda: None, can_run=may)
    scheduler = make(concurrency=2)
    scheduler.start()
    hung, gated = enqueue("hang"), enqueue("gated")
    assert begun.wait(30)
    assert asked.wait(30)
    scheduler.shutdown(grace=0)
    go_on.set()
    assert [event.action for event in ear.of(hung)] == [*WHOLE[:3], "job.interrupted"]
    assert the(ear, "job.interrupted").reason == "scheduler_shutdown"
    assert the(ear, "job.interrupted").metadata["type"] == "hang"
    assert [event.action for event in ear.of(gated)] == [*WHOLE[:2], "job.released"]
    assert ear.actions[-1] == "scheduler.stop"


# Workers that are gone


@pytest.fixture
def gone() -> Worker:
    """A worker of this host whose process is not there any more."""
    me = identity.this_process()
    values = dataclasses.asdict(dataclasses.replace(me, process_start="0"))
    return make_worker(**values)


def test_a_worker_that_is_proven_gone_and_what_it_held_are_told_of_once(
    ear: Ear, gone: Worker
) -> None:
    job = make_job(State.RUNNING, execution=False, owner_id="ann")
    execution = make_execution(job, worker=gone)
    other = make_worker()
    for _ in range(2):
        bury_the_gone("default", "default", but=other.pk)
    assert ear.actions == ["job.interrupted", "worker.lost"]
    interrupted, lost = ear.events
    assert (interrupted.outcome, interrupted.reason) == ("failure", "server_restarted_after_claim")
    assert interrupted.metadata == {
        "job_id": str(job.pk),
        "type": job.type,
        "owner_id": "ann",
        "claim_id": str(execution.claim_id),
        "attempt": 1,
        "retry": False,
    }
    assert (lost.outcome, lost.reason) == ("failure", "server_restarted_after_claim")
    assert lost.metadata == {"worker": str(gone.pk)}


def test_two_that_find_a_worker_gone_at_once_tell_of_it_once(ear: Ear, gone: Worker) -> None:
    execution = make_execution(make_job(State.RUNNING, execution=False), worker=gone)
    for _ in range(2):  # both have seen it among the live ones
        recovery._bury(gone, "default")
    assert ear.actions == ["job.interrupted", "worker.lost"]
    assert ear.events[0].metadata["claim_id"] == str(execution.claim_id)


def test_leases_that_ran_out_are_told_of_once(ear: Ear, keys: Keys) -> None:
    keys(RECOVER_UNSTARTED="requeue")
    silent = make_worker(host="elsewhere.example", heartbeat_at=now().replace(year=2020))
    running, claimed = (
        make_job(state, execution=False) for state in (State.RUNNING, State.CLAIMED)
    )
    for job in (running, claimed):
        make_execution(job, worker=silent, lease_expires_at=now().replace(year=2020))
    for _ in range(2):
        end_late_leases("default", "default")
    assert [event.action for event in ear.of(running)] == ["job.interrupted"]
    assert [event.action for event in ear.of(claimed)] == ["job.released"]
    assert the(ear, "job.interrupted").reason == the(ear, "worker.lost").reason == "worker_lost"
    assert the(ear, "worker.lost").metadata == {"worker": str(silent.pk)}


def test_a_claim_that_was_taken_away_is_told_of_by_whoever_took_it_and_by_nobody_else(
    make: Make, ear: Ear
) -> None:
    scheduler = make()

    def lose(context: JobContext) -> None:
        lease = now().replace(year=2020)
        Execution.objects.filter(claim_id=context.claim_id).update(lease_expires_at=lease)
        end_late_leases("default", "default")

    scheduler.start()
    job = run(lose, takes_context=True).job
    scheduler.shutdown()
    assert [event.action for event in ear.of(job)] == [*WHOLE[:3], "job.interrupted"]
    assert the(ear, "job.interrupted").reason == "worker_lost"


def test_a_lost_claim_whose_handler_heard_of_it_is_told_of_once(
    make: Make, ear: Ear, keys: Keys
) -> None:
    """The worker finds stored what it wanted to write itself: it was another who wrote it."""
    keys(HEARTBEAT=0.1, LEASE=1)
    scheduler = make()

    def lose(context: JobContext) -> None:
        lease = now().replace(year=2020)
        found = Execution.objects.filter(claim_id=context.claim_id)

        def taken() -> bool:
            found.update(lease_expires_at=lease)
            return bool(end_late_leases("default", "default"))

        until(taken, "the end of the lease")
        until(lambda: context.should_stop, "the news")
        context.check_stop()

    scheduler.start()
    job = run(lose, takes_context=True).job
    scheduler.shutdown()
    assert [event.action for event in ear.of(job)] == [*WHOLE[:3], "job.interrupted"]


# Replies that are lost


def test_an_outcome_whose_commit_was_not_confirmed_is_told_of_once(
    make: Make, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = Replies(monkeypatch, desk)
    make().start()
    replies.lose = SETTLE
    job = run(lambda: None).job
    assert replies.lost == 1
    assert told(ear, job, "job.completed") == WHOLE


def test_a_claim_whose_commit_was_not_confirmed_is_told_of_as_interrupted(
    make: Make, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = Replies(monkeypatch, desk)
    make().start()
    replies.lose = CLAIM
    job = run(lambda: None).job
    assert replies.lost == 1
    assert told(ear, job, "job.interrupted") == ["job.enqueued", "job.interrupted"]
    assert the(ear, "job.interrupted").reason == "claim_unconfirmed"


def test_whose_jobs_they_were_may_be_unknown(
    ear: Ear, gone: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(State.RUNNING, execution=False)
    execution = make_execution(job, worker=gone)
    where = "django_durable_jobs.claims.telling._whose"
    broken = fail_once(monkeypatch, where, OperationalError("gone"))
    bury_the_gone("default", "default", but=make_worker().pk)
    assert not broken
    assert the(ear, "job.interrupted").metadata == {
        "job_id": str(job.pk),
        "claim_id": str(execution.claim_id),
        "retry": False,
    }
