"""Time limits and stops: what ends a handler, what does not, and what becomes of its job."""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import OperationalError, connection, connections
from django.test.utils import CaptureQueriesContext

from django_durable_jobs import (
    JobStopped,
    JobTimedOut,
    enqueue,
    register_handler,
    request_stop,
    signals,
)
from django_durable_jobs.claims import Claimed
from django_durable_jobs.models import Execution, Job, Worker
from django_durable_jobs.registry import Handler
from django_durable_jobs.registry.handler import make_handler
from django_durable_jobs.states import InterruptionReason, State
from django_durable_jobs.worker import JobContext, Scheduler, watchdog
from django_durable_jobs.worker.desk import Desk
from django_durable_jobs.worker.frames import ThreadFrame
from django_durable_jobs.worker.running import Run
from django_durable_jobs.worker.scribe import Scribe
from django_durable_jobs.worker.watchdog import Watchdog, time_limit
from tests.app.models import Note
from tests.factories import assert_queue_is_sound, make_job, now
from tests.processes.harness import attempts, digest, until
from tests.working import Witness, ended

pytestmark = pytest.mark.usefixtures("keys")
with_database = pytest.mark.django_db(transaction=True)

Make = Callable[..., Scheduler]
TIMED_OUT, STOPPED = "timed_out", "stop_requested"
SOON = 0.05  # a time limit, in seconds


@pytest.fixture
def worker(make: Make) -> Scheduler:
    """A worker with one slot."""
    scheduler = make(concurrency=1)
    scheduler.start()
    return scheduler


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait only for a moment for handlers that were told to stop."""
    monkeypatch.setattr(watchdog, "STOPPED_WITHIN", 0.1)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What stuck handlers wait for; opened at the end, so that their threads end."""
    event = threading.Event()
    yield event
    event.set()


def run(function: Callable[..., Any], **options: Any) -> Execution:
    """Register the function for a type of its own, run one job of it, return its execution."""
    type = uuid.uuid4().hex
    register_handler(type, function, **options)
    (job,) = ended(enqueue(type))
    return job.latest_execution  # type: ignore[no-any-return]


def spin() -> None:
    """Work for as long as it is let: instruction after instruction."""
    for _ in itertools.repeat(None):
        time.sleep(0.001)


def wait_for(gate: threading.Event) -> None:
    """Wait, whatever is raised meanwhile."""
    while not gate.is_set():
        try:
            gate.wait(0.01)
        except BaseException:
            continue


# Threads


@with_database
def test_a_handler_past_its_time_limit_is_ended_and_its_job_interrupted(worker: Scheduler) -> None:
    execution = run(spin, timeout=SOON)
    assert (execution.state, execution.interruption_reason) == ("interrupted", TIMED_OUT)
    assert execution.error == "JobTimedOut: The job ran past its time limit."
    assert "in spin" in execution.traceback
    assert execution.job.state == State.INTERRUPTED
    assert worker.status()["stuck"] == 0


@with_database
def test_a_handler_within_its_time_limit_is_left_alone(worker: Scheduler) -> None:
    assert run(lambda: "in time", timeout=30).result == "in time"


@with_database
def test_except_exception_does_not_swallow_it_and_finally_runs(worker: Scheduler) -> None:
    seen: list[str] = []

    def careful() -> None:
        while True:
            try:
                try:
                    spin()
                except Exception:
                    seen.append("swallowed")
            finally:
                seen.append("tidied up")

    assert run(careful, timeout=SOON).interruption_reason == TIMED_OUT
    assert seen == ["tidied up"]


@with_database
def test_a_handler_that_returns_all_the_same_completes_and_its_result_is_kept(
    worker: Scheduler,
) -> None:
    def stop_in_good_order() -> str:
        try:
            spin()
        except JobTimedOut:
            return "half of it"
        raise AssertionError("not reached")

    execution = run(stop_in_good_order, timeout=SOON)
    assert (execution.state, execution.result) == ("completed", "half of it")


@with_database
def test_whatever_else_it_raises_it_is_interrupted_and_the_error_is_kept(
    worker: Scheduler,
) -> None:
    def stumble() -> None:
        try:
            spin()
        finally:
            raise ValueError("could not tidy up")

    execution = run(stumble, timeout=SOON, max_attempts=3, backoff=0)
    assert (execution.state, execution.interruption_reason) == ("interrupted", TIMED_OUT)
    assert execution.error == "ValueError: could not tidy up"
    assert "JobTimedOut" in execution.traceback
    assert execution.attempt == 1


@with_database
def test_the_context_says_stop_and_raises_the_same(worker: Scheduler) -> None:
    told: list[bool] = []

    def ask(context: JobContext) -> None:
        told.append(context.should_stop)
        try:
            spin()
        except JobTimedOut:
            told.append(context.should_stop)
        context.check_stop()

    execution = run(ask, takes_context=True, timeout=SOON)
    assert told == [False, True]
    assert "check_stop" in execution.traceback
    assert execution.interruption_reason == TIMED_OUT


@with_database
def test_an_atomic_handler_is_rolled_back(worker: Scheduler) -> None:
    def write() -> None:
        Note.objects.create(text="half")
        spin()

    execution = run(write, atomic=True, timeout=SOON)
    assert (execution.state, execution.interruption_reason) == ("interrupted", TIMED_OUT)
    assert not Note.objects.exists()


@with_database
def test_an_atomic_handler_that_returns_all_the_same_is_committed(worker: Scheduler) -> None:
    def write() -> None:
        Note.objects.create(text="whole")
        try:
            spin()
        except JobTimedOut:
            return

    assert run(write, atomic=True, timeout=SOON).state == "completed"
    assert Note.objects.get().text == "whole"


@with_database
def test_the_connections_of_an_interrupted_handler_are_thrown_away(worker: Scheduler) -> None:
    used: list[Any] = []

    def query() -> None:
        connection.ensure_connection()
        used.append(connection.connection)

    def query_and_spin() -> None:
        query()
        try:
            spin()
        except JobTimedOut:
            return

    run(query)
    run(query)
    assert used[0] is used[1]
    run(query_and_spin, timeout=SOON)
    run(query)
    assert used[2] is used[0]
    assert used[3] is not used[2]


# What does not end


@with_database
@pytest.mark.usefixtures("impatient")
def test_a_handler_that_ignores_it_is_settled_without_it_and_replaced(
    make: Make, gate: threading.Event
) -> None:
    witness, ends = Witness(), threading.Event()
    scheduler = make(concurrency=1, observer=witness)
    scheduler.start()

    threads: list[threading.Thread] = []

    def ignore() -> str:
        threads.append(threading.current_thread())
        wait_for(gate)
        ends.set()
        return "late"

    register_handler("stuck", ignore, timeout=SOON)
    (stuck,) = ended(enqueue("stuck"))
    execution = stuck.latest_execution
    assert (execution.state, execution.interruption_reason) == ("interrupted", TIMED_OUT)
    assert "told so and did not end within" in execution.error
    assert "in wait_for" in execution.traceback  # where it hangs
    until(lambda: witness.runs_stuck, "the observer to be told")
    assert [run.job.pk for run in witness.runs_stuck] == [stuck.pk]
    assert scheduler.status()["stuck"] == 1
    # Its slot is not lost; it itself settles nothing any more, and its thread takes no more jobs.
    before = digest(stuck)
    assert run(lambda: threads.append(threading.current_thread())).state == "completed"
    gate.set()
    assert ends.wait(30)
    until(lambda: scheduler.status()["stuck"] == 0, "its return")
    assert run(lambda: threads.append(threading.current_thread())).state == "completed"
    assert threads[0] is not threads[1] is threads[2]
    threads[0].join(30)
    assert not threads[0].is_alive()
    assert digest(stuck) == before
    settled = [each.job.pk for turn in witness.turns for each in turn.settled]
    assert settled.count(stuck.pk) == 1
    assert_queue_is_sound()


@with_database
@pytest.mark.usefixtures("impatient")
def test_a_handler_inside_a_call_of_c_code_is_ended_when_that_returns(worker: Scheduler) -> None:
    after: list[str] = []

    def sleep() -> None:
        time.sleep(1.0)
        after.append("went on")

    execution = run(sleep, timeout=SOON)
    assert (execution.state, execution.interruption_reason) == ("interrupted", TIMED_OUT)
    assert "in sleep" in execution.traceback
    until(lambda: worker.status()["stuck"] == 0, "its return")
    assert after == []


@with_database
@pytest.mark.usefixtures("impatient")
def test_an_atomic_handler_that_comes_back_late_commits_nothing(
    make: Make, gate: threading.Event
) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("there it holds the one write lock: nothing is settled before it ends")
    scheduler = make(concurrency=1)
    scheduler.start()

    def write() -> None:
        Note.objects.create(text="late")
        wait_for(gate)

    assert run(write, atomic=True, timeout=SOON).interruption_reason == TIMED_OUT
    gate.set()
    until(lambda: scheduler.status()["stuck"] == 0, "its return")
    assert run(lambda: None).state == "completed"
    assert not Note.objects.exists()


@with_database
@pytest.mark.usefixtures("impatient")
def test_past_its_limit_of_stuck_handlers_a_worker_drains(
    make: Make, keys: Callable[..., None], gate: threading.Event
) -> None:
    keys(HEARTBEAT=0.1, LEASE=30)
    scheduler = make(concurrency=1)
    scheduler.start()

    def wait_for_it() -> None:
        wait_for(gate)

    register_handler("stuck", wait_for_it, timeout=SOON)
    ended(enqueue("stuck"))
    assert run(lambda: "goes on").result == "goes on"
    assert not scheduler.wait_until_worn(0)
    ended(enqueue("stuck"))
    assert scheduler.wait_until_worn(30)
    until(lambda: Worker.objects.get().state == "draining", "the worker's row")
    assert Worker.objects.get().stuck == 2
    late = enqueue("stuck")
    scheduler.shutdown(grace=30)  # at once: nobody waits for what is stuck
    late.refresh_from_db()
    assert late.state == State.QUEUED


# Async handlers


@with_database
def test_an_async_handler_past_its_time_limit_is_cancelled(worker: Scheduler) -> None:
    seen: list[str] = []

    async def sleep() -> None:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            seen.append("cancelled")
            await asyncio.sleep(0)  # its clean-up may wait
            seen.append("tidied up")
            raise

    execution = run(sleep, timeout=SOON)
    assert (execution.state, execution.interruption_reason) == ("interrupted", TIMED_OUT)
    assert seen == ["cancelled", "tidied up"]


@with_database
def test_an_async_handler_that_returns_all_the_same_completes(worker: Scheduler) -> None:
    async def sleep() -> str:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            return "half of it"
        return ""

    execution = run(sleep, timeout=SOON)
    assert (execution.state, execution.result) == ("completed", "half of it")


@with_database
@pytest.mark.usefixtures("impatient")
def test_an_async_handler_that_ignores_it_is_settled_without_it(
    worker: Scheduler, gate: threading.Event
) -> None:
    loops: list[Any] = []

    async def ignore() -> None:
        loops.append(asyncio.get_running_loop())
        while not gate.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    async def other() -> None:
        loops.append(asyncio.get_running_loop())

    register_handler("stuck", ignore, timeout=SOON)
    (stuck,) = ended(enqueue("stuck"))
    assert attempts(stuck) == [(1, "interrupted", TIMED_OUT)]
    assert worker.status()["stuck"] == 1
    assert run(other).state == "completed"
    assert loops[0] is loops[1]  # which answers: no need of another
    before = digest(stuck)
    gate.set()
    until(lambda: worker.status()["stuck"] == 0, "its return")
    assert digest(stuck) == before


@with_database
@pytest.mark.usefixtures("impatient")
def test_an_async_handler_whose_thread_does_not_end_is_settled_without_it(
    worker: Scheduler, gate: threading.Event
) -> None:
    """It ends when it is cancelled; what it waited for, a query or a lock, goes on."""

    async def wait() -> None:
        await sync_to_async(gate.wait)()

    async def other() -> None:
        pass

    register_handler("stuck", wait, timeout=SOON)
    (stuck,) = ended(enqueue("stuck"))
    assert attempts(stuck) == [(1, "interrupted", TIMED_OUT)]
    assert worker.status()["stuck"] == 1
    assert run(other).state == "completed"
    before = digest(stuck)
    gate.set()
    until(lambda: worker.status()["stuck"] == 0, "its return")
    assert digest(stuck) == before


@with_database
def test_an_async_handler_that_returned_completes_though_its_thread_ends_past_the_limit(
    worker: Scheduler, gate: threading.Event
) -> None:
    contexts: list[JobContext] = []
    left: list[Any] = []

    async def return_early(context: JobContext) -> str:
        contexts.append(context)
        left.append(asyncio.ensure_future(sync_to_async(gate.wait)()))
        await asyncio.sleep(0)
        return "done"

    register_handler("early", return_early, timeout=SOON, takes_context=True)
    job = enqueue("early")
    until(lambda: contexts and contexts[0].should_stop, "the limit")
    gate.set()
    (job,) = ended(job)
    assert (job.state, job.latest_execution.result) == ("completed", "done")


@with_database
@pytest.mark.usefixtures("impatient")
def test_an_async_handler_that_blocks_the_event_loop_is_left_behind_with_it(
    make: Make, gate: threading.Event
) -> None:
    scheduler = make(concurrency=3)
    scheduler.start()
    began, slept = threading.Event(), threading.Event()

    async def block() -> None:
        began.set()
        wait_for(gate)

    async def sleep() -> str:
        slept.set()
        await asyncio.sleep(0.01)
        return "slept"

    register_handler("async", sleep)
    beside = enqueue("async", run_at=now())
    ended(beside)
    slept.clear()
    register_handler("stuck", block, timeout=0.5)
    stuck = enqueue("stuck")
    assert began.wait(30)
    # Claimed while the loop is blocked, and not begun there: it moves to the next loop.
    waiting = enqueue("async")
    assert [job.state for job in ended(stuck, waiting)] == ["interrupted", "completed"]
    assert "in block" in stuck.latest_execution.traceback
    assert [job.state for job in ended(enqueue("async"))] == ["completed"]
    assert scheduler.status()["stuck"] == 1
    gate.set()
    until(lambda: scheduler.status()["stuck"] == 0, "its return")


# How long


def make_run(handler: Handler, **columns: Any) -> Run:
    """Make a run without a database."""
    job = Job(id=uuid.uuid4(), type=handler.type, **columns)
    claimed = Claimed(job, uuid.uuid4(), started=True)
    nobody: Any = None
    return Run(claimed, handler, JobContext(claimed, nobody))


@pytest.mark.parametrize(
    ("handlers", "jobs", "default", "limit"),
    [
        (None, None, None, None),
        (None, None, 60, 60),
        (30, None, 60, 30),
        (90, None, 60, 90),
        (None, 5, None, 5),
        (None, 5, 60, 5),
        (30, 5, 60, 5),
        (30, 40, 60, 30),
        # Edited by hand.
        (30, 0, 60, 30),
        (None, -1, None, None),
        (30, float("nan"), None, 30),
        (30, float("inf"), None, 30),
    ],
)
def test_the_time_limit_is_the_handlers_or_the_settings_and_the_jobs_lowers_it(
    handlers: float | None, jobs: float | None, default: float | None, limit: float | None
) -> None:
    one = make_run(make_handler("x", spin, timeout=handlers), timeout=jobs)
    assert time_limit(one, default) == limit


@with_database
def test_the_setting_and_the_jobs_own_limit_are_kept(make: Make, keys: Callable[..., None]) -> None:
    keys(JOB_TIMEOUT=SOON)
    make(concurrency=2).start()
    assert run(spin).interruption_reason == TIMED_OUT
    register_handler("long", spin, timeout=600)
    job = make_job(type="long", timeout=SOON)
    ended(job)
    assert attempts(job) == [(1, "interrupted", TIMED_OUT)]


@with_database
def test_a_time_limit_beyond_every_clock_is_none(worker: Scheduler) -> None:
    register_handler("it", lambda: "done")
    jobs = [make_job(type="it", timeout=timeout) for timeout in (1e300, float("1e18"))]
    assert [job.state for job in ended(*jobs)] == ["completed"] * 2
    assert run(spin, timeout=SOON).interruption_reason == TIMED_OUT


# What follows


@with_database
def test_a_handler_that_is_safe_to_repeat_is_run_again_after_a_time_out(
    worker: Scheduler,
) -> None:
    runs = iter([spin, lambda: None])
    register_handler(
        "it", lambda: next(runs)(), max_attempts=2, on_interrupt="requeue", timeout=SOON
    )
    (job,) = ended(enqueue("it"))
    assert attempts(job) == [(1, "interrupted", TIMED_OUT), (2, "completed", "")]


@with_database
def test_after_its_last_attempt_it_is_interrupted(worker: Scheduler) -> None:
    options = {"max_attempts": 2, "on_interrupt": "requeue", "timeout": SOON}
    execution = run(spin, **options)
    assert attempts(execution.job) == [(n, "interrupted", TIMED_OUT) for n in (1, 2)]


# Stops


@with_database
def test_a_running_job_stops_when_somebody_asks_for_it_and_is_not_run_again(
    make: Make, keys: Callable[..., None]
) -> None:
    """By the wake-up within this process: no heartbeat comes in time."""
    keys(HEARTBEAT=300, LEASE=600)
    make().start()
    began = threading.Event()

    def work() -> None:
        began.set()
        spin()

    register_handler("it", work, max_attempts=3, on_interrupt="requeue")
    job = enqueue("it")
    assert began.wait(30)
    request_stop(job, "enough")
    (stopped,) = ended(job)
    execution = stopped.latest_execution
    assert attempts(job) == [(1, "interrupted", STOPPED)]
    assert execution.error == "JobStopped: The job was asked to stop."
    assert stopped.cancelled_reason == "enough"
    assert_queue_is_sound()


@with_database
def test_an_async_job_stops_when_somebody_asks_for_it(worker: Scheduler) -> None:
    began = threading.Event()

    async def work() -> None:
        began.set()
        await asyncio.sleep(600)

    register_handler("it", work)
    job = enqueue("it")
    assert began.wait(30)
    request_stop(job)
    ended(job)
    assert attempts(job) == [(1, "interrupted", STOPPED)]


def ask_from_elsewhere(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask the job to stop as another process does, which this one's workers do not hear."""
    with monkeypatch.context() as patched:
        patched.setattr(signals, "wake_listeners", [])
        request_stop(job)


@with_database
def test_a_stop_asked_for_elsewhere_comes_with_the_next_heartbeat(
    make: Make, keys: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys(HEARTBEAT=0.1, LEASE=30)
    make().start()
    began = threading.Event()

    def work() -> None:
        began.set()
        spin()

    register_handler("it", work)
    job = enqueue("it")
    assert began.wait(30)
    ask_from_elsewhere(job, monkeypatch)
    ended(job)
    assert attempts(job) == [(1, "interrupted", STOPPED)]


@with_database
def test_on_postgresql_it_comes_at_once_by_listen(
    make: Make, keys: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("LISTEN is PostgreSQL's")
    keys(HEARTBEAT=300, LEASE=600, LISTEN=True)
    make().start()
    began = threading.Event()

    def work() -> None:
        began.set()
        spin()

    assert run(lambda: None).state == "completed"  # it listens by now
    register_handler("work", work)
    job = enqueue("work")
    assert began.wait(30)
    ask_from_elsewhere(job, monkeypatch)
    ended(job)
    assert attempts(job) == [(1, "interrupted", STOPPED)]


@with_database
def test_a_job_that_was_to_stop_before_it_was_claimed_again_is_not_called(
    worker: Scheduler,
) -> None:
    """It went back to the queue for its retry before its worker heard of the request."""
    called: list[str] = []
    register_handler("it", lambda: called.append("called"))
    job = make_job(type="it", stop_requested_at=now(), attempts=1)
    ended(job)
    assert attempts(job) == [(2, "interrupted", STOPPED)]
    assert called == []


@with_database
def test_a_claimed_job_that_is_asked_to_stop_is_never_started(worker: Scheduler) -> None:
    asked: list[str] = []
    claimed, go_on = threading.Event(), threading.Event()

    def may_run(job: Any) -> bool:
        asked.append("asked")
        if len(asked) == 2:
            claimed.set()
            go_on.wait(30)
        return True

    register_handler("it", lambda: asked.append("called"), can_run=may_run)
    job = enqueue("it")
    assert claimed.wait(30)
    request_stop(job)
    go_on.set()
    ended(job)
    assert attempts(job) == [(1, "interrupted", STOPPED)]
    assert Execution.objects.get().started_at is None
    assert asked == ["asked"] * 2


@with_database
def test_an_operators_stop_counts_for_more_than_the_time_limit(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is it run again, although its handler would be after a time-out."""
    make().start()
    told, go_on = threading.Event(), threading.Event()

    def work() -> None:
        try:
            spin()
        except JobTimedOut:
            told.set()
            go_on.wait(4)
            raise

    register_handler("it", work, timeout=SOON, max_attempts=2, on_interrupt="requeue")
    job = enqueue("it")
    assert told.wait(30)
    request_stop(job)
    go_on.set()
    ended(job)
    assert attempts(job) == [(1, "interrupted", STOPPED)]


# While the database is away


@with_database
def test_time_limits_are_kept_while_the_database_is_away(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, told = threading.Event(), threading.Event()
    turn = Desk.turn

    def turn_later(self: Desk, *args: Any, **kwargs: Any) -> Any:
        if began.is_set() and not told.is_set():
            raise OperationalError("away")
        return turn(self, *args, **kwargs)

    def work() -> None:
        began.set()
        try:
            spin()
        finally:
            told.set()

    monkeypatch.setattr(Desk, "turn", turn_later)
    make().start()
    assert run(work, timeout=0.3).interruption_reason == TIMED_OUT


# What it costs


@with_database
def test_a_time_limit_costs_no_statement(make: Make, keys: Callable[..., None]) -> None:
    keys(HEARTBEAT=300, LEASE=600)
    make(concurrency=1).start()
    counts: list[int] = []
    turn = Desk.turn

    def counted(self: Desk, *args: Any, **kwargs: Any) -> Any:
        with CaptureQueriesContext(connections["default"]) as queries:
            result = turn(self, *args, **kwargs)
        counts.append(len(queries))
        return result

    def cost(**options: Any) -> int:
        type = uuid.uuid4().hex
        register_handler(type, lambda: None, **options)
        ended(enqueue(type))
        counts.clear()
        ended(*[enqueue(type) for _ in range(5)])
        return max(counts)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Desk, "turn", counted)
        assert cost() == cost(timeout=300)


# At the edge


@pytest.fixture
def switching_often() -> Iterator[None]:
    """Let threads take turns so often that any two instructions may be torn apart."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_nothing_is_raised_into_a_thread_outside_of_the_handler(
    switching_often: None,
) -> None:
    """The stop comes at the moment of the return, thousands of times."""
    dog = Watchdog(limit=None, abandoned=lambda run, frame: None)
    handler = make_handler("x", spin)
    rounds, seed = 3_000, random.Random(7)
    runs = [make_run(handler) for _ in range(rounds)]
    ends: list[str] = []
    stray: list[str] = []
    meet = threading.Barrier(2)

    def idle(seconds: float) -> None:
        until_then = time.perf_counter() + seconds
        while time.perf_counter() < until_then:
            pass

    def work() -> None:
        frame = ThreadFrame(deserted=lambda: None)
        for each in runs:
            meet.wait(30)
            try:
                try:
                    dog.call(each, frame, lambda: idle(0.0002))
                    ends.append("returned")
                except JobStopped:
                    ends.append("stopped")
                # What comes next on this thread: our own code, and another job's.
                idle(0.0001)
            except BaseException as error:
                stray.append(repr(error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    for each in runs:
        meet.wait(30)
        idle(seed.uniform(0, 0.0008))
        dog.stop(each, InterruptionReason.STOP_REQUESTED)
    thread.join(60)
    dog.close()
    assert stray == []
    assert len(ends) == rounds
    # Both came about, or the edge was never met.
    assert set(ends) == {"returned", "stopped"}
    assert dog.stuck == 0
    assert all(each.frame is None for each in runs)  # each was left, or a later one would be hit


@with_database
@pytest.mark.slow
def test_the_next_jobs_of_a_thread_are_not_hit_by_time_outs_at_the_edge(make: Make) -> None:
    make(concurrency=2).start()
    hit: list[str] = []

    def edge(seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            pass

    def innocent() -> None:
        try:
            edge(0.0005)
        except BaseException as error:
            hit.append(repr(error))
            raise

    register_handler("edge", edge, timeout=0.005)
    register_handler("innocent", innocent)
    seed = random.Random(3)
    jobs = []
    for _ in range(150):
        jobs.append(enqueue("edge", {"seconds": 0.005 + seed.uniform(-0.0005, 0.0005)}))
        jobs.append(enqueue("innocent"))
    found = ended(*jobs)
    assert hit == []
    edges, others = found[::2], found[1::2]
    assert {job.state for job in others} == {"completed"}
    assert {job.state for job in edges} <= {"completed", "interrupted"}
    assert_queue_is_sound()


@with_database
def test_a_stop_that_hits_a_handler_while_it_records_leaves_the_scribe_at_others_service() -> None:
    """It hits behind each call of C code in turn: that is where Python raises it."""
    scribe = Scribe("default")
    scribe.start()

    def raising_at(number: int) -> Callable[..., None]:
        left = itertools.count(number, -1)

        def profile(frame: object, event: str, argument: object) -> None:
            if event == "c_return" and next(left) == 0:
                raise JobStopped

        return profile

    def record(number: int) -> None:
        sys.setprofile(raising_at(number))
        try:
            scribe.write(lambda connection: None)
            through.append(number)
        except JobStopped:
            pass
        finally:
            sys.setprofile(None)

    through: list[int] = []
    for number in itertools.count():
        told = threading.Thread(target=record, args=[number], daemon=True)
        told.start()
        told.join(10)
        assert not told.is_alive(), number
        other = threading.Thread(target=scribe.write, args=[lambda connection: None], daemon=True)
        other.start()
        other.join(10)
        assert not other.is_alive(), number
        if through:
            break
    assert through[0] > 3  # it met more than the first few of them
    scribe.close()


class FakeFrame:
    """A frame in which nothing happens, but what was asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def interrupt(self, error: type[BaseException]) -> None:
        self.asked.append(error.__name__)

    def withdraw(self) -> None:
        self.asked.append("withdraw")

    def where(self) -> str:
        return ""

    def desert(self) -> None:
        self.asked.append("desert")


def test_what_was_not_raised_yet_is_withdrawn_when_the_handler_is_left() -> None:
    dog = Watchdog(limit=None, abandoned=lambda run, frame: None)
    told, untold = FakeFrame(), FakeFrame()
    one, other = make_run(make_handler("x", spin)), make_run(make_handler("x", spin))
    dog.enter(one, told)
    dog.enter(other, untold)
    for _ in range(2):
        dog.stop(one, InterruptionReason.STOP_REQUESTED)
    for each in (one, other):
        dog.leave(each)
        dog.leave(each)
        dog.stop(each, InterruptionReason.TIMED_OUT)
    dog.close()
    assert told.asked == ["JobStopped", "withdraw"]
    assert untold.asked == []


def test_a_handler_that_was_interrupted_leaves_the_interpreter_as_it_was() -> None:
    """On CPython 3.11 no thread gets on with a debugger or a profiler while an error is pending."""
    dog = Watchdog(limit=None, abandoned=lambda run, frame: None)
    told = make_run(make_handler("x", spin))
    profiled: list[str] = []

    def stopped() -> None:
        frame = ThreadFrame(deserted=lambda: None)
        with pytest.raises(JobStopped):
            dog.call(told, frame, spin)

    def under_a_profiler() -> None:
        sys.setprofile(lambda frame, event, argument: None)
        make_handler("x", spin)
        sys.setprofile(None)
        profiled.append("ended")

    for target in (stopped, under_a_profiler):
        thread = threading.Thread(target=target, daemon=True)
        thread.start()
        if target is stopped:
            until(lambda: told.frame is not None, "the call")
            dog.stop(told, InterruptionReason.STOP_REQUESTED)
        thread.join(10)
    dog.close()
    assert profiled == ["ended"]
