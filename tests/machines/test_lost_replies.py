"""Connections that break at the worst moment: between a commit and what was to come of it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import OperationalError, connections
from django.db import transaction as django_transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_durable_jobs import enqueue, register_handler
from django_durable_jobs.models import Execution, Job, Worker
from django_durable_jobs.states import State
from django_durable_jobs.worker import JobContext, Scheduler, desk, keeper, scribe
from tests.app.models import Note
from tests.factories import assert_queue_is_sound, now
from tests.processes.harness import attempts, until
from tests.working import Witness, ended, fail_once, held, run

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("keys")]

Make = Callable[..., Scheduler]
Keys = Callable[..., None]
LOST = "server closed the connection unexpectedly"


class Replies:
    """The transactions of a module of the worker's; the reply to a commit is lost at will."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
        self.lose = ""  # what a statement of the transaction says whose reply is lost next
        self.lost = 0
        plain = module.transaction

        @contextmanager
        def transaction(using: str) -> Iterator[BaseDatabaseWrapper]:
            seen: list[str] = []
            # What has begun before is committed, and seen by the test, before this one goes on.
            lose = self.lose

            def read_along(execute: Any, sql: str, *rest: Any) -> Any:
                seen.append(sql)
                return execute(sql, *rest)

            with plain(using) as connection, connection.execute_wrapper(read_along):
                yield connection
            if lose and lose == self.lose and any(lose in sql for sql in seen):
                self.lose = ""
                self.lost += 1
                connections[using].close()
                raise OperationalError(LOST)

        monkeypatch.setattr(module, "transaction", transaction)


@pytest.fixture
def replies(monkeypatch: pytest.MonkeyPatch) -> Replies:
    return Replies(monkeypatch, desk)


CLAIM = "INSERT INTO django_durable_jobs_execution"
SETTLE = "completed_at ="


# Settling


def test_an_outcome_whose_commit_was_not_confirmed_is_known_for_ones_own(
    make: Make, replies: Replies, caplog: pytest.LogCaptureFixture
) -> None:
    witness = Witness()
    make(observer=witness).start()
    replies.lose = SETTLE
    execution = run(lambda: "kept")
    until(lambda: any(turn.settled for turn in witness.turns), "the end")
    assert replies.lost == 1
    assert (execution.state, execution.result) == ("completed", "kept")
    assert [run for turn in witness.turns for run in turn.lost] == []
    assert "refused" not in caplog.text


def test_an_atomic_handler_that_was_committed_unheard_of_is_completed(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the handler's thread it looks like a failure; it is not tried again."""
    commit = connections["default"].__class__._commit
    lost: list[str] = []

    def lose_reply(self: Any) -> None:
        commit(self)
        if Note.objects.using("default").exists() and not lost:
            lost.append("reply")
            raise OperationalError(LOST)

    def write() -> None:
        Note.objects.create(text="kept")
        monkeypatch.setattr(connections["default"], "_commit", lambda: lose_reply(own))
        own = connections["default"]

    witness = Witness()
    make(observer=witness).start()
    execution = run(write, atomic=True, max_attempts=3, backoff=0)
    until(lambda: any(turn.settled for turn in witness.turns), "the end")
    assert lost
    assert attempts(execution.job) == [(1, "completed", "")]
    assert Note.objects.count() == 1
    ends = [run.outcome.edge for turn in witness.turns for run in turn.settled if run.outcome]
    assert ends == ["complete"]


# Claiming


def test_a_claim_that_was_not_confirmed_is_interrupted_and_no_other(
    make: Make, replies: Replies
) -> None:
    going_on: list[bool] = []
    register_handler("slow", lambda: until(lambda: going_on, "the word"))
    register_handler("it", lambda: None)
    make(concurrency=2).start()
    slow = enqueue("slow")
    until(lambda: held() == 1, "its start")
    replies.lose = CLAIM
    (lost,) = ended(enqueue("it"))
    assert replies.lost == 1
    assert attempts(lost) == [(1, "interrupted", "claim_unconfirmed")]
    going_on.append(True)
    (slow,) = ended(slow)
    assert attempts(slow) == [(1, "completed", "")]
    (after,) = ended(enqueue("it"))
    assert after.state == State.COMPLETED
    assert_queue_is_sound()


def test_a_claim_whose_commit_was_confirmed_stands_though_the_connection_breaks_behind_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on MySQL, where autocommit comes back by a statement of its own."""
    wrapper = type(connections["default"])
    turn_on, broken = wrapper._set_autocommit, []

    def break_behind_claim(self: Any, autocommit: bool) -> None:
        if autocommit and not broken and threading.current_thread().name == "scheduler":
            with self.cursor() as cursor:
                cursor.execute("SELECT COUNT(*) FROM django_durable_jobs_execution")
                claimed = cursor.fetchone() != (0,)
            self.connection.commit()
            if claimed:
                broken.append(LOST)
                self.connection.close()
                raise OperationalError(LOST)
        turn_on(self, autocommit)

    monkeypatch.setattr(wrapper, "_set_autocommit", break_behind_claim)
    make().start()
    execution = run(lambda: "ran")
    assert broken
    assert attempts(execution.job) == [(1, "completed", "")]


def test_a_claimed_job_that_could_not_be_read_for_a_while_is_read_later_and_run(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, left = desk.claims.load, [OperationalError(LOST)] * 4

    def fail_a_while(*arguments: Any) -> Any:
        if left:
            raise left.pop()
        return load(*arguments)

    monkeypatch.setattr(desk.claims, "load", fail_a_while)
    make().start()
    execution = run(lambda: "ran")
    assert not left
    assert attempts(execution.job) == [(1, "completed", "")]


def test_a_claimed_job_that_was_taken_away_before_it_could_be_read_is_not_run(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, calls, ran = desk.claims.load, [], []

    def take_away(connection: BaseDatabaseWrapper, takings: Any) -> Any:
        calls.append(takings)
        if len(calls) > 2:
            return load(connection, takings)
        if len(calls) == 2:
            execution = Execution.objects.get()
            claim = (execution.job_id, execution.claim_id)
            outcome = desk.claims.interrupt(claim, "worker_lost", repeats=False)
            with django_transaction.atomic():
                desk.claims.settle(connection, [outcome])
        raise OperationalError(LOST)

    monkeypatch.setattr(desk.claims, "load", take_away)
    make().start()
    register_handler("it", lambda: ran.append("it"))
    (job,) = ended(enqueue("it"))
    register_handler("next", lambda: None)
    ended(enqueue("next"))
    assert attempts(job) == [(1, "interrupted", "worker_lost")]
    assert ran == []


def test_what_a_turn_has_claimed_is_run_though_it_fails_to_find_out_what_became_of_another(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim was confirmed: what fails after that is no reason to give the job up."""
    began, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        began.set()
        go_on.wait(30)

    register_handler("taken away", wait)
    register_handler("next", lambda: None)
    make(concurrency=1).start()
    first = enqueue("taken away")
    assert began.wait(30)
    following = enqueue("next")  # when the slot is free: in the turn that settles the first
    ended_now = {"state": "interrupted", "updated_at": now()}
    Execution.objects.filter(job=first).update(
        interrupted_at=now(), interruption_reason="worker_lost", **ended_now
    )
    Job.objects.filter(pk=first.pk).update(finished_at=now(), **ended_now)
    left = fail_once(monkeypatch, "django_durable_jobs.claims.ends", OperationalError(LOST))
    go_on.set()
    (following,) = ended(following)
    assert not left
    assert attempts(following) == [(1, "completed", "")]


# Starting and recording


def test_a_start_that_was_not_confirmed_is_a_start(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = Replies(monkeypatch, scribe)
    make().start()
    replies.lose = "started_at ="
    execution = run(lambda: "ran", can_run=lambda job: True)
    assert replies.lost == 1
    assert attempts(execution.job) == [(1, "completed", "")]


def test_a_record_outlives_a_connection_that_breaks(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = Replies(monkeypatch, scribe)

    def record(context: JobContext) -> str:
        replies.lose = "receipt ="
        context.record_receipt({"sent": True})
        return "recorded"

    make().start()
    execution = run(record, takes_context=True)
    assert replies.lost == 1
    assert (execution.state, execution.receipt) == ("completed", {"sent": True})


# Keeping and leaving


def test_a_heartbeat_that_failed_is_made_up_for_before_the_next_one_is_due(
    make: Make, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys(HEARTBEAT=2, LEASE=60)
    monkeypatch.setattr(keeper, "RETRY_INTERVAL", 0.05)
    scheduler = make()
    scheduler.start()
    until(lambda: Worker.objects.exists(), "the worker's row")
    beats: list[str] = []
    beat = keeper.beat

    def fail_first(*arguments: Any) -> None:
        beats.append("beat")
        if len(beats) < 10:
            raise OperationalError(LOST)
        beat(*arguments)

    monkeypatch.setattr(keeper, "beat", fail_first)
    seen = Worker.objects.get().heartbeat_at
    # Ten beats of two seconds would take twenty.
    until(lambda: Worker.objects.get().heartbeat_at > seen, "the next sign of life", seconds=12)


def test_a_sign_off_goes_on_until_it_is_heard(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(desk, "SIGN_OFF_PAUSE", 0.01)
    scheduler = make()
    scheduler.start()
    run(lambda: None)
    leave, left = scheduler._enrolment.leave, [OperationalError(LOST)] * 5

    def fail_a_while(connection: BaseDatabaseWrapper) -> None:
        if left:
            raise left.pop()
        leave(connection)

    monkeypatch.setattr(scheduler._enrolment, "leave", fail_a_while)
    with caplog.at_level(logging.CRITICAL):
        scheduler.shutdown(grace=5)
    assert (scheduler.fault, Worker.objects.get().state) == ("", "stopped")


def test_a_worker_whose_turn_failed_says_so_and_is_healthy_again_after_the_next(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness = Witness()
    scheduler = make(observer=witness)
    health: list[dict[str, Any]] = []
    monkeypatch.setattr(witness, "troubled", lambda error: health.append(scheduler.status()))
    left = fail_once(monkeypatch, "django_durable_jobs.claims.claim", OperationalError("gone"))
    scheduler.start()
    run(lambda: None)
    assert not left
    (told,) = health
    assert (told["healthy"], told["error"]) == (False, "OperationalError: gone")
    until(lambda: scheduler.status()["healthy"], "its health")
