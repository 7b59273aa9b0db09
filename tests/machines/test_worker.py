"""The worker inside this process: what handlers may do to it, and what it makes of their ends."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections, transaction
from django.utils import timezone, translation

from django_durable_jobs import Discard, Retry, enqueue, register_handler
from django_durable_jobs.claims import interrupt, settle
from django_durable_jobs.conf import settings as durable_settings
from django_durable_jobs.db import transaction as own_transaction
from django_durable_jobs.errors import DurableJobsError, InvalidJob, ShutDown, StaleClaim
from django_durable_jobs.models import Execution, Job, QueueEntry, Worker
from django_durable_jobs.registry import handlers
from django_durable_jobs.states import SETTLED
from django_durable_jobs.worker import JobContext, Scheduler
from tests.app.models import Note
from tests.factories import assert_queue_is_sound, make_job, spoil
from tests.processes.harness import attempts, until

pytestmark = pytest.mark.django_db(transaction=True)

Make = Callable[..., Scheduler]
tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")
# What handlers raise on purpose is logged.
logging.getLogger("django_durable_jobs").addHandler(logging.NullHandler())


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    with handlers.preserved():
        yield


@pytest.fixture(autouse=True)
def keys(settings: Any) -> Iterator[Callable[..., None]]:
    def change(**values: Any) -> None:
        settings.DURABLE_JOBS = {**settings.DURABLE_JOBS, **values}

    settings.DURABLE_JOBS = {"POLL_INTERVAL": 0.1, "LISTEN": False}
    yield change
    durable_settings.reset()


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Scheduler] = []

    def make_one(**options: Any) -> Scheduler:
        made.append(Scheduler(**options))
        return made[-1]

    yield make_one
    for scheduler in made:
        scheduler.shutdown(grace=0)


@pytest.fixture
def worker(make: Make) -> Scheduler:
    """A worker with one slot, so that jobs follow each other in one thread."""
    scheduler = make(concurrency=1)
    scheduler.start()
    return scheduler


def ended(*jobs: Job) -> list[Job]:
    """Return the jobs once all of them are settled."""
    ids = [job.pk for job in jobs]
    until(
        lambda: Job.objects.filter(pk__in=ids, state__in=SETTLED).count() == len(ids),
        f"the ends of {ids}",
    )
    found = Job.objects.in_bulk(ids)
    return [found[id] for id in ids]


def run(function: Callable[..., Any], payload: Any = None, **options: Any) -> Execution:
    """Register the function, run one job of it, and return its last execution."""
    register_handler("it", function, **options)
    (job,) = ended(enqueue("it", payload))
    return job.latest_execution  # type: ignore[no-any-return]


# What a handler may do to its connection


def close() -> None:
    connection.close()


def close_in_transaction() -> None:
    transaction.atomic().__enter__()
    connection.close()


def leave_autocommit_off() -> None:
    transaction.set_autocommit(False)
    Note.objects.create(text="never committed")


def leave_atomic_open() -> None:
    transaction.atomic().__enter__()
    Note.objects.create(text="never committed")


def leave_rollback_needed() -> None:
    transaction.atomic().__enter__()
    transaction.set_rollback(True)


def leave_hook() -> None:
    transaction.atomic().__enter__()
    transaction.on_commit(lambda: Note.objects.create(text="never called"))


def break_transaction() -> None:
    transaction.atomic().__enter__()
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM there_is_no_such_table")


@pytest.mark.parametrize(
    ("harm", "state"),
    [
        (close, "completed"),
        (close_in_transaction, "failed"),
        (leave_autocommit_off, "completed"),
        # What they wrote is rolled back: to say "completed" would be a lie.
        (leave_atomic_open, "failed"),
        (leave_rollback_needed, "failed"),
        (leave_hook, "failed"),
        (break_transaction, "failed"),
    ],
)
def test_the_next_handler_finds_a_clean_connection(
    worker: Scheduler, harm: Callable[[], None], state: str
) -> None:
    register_handler("harm", harm)
    register_handler("write", lambda: Note.objects.create(text="written").text)
    (harmed,) = ended(enqueue("harm"))
    (written,) = ended(enqueue("write"))
    assert (harmed.state, written.state) == (state, "completed")
    assert list(Note.objects.values_list("text", flat=True)) == ["written"]


def test_session_settings_do_not_leak(worker: Scheduler) -> None:
    change, show, wanted = {
        "postgresql": ("SET statement_timeout = '12345ms'", "SHOW statement_timeout", "12345ms"),
        "mysql": ("SET SESSION sort_buffer_size = 123904", "SELECT @@sort_buffer_size", 123904),
        "sqlite": ("PRAGMA case_sensitive_like = 1", "SELECT 'a' LIKE 'A'", 0),
    }[connection.vendor]

    def ask() -> Any:
        with connection.cursor() as cursor:
            cursor.execute(show)
            return cursor.fetchone()[0]

    def leak() -> Any:
        with connection.cursor() as cursor:
            cursor.execute(change)
        return ask()

    register_handler("leak", leak)
    register_handler("ask", ask)
    leaked, asked = ended(enqueue("leak", priority=1), enqueue("ask"))
    assert leaked.latest_execution.result == wanted
    assert asked.latest_execution.result != wanted


def test_connections_do_not_pile_up(worker: Scheduler) -> None:
    used: list[Any] = []

    def use() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        used.append(connections["default"].connection)

    register_handler("use", use)
    for _ in range(5):
        ended(enqueue("use"))
    assert len({id(each) for each in used}) == 1  # kept, since it came back as it went


# What else must not leak


def test_context_variables_language_and_time_zone_do_not_leak(worker: Scheduler) -> None:
    def leak() -> None:
        tenant.set("acme")
        translation.activate("de")
        timezone.activate("Asia/Tokyo")

    def look() -> list[str]:
        return [tenant.get(), translation.get_language(), timezone.get_current_timezone_name()]

    register_handler("leak", leak)
    register_handler("look", look)
    ended(enqueue("leak"))
    (looked,) = ended(enqueue("look"))
    assert looked.latest_execution.result == ["nobody", "en", "Europe/Vienna"]


def test_what_the_enqueueing_thread_has_set_does_not_leak(worker: Scheduler) -> None:
    tenant.set("of the test")
    assert run(lambda: tenant.get()).result == "nobody"


# Ends


class Hostile(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def recurse() -> None:
    recurse()


def raiser(error: BaseException) -> Callable[[], None]:
    def raise_it() -> None:
        raise error

    return raise_it


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        asyncio.CancelledError(),
        StopIteration(),
        MemoryError(),
        Hostile(),
        BaseException("any"),
        ExceptionGroup("two", [ValueError("a"), KeyError("b")]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_handler_raises_fails_the_job_and_not_the_worker(
    worker: Scheduler, error: BaseException
) -> None:
    execution = run(raiser(error))
    assert execution.state == "failed"
    assert type(error).__name__ in execution.error
    register_handler("next", lambda: "alive")
    (after,) = ended(enqueue("next"))
    assert after.latest_execution.result == "alive"
    assert worker.status()["healthy"]


@pytest.mark.parametrize(
    "error",
    [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()],
    ids=lambda error: type(error).__name__,
)
def test_whatever_an_async_handler_raises_fails_the_job_and_not_the_loop(
    worker: Scheduler, error: BaseException
) -> None:
    async def raise_it() -> None:
        raise error

    async def say() -> str:
        return "alive"

    assert run(raise_it).state == "failed"
    register_handler("next", say)
    (after,) = ended(enqueue("next"))
    assert after.latest_execution.result == "alive"


def test_endless_recursion_fails_the_job(worker: Scheduler) -> None:
    execution = run(recurse)
    assert (execution.state, execution.error[:14]) == ("failed", "RecursionError")


@pytest.mark.parametrize(
    "text",
    ["a\x00b", "a\ud800b", "x" * 10_000_000, "naïve 🎉", ""],
    ids=["NUL", "surrogate", "10 MB", "not ASCII", "empty"],
)
def test_any_error_text_can_be_stored(worker: Scheduler, text: str) -> None:
    execution = run(raiser(ValueError(text)))
    assert execution.state == "failed"
    assert execution.error.startswith("ValueError")
    assert len(execution.error) <= 4_096
    assert len(execution.traceback) <= 64 * 1_024 + 200


def test_a_failure_goes_to_the_log_with_its_traceback(
    worker: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    run(raiser(ValueError("for the error tracker")))
    (record,) = [r for r in caplog.records if "job failed" in r.getMessage()]
    assert record.levelname == "ERROR"
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "for the error tracker"


@pytest.mark.parametrize("value", [None, 0, "", [1, {"a": None}], {"a": 1.5}, True])
def test_a_json_result_is_stored(worker: Scheduler, value: Any) -> None:
    execution = run(lambda: value)
    assert execution.state == "completed"
    assert execution.result == value


@pytest.mark.parametrize("value", [object(), {1: 2}, float("nan"), "a\x00", "x" * 65_536, b"x"])
def test_a_result_that_cannot_be_kept_fails_the_job_for_good(worker: Scheduler, value: Any) -> None:
    execution = run(lambda: value, max_attempts=3, backoff=0)
    assert execution.state == "failed"
    assert execution.error.startswith("result")
    assert Execution.objects.count() == 1


# Retries


def test_a_declared_retry_runs_again_until_its_attempts_are_used_up(worker: Scheduler) -> None:
    register_handler("it", raiser(ValueError("again")), max_attempts=3, backoff=0.01)
    (job,) = ended(enqueue("it"))
    assert (job.state, job.attempts) == ("failed", 3)
    assert attempts(job) == [(n, "failed", "") for n in (1, 2, 3)]


def test_a_retry_that_works_completes_the_job(worker: Scheduler) -> None:
    register_handler(
        "it",
        lambda context: 1 / (context.attempt - 1),
        takes_context=True,
        max_attempts=2,
        backoff=lambda attempt, error: attempt * 0.01,
    )
    (job,) = ended(enqueue("it"))
    assert attempts(job) == [(1, "failed", ""), (2, "completed", "")]
    assert job.latest_execution.result == 1.0


def test_only_declared_exceptions_are_tried_again(worker: Scheduler) -> None:
    run(raiser(KeyError()), max_attempts=3, backoff=0, retry_on=[OSError])
    assert Execution.objects.count() == 1


def test_retry_after_waits_so_long(worker: Scheduler) -> None:
    register_handler("it", raiser(Retry(after=3_600)), max_attempts=2)
    job = enqueue("it")
    until(lambda: Job.objects.filter(pk=job.pk, held_reason="retry").exists(), "the put-off")
    job.refresh_from_db()
    assert job.state == "queued"
    assert 3_500 < (job.claimable_at - job.updated_at).total_seconds() <= 3_601
    assert_queue_is_sound()


def test_retry_past_its_attempts_fails(worker: Scheduler) -> None:
    execution = run(raiser(Retry(after=0)))
    assert (execution.state, execution.attempt) == ("failed", 1)


def test_discard_fails_at_once_with_its_code(worker: Scheduler) -> None:
    execution = run(raiser(Discard("no use")), max_attempts=5, backoff=0)
    assert (execution.state, execution.error_code) == ("failed", "discarded")
    assert "no use" in execution.error
    assert Execution.objects.count() == 1


# atomic=True


def write_note(text: str = "kept") -> str:
    Note.objects.create(text=text)
    return text


def test_an_atomic_handler_keeps_its_writes_with_its_completion(worker: Scheduler) -> None:
    execution = run(write_note, atomic=True)
    assert (execution.state, execution.result) == ("completed", "kept")
    assert Note.objects.get().text == "kept"


def test_an_atomic_handler_that_raises_keeps_nothing(worker: Scheduler) -> None:
    def write_and_raise() -> None:
        write_note()
        raise ValueError

    assert run(write_and_raise, atomic=True).state == "failed"
    assert not Note.objects.exists()


def test_an_atomic_handler_whose_result_cannot_be_kept_keeps_nothing(worker: Scheduler) -> None:
    def write_and_return() -> object:
        write_note()
        return object()

    assert run(write_and_return, atomic=True).state == "failed"
    assert not Note.objects.exists()


def take_away(context: JobContext) -> None:
    """Interrupt the job as a reaper does, from another thread."""
    claim = (context.job.pk, context.claim_id)

    def reap() -> None:
        try:
            with own_transaction("default") as own:
                assert settle(own, [interrupt(claim, "worker_lost", repeats=False)])
        finally:
            connections.close_all()

    thread = threading.Thread(target=reap)
    thread.start()
    thread.join()


@pytest.mark.skipif(
    "connection.vendor == 'sqlite'",
    reason="while the handler's transaction is open nobody else can write, a reaper neither",
)
def test_an_atomic_handler_whose_claim_is_lost_keeps_nothing(worker: Scheduler) -> None:
    def lose_and_write(context: JobContext) -> None:
        write_note()
        take_away(context)

    execution = run(lose_and_write, atomic=True, takes_context=True)
    assert (execution.state, execution.interruption_reason) == ("interrupted", "worker_lost")
    until(lambda: worker.status()["active"] == 0, "the handler's end")
    assert not Note.objects.exists()


# The context


def test_each_record_replaces_the_whole_value_and_returns_what_is_stored(
    worker: Scheduler,
) -> None:
    def record(context: JobContext) -> list[Any]:
        first = context.record_metadata({"a": 1})
        second = context.record_metadata({"b": 2})
        context.record_receipt(["r"])
        context.progress(1, 3, "one\x00third")
        return [first.metadata, second.metadata, second.updated_at >= first.updated_at]

    execution = run(record, takes_context=True)
    assert execution.result == [{"a": 1}, {"b": 2}, True]
    assert (execution.metadata, execution.receipt) == ({"b": 2}, ["r"])
    assert (execution.progress["done"], execution.progress["total"]) == (1, 3)


@pytest.mark.parametrize(
    ("done", "total", "stored"),
    [(0, 0, (0, 0)), (0.5, 1, (0.5, 1)), (7, 7, (7, 7)), (5, 1, (5, 5)), (1, 0, (1, 1))],
)
def test_more_done_than_in_all_is_all_of_it(
    worker: Scheduler, done: float, total: float, stored: tuple[float, float]
) -> None:
    execution = run(lambda context: context.progress(done, total) and None, takes_context=True)
    assert execution.state == "completed"
    assert (execution.progress["done"], execution.progress["total"]) == stored


@pytest.mark.parametrize(
    ("done", "total", "message"),
    [
        (-1, 3, "progress.done: must be a number, 0 or more, not -1."),
        (1, float("nan"), "progress.total: must be a number, 0 or more, not nan."),
        (1, float("inf"), "progress.total: must be a number, 0 or more, not inf."),
        ("1", 3, "progress.done: must be a number, 0 or more, not '1'."),
        (True, 3, "progress.done: must be a number, 0 or more, not True."),
        (1, None, "progress.total: must be a number, 0 or more, not None."),
    ],
)
def test_progress_is_told_in_numbers(
    worker: Scheduler, done: Any, total: Any, message: str
) -> None:
    def tell(context: JobContext) -> str:
        with pytest.raises(InvalidJob) as refused:
            context.progress(done, total)
        return str(refused.value)

    execution = run(tell, takes_context=True)
    assert (execution.result, execution.progress) == (message, None)


@pytest.mark.parametrize("value", [object(), {"a": float("inf")}, "x" * 65_536])
def test_a_refused_record_raises_and_leaves_what_was_there(worker: Scheduler, value: Any) -> None:
    def record(context: JobContext) -> str:
        context.record_receipt("first")
        with pytest.raises(InvalidJob):
            context.record_receipt(value)
        return "raised"

    execution = run(record, takes_context=True)
    assert (execution.result, execution.receipt) == ("raised", "first")


def test_after_its_end_a_context_writes_nothing(worker: Scheduler) -> None:
    kept: list[JobContext] = []
    execution = run(lambda context: kept.append(context), takes_context=True)
    for record in (kept[0].record_metadata, kept[0].record_receipt):
        with pytest.raises(StaleClaim):
            record("late")
    with pytest.raises(StaleClaim):
        kept[0].progress(1, 1)
    execution.refresh_from_db()
    assert (execution.metadata, execution.receipt, execution.progress) == (None, None, None)


def test_records_are_committed_at_once_whatever_becomes_of_the_handlers_transaction(
    worker: Scheduler,
) -> None:
    def record(context: JobContext) -> str:
        try:
            with transaction.atomic():
                write_note()
                context.record_receipt("kept")
                raise LookupError
        except LookupError:
            return "rolled back"
        except DurableJobsError as error:
            return error.code

    execution = run(record, takes_context=True)
    assert not Note.objects.exists()
    if connection.vendor == "sqlite":
        # Its one write lock may be held by that transaction: an error at once, no dead lock.
        assert execution.result == "record-in-transaction"
    else:
        assert (execution.result, execution.receipt) == ("rolled back", "kept")


def test_an_async_handler_records_and_reaches_the_database_in_a_context_of_its_own(
    worker: Scheduler,
) -> None:
    async def record(context: JobContext) -> list[Any]:
        seen = tenant.get()
        tenant.set("acme")
        await context.arecord_metadata({"a": 1})
        await context.arecord_receipt({"b": 2})
        await context.aprogress(1, 2)
        await sync_to_async(write_note)("sync")
        await Note.objects.acreate(text="async")
        return [seen, await Note.objects.acount()]

    register_handler("it", record, takes_context=True)
    first, second = ended(enqueue("it"), enqueue("it"))
    assert first.latest_execution.result == ["nobody", 2]
    assert second.latest_execution.result == ["nobody", 4]
    execution = second.latest_execution
    assert (execution.metadata, execution.receipt) == ({"a": 1}, {"b": 2})


def test_async_handlers_share_the_loop(make: Make, keys: Callable[..., None]) -> None:
    here = 0

    async def meet() -> int:
        nonlocal here
        here += 1
        deadline = time.monotonic() + 10
        while here < 4 and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        return here

    register_handler("meet", meet)
    make(concurrency=4).start()
    met = ended(*(enqueue("meet") for _ in range(4)))
    assert [job.latest_execution.result for job in met] == [4] * 4


# can_run


def test_an_async_can_run_is_awaited(worker: Scheduler) -> None:
    async def may(job: Job) -> bool:
        await asyncio.sleep(0)
        return bool(job.payload["may"])

    register_handler("it", lambda may: may, can_run=may)
    held = enqueue("it", {"may": False})
    (done,) = ended(enqueue("it", {"may": True}))
    assert done.state == "completed"
    until(lambda: Job.objects.get(pk=held.pk).held_reason == "not_eligible", "the put-off")


def test_a_can_run_that_says_no_the_second_time_gives_the_job_back(worker: Scheduler) -> None:
    answers: list[bool] = []

    def may(job: Job) -> bool:
        answers.append(len(answers) != 1)
        return answers[-1]

    register_handler("it", lambda: "ran", can_run=may)
    (job,) = ended(enqueue("it"))
    assert (job.state, job.attempts) == ("completed", 1)
    assert attempts(job) == [(1, "released", ""), (1, "completed", "")]
    released = Execution.objects.filter(job=job).order_by("id")[0]
    assert released.started_at is None
    assert answers == [True, False, True, True]


@pytest.mark.parametrize("error", [ValueError(), SystemExit(1), KeyboardInterrupt()])
def test_a_can_run_that_raises_says_no_does_not_spin_and_holds_nobody_up(
    worker: Scheduler, error: BaseException
) -> None:
    asked = []

    def may(job: Job) -> bool:
        asked.append(time.monotonic())
        raise error

    register_handler("gated", lambda: None, can_run=may)
    register_handler("free", lambda: "free")
    held = enqueue("gated", priority=10)
    until(lambda: asked, "the question")
    for _ in range(5):
        ended(enqueue("free"))
    assert len(asked) <= 2  # put off by a second at least
    held.refresh_from_db()
    assert (held.state, held.attempts) == ("queued", 0)


# Handlers that come and go


def test_a_new_handler_is_served_at_once(worker: Scheduler) -> None:
    waiting = enqueue("later", {"n": 3})
    until(lambda: Job.objects.get(pk=waiting.pk).held_reason == "no_handler", "the put-off")
    register_handler("later", lambda n: n)
    (job,) = ended(waiting)
    assert job.latest_execution.result == 3
    until(lambda: "later" in Worker.objects.get(pk=worker.id).types, "the worker's row")


def test_an_unknown_type_holds_nobody_up(worker: Scheduler) -> None:
    unknown = [enqueue("nobody.knows", priority=100) for _ in range(20)]
    assert run(lambda: "ran").result == "ran"
    assert set(Job.objects.filter(pk__in=[j.pk for j in unknown]).values_list("state")) == {
        ("queued",)
    }


# Rows edited by hand


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("target", {}, "target"),
        ("target", {"kind": " ", "id": "x"}, "target"),
        ("target", [], "target"),
        ("payload", [1, 2], "payload"),
        ("payload", {"other": 1}, "other"),
        ("payload", {}, "n"),
    ],
)
def test_a_row_edited_into_nonsense_fails_with_what_is_wrong(
    make: Make, column: str, value: Any, told: str
) -> None:
    called = []
    register_handler("it", lambda n: called.append(n))
    bad = make_job(type="it", payload={"n": 1}, target={"kind": "k", "id": "i"})
    Job.objects.filter(pk=bad.pk).update(**{column: value})
    good = enqueue("it", {"n": 2})
    make(concurrency=1).start()
    bad, good = ended(bad, good)
    assert (bad.state, good.state) == ("failed", "completed")
    assert told in bad.latest_execution.error
    assert called == [2]


@pytest.mark.skipif("connection.vendor != 'sqlite'", reason="the others hold JSON to its form")
@pytest.mark.parametrize("gated", [False, True])
def test_json_that_cannot_be_read_fails_one_job_alone(make: Make, gated: bool) -> None:
    options = {"can_run": lambda job: True} if gated else {}
    register_handler("it", lambda n: n, **options)
    bad, good = make_job(type="it", payload={"n": 1}), make_job(type="it", payload={"n": 2})
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA ignore_check_constraints = 1")
        cursor.execute(
            "UPDATE django_durable_jobs_job SET payload = '{' WHERE id = %s", [bad.pk.hex]
        )
        cursor.execute("PRAGMA ignore_check_constraints = 0")
    make(concurrency=1).start()
    until(lambda: not QueueEntry.objects.exists(), "both jobs")
    until(lambda: Job.objects.filter(state="failed").count() == 1, "the failure")
    error = Execution.objects.get(job_id=bad.pk).error
    assert "payload cannot be read" in error
    until(lambda: Job.objects.filter(pk=good.pk, state="completed").exists(), "the neighbour")


@pytest.mark.parametrize("gated", [False, True])
def test_a_number_too_long_to_read_fails_one_job_alone(make: Make, gated: bool) -> None:
    options = {"can_run": lambda job: True} if gated else {}
    register_handler("it", lambda n: n, **options)
    bad, good = make_job(type="it", payload={"n": 1}), make_job(type="it", payload={"n": 2})
    spoil(bad.pk)
    make(concurrency=1).start()
    until(lambda: Job.objects.filter(pk=good.pk, state="completed").exists(), "the neighbour")
    until(lambda: Job.objects.filter(pk=bad.pk, state="failed").exists(), "the failure")
    assert "payload cannot be read" in Execution.objects.get(job_id=bad.pk).error


# Waking up


def test_a_job_of_another_connection_is_picked_up_long_before_max_sleep(
    make: Make, keys: Callable[..., None]
) -> None:
    keys(MAX_SLEEP=60, POLL_INTERVAL=0.5, LISTEN=True)
    register_handler("it", lambda: "ran")
    make().start()
    until(lambda: Worker.objects.exists(), "the worker")
    time.sleep(0.3)  # it is asleep now, most likely; the test holds if it is not

    def from_elsewhere() -> None:
        # No wake-up inside the process, as if the worker were in another one.
        try:
            with transaction.atomic():
                make_job(type="it")
        finally:
            connections.close_all()

    began = time.monotonic()
    thread = threading.Thread(target=from_elsewhere)
    thread.start()
    thread.join()
    until(lambda: Job.objects.filter(state="completed").exists(), "the job", seconds=20)
    assert time.monotonic() - began < 20


def test_a_job_whose_time_comes_while_the_worker_sleeps_is_taken_then(
    make: Make, keys: Callable[..., None]
) -> None:
    keys(MAX_SLEEP=60, POLL_INTERVAL=60)
    register_handler("it", lambda: "ran")
    make().start()
    run_at = timezone.now() + timezone.timedelta(seconds=1)
    (job,) = ended(enqueue("it", run_at=run_at))
    assert job.latest_execution.started_at >= run_at


# Start and end


def test_after_shutdown_start_and_tick_raise(make: Make) -> None:
    scheduler = make()
    assert scheduler.start() is True
    assert scheduler.start() is False
    until(lambda: Worker.objects.filter(pk=scheduler.id).exists(), "its row")
    scheduler.shutdown()
    scheduler.shutdown()
    for call in (scheduler.start, scheduler.tick):
        with pytest.raises(ShutDown):
            call()
    status = scheduler.status()
    assert (status["started"], status["closed"], status["active"]) == (False, True, 0)
    assert Worker.objects.get(pk=scheduler.id).state == "stopped"


def test_ticks_and_a_shutdown_at_once_leave_nobody_waiting(make: Make) -> None:
    scheduler = make()
    scheduler.tick()
    left: list[BaseException] = []

    def tick_on() -> None:
        try:
            while True:
                scheduler.tick()
        except ShutDown as error:
            left.append(error)

    threads = [threading.Thread(target=tick_on, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    scheduler.shutdown(grace=5)
    for thread in threads:
        thread.join(10)
    assert len(left) == 4


def test_a_job_that_begins_at_the_sign_off_is_interrupted_and_not_given_back(
    make: Make,
) -> None:
    """What the worker believes not to have begun may have begun: only the row knows."""
    scheduler = make()
    began, go_on = threading.Event(), threading.Event()

    def stand_still() -> None:
        began.set()
        go_on.wait(10)

    register_handler("it", stand_still)
    job = enqueue("it")
    scheduler.tick()
    assert began.wait(10)
    scheduler.active[0].claimed.started = False  # as it is until the start has been confirmed
    scheduler.shutdown(grace=0)
    go_on.set()
    job.refresh_from_db()
    assert job.state == "interrupted"
    assert attempts(job) == [(1, "interrupted", "scheduler_shutdown")]
