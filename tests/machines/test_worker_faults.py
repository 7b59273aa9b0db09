"""What goes wrong around a worker: it loses no job, invents no outcome, and goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from django_durable_jobs import enqueue, pause, register_handler, resume
from django_durable_jobs.claims import interrupt, settle
from django_durable_jobs.db import transaction as own_transaction
from django_durable_jobs.db.settling import SettleStatements
from django_durable_jobs.errors import InvalidJob, ShutDown
from django_durable_jobs.models import Execution, Job, QueueEntry, Worker
from django_durable_jobs.states import State
from django_durable_jobs.worker import JobContext, Scheduler
from django_durable_jobs.worker.desk import Desk
from django_durable_jobs.worker.terminal import Terminal
from tests.app.models import Note
from tests.factories import assert_queue_is_sound, make_job
from tests.processes.harness import attempts, until
from tests.racing import meanwhile
from tests.working import Witness, comes_about, ended, fail_once, held, not_json, run

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("keys")]

Make = Callable[..., Scheduler]
Keys = Callable[..., None]
# Several times what a worker needs that waits properly, a fraction of what one does that spins.
MANY = 25
SETTLE = "django_durable_jobs.db.settling.SettleStatements.settle"
FREE_KNOWN = "django_durable_jobs.worker.enrolment.free_known"


@pytest.fixture
def worker(make: Make) -> Scheduler:
    scheduler = make(concurrency=2)
    scheduler.start()
    return scheduler


# Waiting for what is due and cannot be had


def make_ripe(due: bool) -> Job:
    """Make a job whose time has passed, and whose entry a claim has marked due, or has not yet."""
    job = make_job(type="it")
    QueueEntry.objects.filter(pk=job.pk).update(due=due)
    return job


@pytest.mark.parametrize("due", [False, True])
def test_a_paused_namespace_with_a_ripe_job_is_waited_for(
    make: Make, keys: Keys, due: bool
) -> None:
    keys(POLL_INTERVAL=0.5)
    pause("default")
    register_handler("it", lambda: None)
    job = make_ripe(due)
    witness = Witness()
    make(observer=witness).start()
    assert not comes_about(lambda: len(witness.turns) > MANY, seconds=1.5)
    resume("default")
    (job,) = ended(job)
    assert job.state == State.COMPLETED


@pytest.mark.skipif("connection.vendor == 'sqlite'", reason="a lock there is on the whole file")
@pytest.mark.parametrize("due", [False, True])
def test_a_ripe_job_that_somebody_has_locked_is_waited_for(
    make: Make, keys: Keys, due: bool
) -> None:
    keys(POLL_INTERVAL=0.5)
    register_handler("it", lambda: None)
    job = make_ripe(due)
    witness = Witness()
    with transaction.atomic():
        QueueEntry.objects.select_for_update().get(pk=job.pk)
        make(observer=witness).start()
        assert not comes_about(lambda: len(witness.turns) > MANY, seconds=1.5)
    (job,) = ended(job)
    assert job.state == State.COMPLETED


# Entering the namespace


def test_an_enrolment_that_broke_off_half_way_is_repeated(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = fail_once(monkeypatch, FREE_KNOWN, OperationalError("no connection"))
    scheduler = make()
    scheduler.start()
    assert run(lambda: "ran").result == "ran"
    assert not left
    assert Worker.objects.get().pk == scheduler.id


def test_a_database_that_fails_between_the_enrolment_and_the_first_turn_ends_no_worker(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = fail_once(
        monkeypatch,
        "django_durable_jobs.worker.scheduler.Sleep",
        OperationalError("no connection"),
    )
    scheduler = make()
    scheduler.start()
    assert run(lambda: "ran").result == "ran"
    assert not left
    assert Worker.objects.get().pk == scheduler.id


def test_whoever_waits_for_a_tick_is_answered_whatever_ends_the_thread(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(self: Desk, *args: Any, **options: Any) -> None:
        raise SystemExit("as asked")

    monkeypatch.setattr(Desk, "turn", end)
    scheduler = make()
    tick = meanwhile(scheduler.tick)
    assert isinstance(tick(), ShutDown)
    assert scheduler.wait_until_over(30)
    assert scheduler.fault == "SystemExit: as asked"


def test_types_that_could_not_be_told_are_told_again(
    make: Make, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys(HEARTBEAT=100, LEASE=300)  # else a repair would free the job in the end
    make().start()
    job = enqueue("later")
    until(lambda: Job.objects.get(pk=job.pk).held_reason == "no_handler", "the put-off")
    left = fail_once(monkeypatch, FREE_KNOWN, OperationalError("no connection"))
    register_handler("later", lambda: None)
    (job,) = ended(job)
    assert job.state == State.COMPLETED
    assert not left


# A database that refuses


@contextmanager
def read_only() -> Iterator[None]:
    """Have the connection of this thread refuse to write, with the error that it has for this."""
    if connection.vendor == "mysql":  # cannot be made to by one session
        raise OperationalError(1290, "The server is running with the --read-only option")
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SET TRANSACTION READ ONLY")
            yield
            return
        cursor.execute("PRAGMA query_only = 1")
        try:
            yield
        finally:
            cursor.execute("PRAGMA query_only = 0")


def test_a_database_that_refuses_everything_for_a_while_changes_no_outcome(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []

    def for_a_while(name: str) -> None:
        function = getattr(SettleStatements, name)

        def write(*args: Any, **kwargs: Any) -> Any:
            if len(refused) < 4:
                refused.append(name)
                with read_only():
                    return function(*args, **kwargs)
            return function(*args, **kwargs)

        monkeypatch.setattr(SettleStatements, name, write)

    witness = Witness()
    make(observer=witness).start()
    for name in ("settle", "end_together"):
        for_a_while(name)
    execution = run(lambda: ["kept"])
    assert len(refused) == 4
    assert witness.troubles
    assert (execution.state, execution.result, execution.error_code) == ("completed", ["kept"], "")
    assert Execution.objects.count() == 1


def test_an_outcome_that_the_database_refuses_fails_that_job_alone(
    worker: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    not_json(monkeypatch)
    register_handler("it", lambda result: result, max_attempts=3, backoff=0)
    bad, good = ended(enqueue("it", {"result": "bad"}), enqueue("it", {"result": "good"}))
    assert attempts(bad) == [(1, "failed", "")]
    assert bad.latest_execution.error_code == "outcome-refused"
    assert "Error" in bad.latest_execution.error
    assert (good.state, good.latest_execution.result) == ("completed", "good")
    assert worker.status()["healthy"]


def test_a_stale_outcome_is_told_once_with_its_job_and_claim(
    make: Make, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    keys(HEARTBEAT=100, LEASE=300)  # no beat that notices the loss first
    witness = Witness()
    make(observer=witness).start()
    claims: list[str] = []

    def lose(context: JobContext) -> None:
        claims.append(str(context.claim_id))
        assert not isinstance(meanwhile(lambda: take_away(context))(), BaseException)

    execution = run(lose, takes_context=True)
    assert execution.state == "interrupted"
    until(lambda: any(turn.lost for turn in witness.turns), "the refusal")
    told = [record.getMessage() for record in caplog.records if claims[0] in record.getMessage()]
    assert len(told) == 1
    assert str(execution.job_id) in told[0]


def take_away(context: JobContext) -> None:
    """Interrupt the job as a reaper does."""
    with own_transaction("default") as own:
        claim = (context.job.pk, context.claim_id)
        assert settle(own, [interrupt(claim, "worker_lost", repeats=False)])


# Threads, loops and terminals


async def say() -> str:
    return "ran"


def test_a_child_task_that_exits_ends_its_job_and_not_the_loop(make: Make) -> None:
    async def leave() -> None:
        raise SystemExit(3)

    async def gather() -> None:
        await asyncio.gather(leave(), asyncio.sleep(0))

    scheduler = make()
    scheduler.start()
    execution = run(gather)
    assert execution.state == "failed"
    assert "SystemExit" in execution.error
    register_handler("next", say)
    (after,) = ended(enqueue("next"))
    assert after.latest_execution.result == "ran"
    scheduler.shutdown(grace=10)
    assert Worker.objects.get(pk=scheduler.id).state == "stopped"


@pytest.mark.parametrize(
    ("thread", "handler"), [("slot", lambda: "ran"), ("loop", say)], ids=["slot", "loop"]
)
def test_a_job_for_which_no_thread_could_be_started_is_given_back(
    make: Make, monkeypatch: pytest.MonkeyPatch, thread: str, handler: Callable[..., Any]
) -> None:
    start = threading.Thread.start
    refused: list[str] = []

    def refuse_once(self: threading.Thread) -> None:
        if self.name.startswith(thread) and not refused:
            refused.append(self.name)
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse_once)
    make().start()
    execution = run(handler)
    assert refused
    assert (execution.state, execution.result) == ("completed", "ran")
    assert attempts(execution.job) == [(1, "released", ""), (1, "completed", "")]
    until(lambda: held() == 0, "the ends of all claims")
    assert_queue_is_sound()


class ClosedPipe:
    def write(self, text: str) -> None:
        raise BrokenPipeError("nobody reads this")

    flush = write


def test_a_closed_terminal_holds_up_no_job_and_no_end(make: Make) -> None:
    scheduler = make(observer=Terminal(ClosedPipe()))
    scheduler.start()
    assert run(lambda: "ran").result == "ran"
    for _ in range(3):
        assert ended(enqueue("it"))[0].state == State.COMPLETED
    scheduler.shutdown(grace=10)
    assert (scheduler.fault, Worker.objects.get(pk=scheduler.id).state) == ("", "stopped")


# What handlers raise and leave


def test_a_hook_that_raises_after_the_commit_leaves_the_job_completed(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    def write() -> str:
        Note.objects.create(text="kept")
        transaction.on_commit(hook)
        return "done"

    def hook() -> None:
        raise LookupError("in the hook")

    witness = Witness()
    make(observer=witness).start()
    execution = run(write, atomic=True, max_attempts=3, backoff=0)
    until(lambda: any(turn.settled or turn.lost for turn in witness.turns), "the end")
    assert attempts(execution.job) == [(1, "completed", "")]
    assert (execution.result, Note.objects.count()) == ("done", 1)
    ends = [run.outcome.edge for turn in witness.turns for run in turn.settled if run.outcome]
    assert (ends, [run for turn in witness.turns for run in turn.lost]) == (["complete"], [])
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "LookupError: in the hook" in caplog.text
    assert str(execution.job_id) in record.getMessage()


def enqueue_badly() -> None:
    enqueue("")


async def await_badly() -> None:
    raise InvalidJob("not that")


@pytest.mark.parametrize("handler", [enqueue_badly, await_badly])
def test_an_invalid_job_that_a_handler_raises_is_tried_again_as_declared(
    worker: Scheduler, handler: Callable[..., Any]
) -> None:
    execution = run(handler, max_attempts=2, backoff=0.01)
    assert attempts(execution.job) == [(1, "failed", ""), (2, "failed", "")]
    assert execution.error.startswith("InvalidJob")
    assert "InvalidJob" in execution.traceback
    register_handler("not.declared", handler, max_attempts=2, backoff=0.01, retry_on=[OSError])
    (job,) = ended(enqueue("not.declared"))
    assert attempts(job) == [(1, "failed", "")]


@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="the others have no such times")
@pytest.mark.parametrize("moment", ["infinity", "4000-01-01 BC", "20000-01-01"])
def test_a_time_that_python_has_no_form_for_fails_that_job_alone(make: Make, moment: str) -> None:
    ran: list[int] = []
    register_handler("it", lambda n=0: ran.append(n))
    bad, *good = [enqueue("it", {"n": n}) for n in range(5)]
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {Job._meta.db_table} SET run_at = %s WHERE id = %s", [moment, bad.pk]
        )
    make(concurrency=5).start()
    assert {job.state for job in ended(*good)} == {"completed"}
    until(lambda: Execution.objects.get(job_id=bad.pk).state == "failed", "the end of the bad one")
    error = Execution.objects.get(job_id=bad.pk).error
    assert "times cannot be read" in error
    assert "edited by hand" in error
    assert sorted(ran) == [1, 2, 3, 4]
