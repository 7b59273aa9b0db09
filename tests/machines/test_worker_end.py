"""How a worker inside this process ends: what it writes, who waits for it, what comes too late."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from django.db import OperationalError

from django_durable_jobs import enqueue, register_handler, wake
from django_durable_jobs.errors import StaleClaim
from django_durable_jobs.models import Job, Worker
from django_durable_jobs.states import State
from django_durable_jobs.worker import JobContext, Scheduler
from django_durable_jobs.worker.desk import Desk
from django_durable_jobs.worker.running import Run
from tests.processes.harness import attempts, until
from tests.racing import meanwhile, race
from tests.working import comes_about, ended, fail_once, not_json, run

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("keys")]

Make = Callable[..., Scheduler]
SETTLE = "django_durable_jobs.db.settling.SettleStatements.settle"


# Signing off


def hang_until_sign_off(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have "hang" return its argument only at the sign-off, and that wait until all have ended.

    Returns the arguments of those that have begun.
    """
    go_on, sign_off = threading.Event(), Desk.sign_off
    begun: list[str] = []

    def sign_off_late(self: Desk, left: Iterable[Run]) -> Any:
        runs = list(left)
        go_on.set()
        until(lambda: all(run.outcome is not None for run in runs), "the last outcomes")
        return sign_off(self, runs)

    def hang(result: str) -> str:
        begun.append(result)
        go_on.wait(30)
        return result

    register_handler("hang", hang)
    monkeypatch.setattr(Desk, "sign_off", sign_off_late)
    return begun


def test_an_outcome_that_is_refused_at_the_sign_off_takes_no_other_along(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = make(concurrency=3)
    begun = hang_until_sign_off(monkeypatch)
    not_json(monkeypatch)
    jobs = [enqueue("hang", {"result": result}) for result in ("good", "bad", "fine")]
    scheduler.start()
    until(lambda: len(begun) == 3, "the calls")
    scheduler.shutdown(grace=0)
    good, bad, fine = ended(*jobs)
    assert (good.state, good.latest_execution.result) == ("completed", "good")
    assert (fine.state, fine.latest_execution.result) == ("completed", "fine")
    assert (bad.state, bad.latest_execution.error_code) == ("failed", "outcome-refused")
    assert (scheduler.fault, Worker.objects.get(pk=scheduler.id).state) == ("", "stopped")


def test_a_deadlock_at_the_sign_off_is_tried_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = make()
    begun = hang_until_sign_off(monkeypatch)
    job = enqueue("hang", {"result": "kept"})
    scheduler.start()
    until(lambda: begun, "the call")
    deadlock = OperationalError("deadlock detected")
    deadlock.sqlstate = "40P01"  # type: ignore[attr-defined]
    left = fail_once(monkeypatch, SETTLE, deadlock)
    scheduler.shutdown(grace=0)
    assert not left
    job.refresh_from_db()
    assert (job.state, job.latest_execution.result) == ("completed", "kept")
    assert (scheduler.fault, Worker.objects.get(pk=scheduler.id).state) == ("", "stopped")


# Waiting until idle


def test_waiting_until_idle_waits_for_what_was_just_enqueued(make: Make) -> None:
    scheduler = make()
    scheduler.start()
    register_handler("it", lambda: None)
    for _ in range(20):
        assert scheduler.wait_until_idle(30)
        job = enqueue("it")
        assert scheduler.wait_until_idle(30)
        job.refresh_from_db()
        assert job.state == State.COMPLETED


def test_waiting_until_idle_waits_for_what_was_enqueued_during_a_turn(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That turn found nothing, and says so only after the job was put in."""
    scheduler = make()
    scheduler.start()
    register_handler("it", lambda: None)
    assert scheduler.wait_until_idle(30)
    jobs: list[Job] = []
    next_one, go_on = threading.Event(), threading.Event()
    turn = Desk.turn

    def turn_late(self: Desk, *args: Any, **kwargs: Any) -> Any:
        if jobs:
            next_one.set()
            go_on.wait(30)
            return turn(self, *args, **kwargs)
        result = turn(self, *args, **kwargs)
        jobs.append(meanwhile(lambda: enqueue("it"))())
        return result

    monkeypatch.setattr(Desk, "turn", turn_late)
    wake()
    assert next_one.wait(30)
    assert not scheduler.wait_until_idle(0)
    go_on.set()
    assert scheduler.wait_until_idle(30)
    assert ended(*jobs)[0].state == State.COMPLETED


# Shutting down


def test_after_the_end_of_its_worker_a_context_writes_nothing(make: Make) -> None:
    contexts: list[JobContext] = []
    go_on = threading.Event()
    caught: list[str] = []

    def hang(context: JobContext) -> None:
        contexts.append(context)
        go_on.wait(30)
        try:
            context.record_receipt("late")
        except StaleClaim:
            caught.append("stale")

    scheduler = make()
    scheduler.start()
    register_handler("it", hang, takes_context=True)
    job = enqueue("it")
    until(lambda: contexts, "the start")
    scheduler.shutdown(grace=0)
    for record in (contexts[0].record_metadata, contexts[0].record_receipt):
        with pytest.raises(StaleClaim):
            record("late")
    with pytest.raises(StaleClaim):
        contexts[0].progress(1, 1)
    go_on.set()
    until(lambda: caught, "the handler's own try")
    assert attempts(job) == [(1, "interrupted", "scheduler_shutdown")]


def test_two_that_shut_down_at_once_both_return_when_all_is_written(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = make()
    scheduler.start()
    assert run(lambda: "ran").result == "ran"
    signing, go_on = threading.Event(), threading.Event()
    sign_off = Desk.sign_off

    def sign_off_slowly(self: Desk, left: Any) -> Any:
        signing.set()
        go_on.wait(30)
        return sign_off(self, left)

    monkeypatch.setattr(Desk, "sign_off", sign_off_slowly)

    def shut_down() -> str:
        scheduler.shutdown(grace=10)
        return Worker.objects.get(pk=scheduler.id).state

    first = meanwhile(shut_down)
    assert signing.wait(30)
    second = meanwhile(shut_down)
    comes_about(lambda: not second.running(), seconds=0.5)  # type: ignore[attr-defined]
    go_on.set()
    assert [first(), second()] == ["stopped", "stopped"]


def test_two_that_shut_down_while_a_job_runs_both_wait_for_it(make: Make) -> None:
    began, go_on = threading.Event(), threading.Event()

    def stand_still() -> None:
        began.set()
        go_on.wait(30)

    scheduler = make()
    scheduler.start()
    register_handler("it", stand_still)
    job = enqueue("it")
    assert began.wait(30)

    def shut_down() -> list[str]:
        scheduler.shutdown(grace=30)
        job_now, worker_now = Job.objects.get(pk=job.pk), Worker.objects.get(pk=scheduler.id)
        return [job_now.state, worker_now.state]

    first, second, _ = race(shut_down, shut_down, go_on.set)
    assert [first, second] == [["completed", "stopped"]] * 2


# Taking a limited number of jobs


def test_it_takes_exactly_max_jobs_and_is_spent_when_the_last_of_them_has_ended(
    make: Make,
) -> None:
    go_on = threading.Event()
    register_handler("wait", lambda: go_on.wait(30) and None)
    jobs = [enqueue("wait") for _ in range(7)]
    scheduler = make(concurrency=2, max_jobs=5)
    scheduler.start()
    until(lambda: scheduler.status()["active"] == 2, "the first starts")
    assert not scheduler.wait_until_spent(0)
    go_on.set()
    assert scheduler.wait_until_spent(30)
    states = [Job.objects.get(pk=job.pk).state for job in jobs]
    assert states == ["completed"] * 5 + ["queued"] * 2
    assert scheduler.tick() == 0
