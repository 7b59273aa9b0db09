"""The gate: each question is answered, none is asked without end, no connection is left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from django.db import OperationalError, connection, connections, transaction

from django_durable_jobs import Scheduler, cancel, enqueue, register_handler, wake
from django_durable_jobs.models import Job, QueueEntry
from django_durable_jobs.states import State
from django_durable_jobs.worker.gate import Gate
from django_durable_jobs.worker.scribe import Scribe
from tests.app.models import Note
from tests.processes.harness import attempts, until
from tests.working import comes_about, ended

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("keys")]

Make = Callable[..., Scheduler]
Keys = Callable[..., None]


def alone(keys: Keys) -> None:
    """Let nothing wake a worker but what it is told, for as long as a test takes."""
    keys(MAX_SLEEP=300, POLL_INTERVAL=300, HEARTBEAT=300, LEASE=900)


def test_a_question_about_a_job_that_is_gone_is_answered() -> None:
    answered = threading.Event()
    scribe = Scribe("default")
    scribe.start()
    gate = Gate("default", scribe, longest=30.0, answered=answered.set)
    try:
        gate.ask([uuid4()])
        assert answered.wait(30)
        assert not gate.busy
    finally:
        gate.close()
        scribe.close()


def test_a_worker_with_gated_jobs_is_idle_when_all_are_done(make: Make, keys: Keys) -> None:
    alone(keys)
    register_handler("gated", lambda: None, can_run=lambda job: True)
    jobs = [enqueue("gated") for _ in range(10)]
    scheduler = make(concurrency=3)
    scheduler.start()
    assert scheduler.wait_until_idle(30)
    assert {job.state for job in ended(*jobs)} == {"completed"}


def test_a_worker_is_idle_soon_after_a_job_that_it_may_run_was_withdrawn(
    make: Make, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is used by no claim, and nothing else happens that could wake the worker."""
    monkeypatch.setattr("django_durable_jobs.worker.gate.APPROVAL_SECONDS", 0.5)
    alone(keys)

    def may(job: Job) -> bool:
        cancel(job)
        return True

    register_handler("gated", lambda: None, can_run=may)
    job = enqueue("gated")
    scheduler = make()
    scheduler.start()
    assert scheduler.wait_until_idle(30)
    assert ended(job)[0].state == State.CANCELLED


@pytest.mark.skipif("connection.vendor == 'sqlite'", reason="a lock there is on the whole file")
def test_a_no_holds_for_a_while_even_for_an_entry_that_somebody_has_locked(
    make: Make, keys: Keys
) -> None:
    keys(POLL_INTERVAL=0.5)
    asked: list[Any] = []
    allowed = False

    def may(job: Job) -> bool:
        asked.append(job.pk)
        return allowed

    register_handler("gated", lambda: None, can_run=may)
    job = enqueue("gated")
    with transaction.atomic():
        QueueEntry.objects.select_for_update().get(pk=job.pk)
        make().start()
        # PostgreSQL passes the entry over; MariaDB finds it, asks, and cannot put it off.
        assert not comes_about(lambda: len(asked) > 10, seconds=1.5)
    allowed = True
    (job,) = ended(job)
    assert job.state == State.COMPLETED


# An async handler's can_run, which is asked again between the claim and the start


def test_a_can_run_leaves_no_connection_open_in_the_thread_that_asked_it(make: Make) -> None:
    used: list[Any] = []

    def may(job: Job) -> bool:
        Note.objects.exists()
        if not threading.current_thread().name.startswith("gate"):
            used.append(connections["default"])
        return True

    async def say() -> str:
        return "ran"

    register_handler("gated", say, can_run=may)
    make(concurrency=3).start()
    ended(*(enqueue("gated") for _ in range(5)))
    assert len(used) == 5
    until(lambda: all(each.connection is None for each in used), "the ends of all connections")


def end_other_sessions() -> None:
    """Have the server end every session on this database but the test's."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND datname = current_database()"
            )
            return
        cursor.execute(
            "SELECT id FROM information_schema.processlist"
            " WHERE id <> connection_id() AND db = database()"
        )
        for (id,) in cursor.fetchall():
            cursor.execute(f"KILL {id:d}")


@pytest.mark.skipif("connection.vendor == 'sqlite'", reason="there is no server")
@pytest.mark.parametrize("is_async", [False, True])
def test_a_can_run_reaches_the_database_after_the_server_has_dropped_its_session(
    make: Make, is_async: bool
) -> None:
    async def say() -> str:
        return "ran"

    handler: Callable[[], Any] = say if is_async else lambda: "ran"
    register_handler("gated", handler, can_run=lambda job: not Note.objects.exists())
    make().start()
    for _ in range(3):
        (job,) = ended(enqueue("gated"))
        assert job.state == State.COMPLETED
        end_other_sessions()
    (job,) = ended(enqueue("gated"))
    assert attempts(job)[-1][1] == "completed"


def test_while_the_database_is_away_questions_are_put_back_without_a_word(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(gate: Gate, id: object) -> bool:
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(Gate, "_judge", away)
    answered = threading.Event()
    scribe = Scribe("default")
    scribe.start()
    gate = Gate("default", scribe, longest=30.0, answered=answered.set)
    try:
        gate.ask([uuid4()])
        assert answered.wait(30)
        assert gate.approved() == frozenset()
    finally:
        gate.close()
        scribe.close()
    assert caplog.text == ""


def test_after_a_wake_up_a_no_is_asked_about_again_as_soon_as_it_lapses(
    make: Make, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_durable_jobs.worker.gate.REFUSAL_SECONDS", 0.2)
    alone(keys)
    answers = [False, True, True]
    asked = threading.Event()

    def may(job: Job) -> bool:
        asked.set()
        return answers.pop(0)

    register_handler("gated", lambda: None, can_run=may)
    job = enqueue("gated")
    make().start()
    assert asked.wait(30)
    until(lambda: Job.objects.get(pk=job.pk).held_reason == "not_eligible", "the no")
    wake()
    assert ended(job)[0].state == "completed"
