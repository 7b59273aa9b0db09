"""The test helpers, as a project's own tests use them: mostly inside plain TestCase classes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar
from uuid import uuid4

import pytest
import time_machine
from django.db import IntegrityError, connection, transaction
from django.test import TestCase, TransactionTestCase, override_settings
from django.utils import timezone, translation

from django_durable_jobs import (
    Discard,
    JobContext,
    Retry,
    enqueue,
    get_receipt,
    list_jobs,
    pause,
    register_handler,
)
from django_durable_jobs.conf import settings as durable_settings
from django_durable_jobs.db import DatabaseClock, current_clock
from django_durable_jobs.errors import DurableJobsError, InvalidJob
from django_durable_jobs.models import Execution, Job, QueueEntry, Worker
from django_durable_jobs.registry import handlers
from django_durable_jobs.testing import (
    arun_due,
    arun_until,
    assert_enqueued,
    assert_not_enqueued,
    captured_jobs,
    clock,
    run_due,
    run_until,
)
from tests.app.models import Note
from tests.factories import assert_queue_is_sound

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def texts() -> list[str]:
    return list(Note.objects.order_by("pk").values_list("text", flat=True))


def write(text: str) -> None:
    Note.objects.create(text=text)


def fail_in_the_database() -> None:
    """Have a statement refused, outside of any atomic block."""
    user = Job.objects.values_list("pk", flat=True)[0]
    Job.objects.create(pk=user)


class Helpers:
    """What the classes below share: handlers that are forgotten, sound tables at the end."""

    addCleanup: Any
    enterContext: Any

    def setUp(self) -> None:
        self.enterContext(handlers.preserved())
        logging.getLogger("django_durable_jobs").addHandler(logging.NullHandler())
        register_handler("write", write)

    def configure(self, **values: Any) -> None:
        self.enterContext(override_settings(DURABLE_JOBS=values))
        self.addCleanup(durable_settings.reset)

    def check_a_transaction_that_is_left_open(self) -> None:
        def leaves() -> None:
            transaction.atomic().__enter__()
            transaction.atomic().__enter__()
            write("lost")

        register_handler("leaves", leaves)
        register_handler("writes", lambda: write("kept"))
        enqueue("leaves")
        enqueue("writes")
        left, kept = run_due()
        assert (left.state, left.error_code) == ("failed", "transaction-left-open")
        assert (kept.state, texts()) == ("completed", ["kept"])

    def tearDown(self) -> None:
        assert_queue_is_sound()


class RunningInATestCase(Helpers, TestCase):
    def test_a_due_job_is_claimed_run_and_settled(self) -> None:
        job = enqueue("write", {"text": "hello"}, owner_id="acme")
        [attempt] = run_due()
        assert texts() == ["hello"]
        assert (attempt.job, attempt.state, attempt.attempt) == (job, "completed", 1)
        assert attempt.job.state == "completed"
        assert attempt.started_at is not None
        assert not QueueEntry.objects.exists()
        assert not Worker.objects.exists()

    def test_what_is_not_due_stays(self) -> None:
        job = enqueue("write", {"text": "x"}, run_at=timezone.now() + timedelta(hours=1))
        assert run_due() == []
        job.refresh_from_db()
        assert job.state == "queued"

    def test_what_is_due_at_this_very_moment_runs(self) -> None:
        for n in range(20):
            enqueue("write", {"text": str(n)}, run_at=timezone.now())
            assert len(run_due()) == 1

    def test_arguments_results_and_the_context_are_as_in_a_worker(self) -> None:
        def bill(context: JobContext, on: datetime, id: Any = None) -> dict[str, Any]:
            context.record_metadata({"attempt": context.attempt})
            context.record_receipt({"sent": context.job.payload["on"]})
            stored = context.progress(1, 2, "half")
            assert context.execution == stored
            return {"year": on.year, "thread": "mine" if connection.in_atomic_block else "other"}

        register_handler("bill", bill, takes_context=True)
        job = enqueue("bill", {"on": START})
        [attempt] = run_due(raise_errors=True)
        assert attempt.result == {"year": 2026, "thread": "mine"}
        assert attempt.metadata == {"attempt": 1}
        assert get_receipt(job) == {"sent": START.isoformat()}
        assert attempt.progress == {"done": 1, "total": 2, "message": "half"}

    def test_a_receipt_outlasts_the_rollback_of_what_the_handler_wrote_with_it(self) -> None:
        def send(context: JobContext) -> None:
            with transaction.atomic():
                write("rolled back")
                context.record_receipt({"sent": True})
                raise ValueError("no")

        register_handler("send", send, takes_context=True)
        job = enqueue("send")
        [attempt] = run_due()
        assert texts() == []
        if connection.vendor == "sqlite":  # refused there by a worker too
            assert attempt.error_code == "record-in-transaction"
        else:
            assert (attempt.error, get_receipt(job)) == ("ValueError: no", {"sent": True})

    def test_what_jobs_enqueue_runs_too(self) -> None:
        def chain(n: int) -> None:
            write(str(n))
            if n:
                enqueue("chain", {"n": n - 1})

        register_handler("chain", chain)
        enqueue("chain", {"n": 3})
        assert len(run_due()) == 4
        assert texts() == ["3", "2", "1", "0"]

    def test_owners_take_turns_and_priority_counts_within_one(self) -> None:
        self.configure(OWNER_CONCURRENCY=1)
        for owner, text, priority in [
            ("a", "a2", 0),
            ("a", "a3", 0),
            ("a", "a1", 9),
            ("b", "b1", 0),
        ]:
            enqueue("write", {"text": text}, owner_id=owner, priority=priority)
        run_due()
        assert texts() == ["a1", "b1", "a2", "a3"]

    def test_only_the_queues_asked_for_are_served(self) -> None:
        enqueue("write", {"text": "mail"}, queue="mail")
        enqueue("write", {"text": "other"})
        run_due(queues=["mail"])
        assert texts() == ["mail"]
        with pytest.raises(TypeError, match="queues is the text 'mail'"):
            run_due(queues="mail")

    def test_another_namespace_is_left_alone(self) -> None:
        enqueue("write", {"text": "other"}, namespace="other")
        assert run_due() == []
        assert len(run_due("other")) == 1

    def test_a_paused_namespace_runs_nothing(self) -> None:
        pause("default")
        enqueue("write", {"text": "x"})
        assert run_due() == []
        assert run_until(timezone.now() + timedelta(days=1)) == []

    def test_a_job_of_an_unknown_type_waits_for_its_handler(self) -> None:
        job = enqueue("later")
        assert run_due() == []
        job.refresh_from_db()
        assert job.held_reason == "no_handler"
        register_handler("later", lambda: write("known"))
        assert len(run_due()) == 1

    def test_a_handler_has_no_context_variables_of_the_tests(self) -> None:
        register_handler("language", translation.get_language)
        enqueue("language")
        with translation.override("de"):
            [attempt] = run_due()
        assert attempt.result == "en"

    def test_jobs_without_end_are_stopped_by_the_limit(self) -> None:
        register_handler("again", lambda: enqueue("again") and None)
        enqueue("again")
        with pytest.raises(DurableJobsError) as raised:
            run_due(limit=7)
        assert raised.value.code == "limit"
        assert "The limit of 7 attempts is spent, and more is due" in str(raised.value)
        assert "again (7)" in str(raised.value)
        assert list_jobs(state="queued").count() == 1

    def test_exactly_as_many_as_the_limit_are_fine(self) -> None:
        for n in range(3):
            enqueue("write", {"text": str(n)})
        assert len(run_due(limit=3)) == 3

    def test_the_tests_own_statements_keep_their_plans_and_their_time(self) -> None:
        if connection.vendor != "postgresql":
            self.skipTest("only on PostgreSQL does a claim set anything")
        names = ["enable_seqscan", "enable_sort", "jit", "idle_in_transaction_session_timeout"]

        def told() -> dict[str, str]:
            with connection.cursor() as cursor:
                return {
                    name: (cursor.execute(f"SHOW {name}"), cursor.fetchone()[0])[1]
                    for name in names
                }

        before = told()
        register_handler("told", told, can_run=lambda job: True)
        enqueue("told")
        [attempt] = run_due()
        assert (attempt.result, told()) == (before, before)


class FailingInATestCase(Helpers, TestCase):
    def test_a_transaction_that_the_handler_leaves_open_is_rolled_back_and_told_of(self) -> None:
        self.check_a_transaction_that_is_left_open()

    def test_an_exception_fails_the_job_and_not_the_test(self) -> None:
        register_handler("bad", lambda: {}["price"])
        enqueue("bad")
        [attempt] = run_due()
        assert (attempt.state, attempt.error) == ("failed", "KeyError: 'price'")
        assert "KeyError" in attempt.traceback

    def test_an_exception_is_raised_where_that_is_asked_for(self) -> None:
        register_handler("bad", lambda: {}["price"])
        job = enqueue("bad")
        enqueue("write", {"text": "after"})
        with pytest.raises(KeyError):
            run_due(raise_errors=True)
        job.refresh_from_db()
        assert (job.state, texts()) == ("failed", [])

    def test_a_payload_that_does_not_fit_is_an_error_too(self) -> None:
        forget = register_handler("fits", lambda text: None)
        enqueue("fits", {"text": "x"})
        forget()
        register_handler("fits", lambda number: None)
        with pytest.raises(InvalidJob, match="number"):
            run_due(raise_errors=True)

    def test_what_is_meant_is_no_error(self) -> None:
        def discard() -> None:
            raise Discard("gone")

        def again() -> None:
            raise Retry(after=60)

        register_handler("discard", discard)
        register_handler("again", again, max_attempts=2)
        enqueue("discard")
        enqueue("again")
        discarded, retried = run_due(raise_errors=True)
        assert (discarded.state, discarded.error_code) == ("failed", "discarded")
        assert (retried.state, retried.job.state) == ("failed", "queued")

    def test_what_a_failed_handler_wrote_stays_as_it_was_committed(self) -> None:
        def half() -> None:
            write("first half")
            raise ValueError

        register_handler("half", half)
        enqueue("half")
        run_due()
        assert texts() == ["first half"]

    def test_an_atomic_job_is_whole_or_not_at_all(self) -> None:
        def maybe(text: str, fails: bool) -> str:
            write(text)
            if fails:
                raise ValueError("as asked")
            return text

        register_handler("maybe", maybe, atomic=True)
        enqueue("maybe", {"text": "kept", "fails": False})
        enqueue("maybe", {"text": "lost", "fails": True})
        with self.assertNoLogs("django_durable_jobs.worker.desk"):
            done, failed = run_due()
        assert (done.state, done.result) == ("completed", "kept")
        assert (failed.state, failed.error) == ("failed", "ValueError: as asked")
        assert texts() == ["kept"]

    def test_an_error_of_the_database_does_not_break_the_test(self) -> None:
        register_handler("refused", fail_in_the_database)
        register_handler("refused.atomic", fail_in_the_database, atomic=True)
        for type in ("refused", "refused.atomic"):
            enqueue(type)
        for attempt in run_due():
            assert attempt.state == "failed"
            assert "IntegrityError" in attempt.error
        write("the test goes on")
        assert texts() == ["the test goes on"]

    def test_a_broken_statement_that_the_handler_passes_over_is_told_of(self) -> None:
        def careless() -> None:
            with contextlib.suppress(IntegrityError):
                fail_in_the_database()

        register_handler("careless", careless)
        enqueue("careless")
        [attempt] = run_due()
        if connection.vendor == "postgresql":
            assert attempt.error_code == "broken-test-transaction"
            assert "put atomic() around it" in attempt.error
        else:
            assert attempt.state == "completed"
        assert texts() == []

    def test_a_durable_block_is_no_error_as_it_is_none_in_a_worker(self) -> None:
        def durable() -> None:
            with transaction.atomic(durable=True):
                write("durable")

        register_handler("durable", durable)
        enqueue("durable")
        run_due(raise_errors=True)
        assert texts() == ["durable"]

    def test_a_system_exit_fails_the_job(self) -> None:
        def leave() -> None:
            raise SystemExit(3)

        register_handler("leave", leave)
        enqueue("leave")
        [attempt] = run_due()
        assert (attempt.state, attempt.error) == ("failed", "SystemExit: 3")

    def test_what_ends_the_test_is_not_the_jobs(self) -> None:
        register_handler("stop", lambda: pytest.fail("an assertion of the test's"))
        enqueue("stop")
        with pytest.raises(pytest.fail.Exception):
            run_due()

    def test_a_job_that_is_deleted_by_its_handler_leaves_no_attempt(self) -> None:
        register_handler("gone", lambda: Job.objects.all().delete() and None)
        enqueue("gone")
        assert run_due() == []


class HooksInATestCase(Helpers, TestCase):
    def setUp(self) -> None:
        super().setUp()

        def hooked(text: str, fails: bool = False) -> None:
            with transaction.atomic():
                write(text)
                transaction.on_commit(lambda: enqueue("write", {"text": f"after {text}"}) and None)
            if fails:
                raise ValueError

        self.hooked = hooked
        register_handler("hooked", hooked)

    def test_a_hook_is_called_since_the_job_would_be_committed(self) -> None:
        enqueue("hooked", {"text": "a"})
        with self.captureOnCommitCallbacks() as left:
            run_due()
        assert (texts(), left) == (["a", "after a"], [])

    def test_a_hook_is_called_also_where_the_handler_fails_later(self) -> None:
        enqueue("hooked", {"text": "a", "fails": True})
        run_due()
        assert texts() == ["a", "after a"]

    def test_hooks_can_be_left_for_the_test_to_look_at(self) -> None:
        enqueue("hooked", {"text": "a"})
        register_handler("hooked.atomic", self.hooked, atomic=True)
        enqueue("hooked.atomic", {"text": "b"})
        with self.captureOnCommitCallbacks(execute=True) as left:
            run_due(on_commit=False)
            assert texts() == ["a", "b"]
        assert len(left) == 2
        run_due()
        assert texts() == ["a", "b", "after a", "after b"]

    def test_the_hooks_of_the_test_itself_are_left_alone(self) -> None:
        enqueue("hooked", {"text": "a"})
        with self.captureOnCommitCallbacks() as left:
            transaction.on_commit(lambda: write("never"))
            run_due()
        assert (texts(), len(left)) == (["a", "after a"], 1)

    def test_a_hook_that_fails_fails_the_job_but_not_an_atomic_one(self) -> None:
        def bad_hook() -> None:
            transaction.on_commit(lambda: {}["hook"])

        register_handler("plain", bad_hook)
        register_handler("atomic", bad_hook, atomic=True)
        enqueue("plain")
        enqueue("atomic")
        assert [attempt.state for attempt in run_due()] == ["failed", "completed"]

    def test_the_hooks_of_what_was_rolled_back_are_not_called(self) -> None:
        register_handler("lost", lambda text: self.hooked(text, fails=True), atomic=True)
        enqueue("lost", {"text": "a"})
        run_due()
        assert texts() == []


class AskingInATestCase(Helpers, TestCase):
    def test_can_run_is_asked_and_a_no_puts_the_job_off(self) -> None:
        answers = [False, True, True]
        register_handler("gated", lambda: write("ran"), can_run=lambda job: answers.pop(0))
        job = enqueue("gated")
        with clock(START) as time:
            assert run_due() == []
            job.refresh_from_db()
            assert job.held_reason == "not_eligible"
            time.advance(1)
            assert len(run_due()) == 1
        assert (answers, texts()) == ([], ["ran"])

    def test_a_no_to_a_claimed_job_costs_no_attempt(self) -> None:
        answers = [True, False]
        register_handler("gated", lambda: write("ran"), can_run=lambda job: answers.pop(0))
        job = enqueue("gated")
        assert run_due() == []
        job.refresh_from_db()
        assert (job.state, job.attempts, answers) == ("queued", 0, [])

    def test_a_refused_job_does_not_hold_up_the_next_of_its_owner(self) -> None:
        register_handler("gated", lambda: None, can_run=lambda job: False)
        enqueue("gated", owner_id="a")
        enqueue("write", {"text": "next"}, owner_id="a")
        run_due()
        assert texts() == ["next"]

    def test_a_can_run_that_breaks_the_transaction_says_no(self) -> None:
        register_handler("gated", lambda: None, can_run=lambda job: fail_in_the_database())
        enqueue("gated")
        assert run_due() == []
        assert texts() == []

    def test_an_async_can_run_is_awaited(self) -> None:
        async def may(job: Job) -> bool:
            return await Note.objects.aexists()

        register_handler("gated", lambda: None, can_run=may)
        enqueue("gated")
        write("here")
        assert len(run_due()) == 1


class AsyncInATestCase(Helpers, TestCase):
    def test_an_async_handler_sees_the_tests_rows_and_records(self) -> None:
        async def count(context: JobContext) -> int:
            await context.arecord_receipt({"seen": await Note.objects.acount()})
            await asyncio.sleep(0)
            await Note.objects.acreate(text="of the handler")
            return await Note.objects.acount()

        register_handler("count", count, takes_context=True)
        write("of the test")
        job = enqueue("count")
        [attempt] = run_due(raise_errors=True)
        assert (attempt.result, get_receipt(job)) == (2, {"seen": 1})

    def test_an_async_handler_is_told_how_to_record(self) -> None:
        async def record(context: JobContext) -> None:
            context.record_receipt({})

        register_handler("record", record, takes_context=True)
        enqueue("record")
        [attempt] = run_due()
        assert "use await context.arecord_metadata" in attempt.error

    async def test_async_tests_run_jobs_too(self) -> None:
        async def double(n: int) -> int:
            await Note.objects.acreate(text=str(n))
            return 2 * n

        register_handler("double", double)
        await Job.objects.acount()
        from django_durable_jobs import aenqueue

        await aenqueue("double", {"n": 2})
        await aenqueue("write", {"text": "x"}, run_at=timezone.now() + timedelta(hours=1))
        [attempt] = await arun_due()
        assert (attempt.result, await Note.objects.acount()) == (4, 1)
        assert len(await arun_until(timezone.now() + timedelta(hours=2))) == 1


class MovingTimeInATestCase(Helpers, TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.times: list[datetime] = []
        register_handler("tell", self.tell)

    def tell(self) -> None:
        self.times.append(current_clock().now(connection))

    def test_each_job_runs_at_its_own_time_in_their_order(self) -> None:
        with clock(START) as time:
            for minutes in (30, 10, 90, 10):
                enqueue("tell", run_at=START + timedelta(minutes=minutes))
            attempts = run_until(START + timedelta(hours=1))
            assert time.value == START + timedelta(hours=1)
        after = [int((moment - START).total_seconds() / 60) for moment in self.times]
        assert after == [10, 10, 30]
        assert [attempt.completed_at for attempt in attempts] == self.times
        assert list_jobs(state="queued").count() == 1

    def test_retries_wait_for_their_pauses(self) -> None:
        def flaky() -> None:
            self.tell()
            if len(self.times) < 3:
                raise ConnectionError

        register_handler("flaky", flaky, max_attempts=5, backoff=lambda n, error: 60 * n)
        with clock(START) as time:
            job = enqueue("flaky")
            assert len(run_due()) == 1
            assert len(run_due()) == 0
            assert [a.attempt for a in run_until(START + timedelta(hours=1))] == [2, 3]
            assert time.value == START + timedelta(hours=1)
        assert [(t - START).seconds for t in self.times] == [0, 60, 180]
        job.refresh_from_db()
        assert job.state == "completed"

    def test_a_job_that_puts_in_the_next_one_runs_each_day(self) -> None:
        def daily() -> None:
            self.tell()
            enqueue("daily", run_at=self.times[-1] + timedelta(days=1))

        register_handler("daily", daily)
        with clock(START):
            enqueue("daily")
            run_until(START + timedelta(days=3))
        assert [moment.day for moment in self.times] == [1, 2, 3, 4]

    def test_a_refused_job_is_asked_again_on_the_way(self) -> None:
        def open_at_one(job: Job) -> bool:
            return current_clock().now(connection) >= START + timedelta(hours=1)

        register_handler("gated", self.tell, can_run=open_at_one)
        with clock(START):
            enqueue("gated")
            run_until(START + timedelta(hours=2))
        waited = (self.times[0] - START).total_seconds()
        assert 3600 <= waited <= 3630, waited

    def test_without_a_clock_time_moves_for_the_walk_only(self) -> None:
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        enqueue("tell", run_at=tomorrow)
        run_until(tomorrow)
        assert self.times == [tomorrow]
        assert type(current_clock()) is DatabaseClock
        assert enqueue("tell").run_at < tomorrow

    def test_time_does_not_go_back(self) -> None:
        with clock(START), pytest.raises(ValueError, match="is past: it is 2026-03-01T12:00"):
            run_until(START - timedelta(seconds=1))

    def test_a_job_that_comes_due_without_end_is_stopped_by_the_limit(self) -> None:
        register_handler("never", self.tell, can_run=lambda job: False)
        with clock(START):
            enqueue("never")
            with pytest.raises(
                DurableJobsError, match=r"Told no by can_run, which counts too, were never \(21\)"
            ):
                run_until(START + timedelta(days=9), limit=20)

    def test_a_clock_moves_by_seconds_and_by_timedeltas(self) -> None:
        with clock(START) as time:
            time.advance(90)
            time.advance(timedelta(minutes=1))
            assert time.value == START + timedelta(seconds=150)
            assert enqueue("tell").run_at == time.value
            time.move_to(datetime(2026, 7, 1, 12, 0))  # in Vienna
            assert time.value == datetime(2026, 7, 1, 10, 0, tzinfo=UTC)

    def test_pythons_time_follows_where_that_is_asked_for(self) -> None:
        seen: list[datetime] = []
        register_handler("see", lambda: seen.append(datetime.now(UTC)))
        with (
            time_machine.travel(START, tick=False) as traveller,
            clock(follower=traveller.move_to) as time,
        ):
            assert time.value == START
            enqueue("see", run_at=START + timedelta(days=1))
            run_until(START + timedelta(days=2))
            assert datetime.now(UTC) == START + timedelta(days=2)
        assert seen == [START + timedelta(days=1)]

    def test_python_ahead_of_the_database_is_believed(self) -> None:
        with time_machine.travel(datetime(2100, 1, 1, tzinfo=UTC), tick=False):
            enqueue("tell", run_at=timezone.now())
            assert len(run_due()) == 1


class AssertingInATestCase(Helpers, TestCase):
    def test_what_was_enqueued_is_found_by_any_of_its_fields(self) -> None:
        job = enqueue(
            "mail",
            {"to": "a@example.com", "parts": [1, 2]},
            owner_id="acme",
            queue="mail",
            priority=3,
            run_at=START,
            meta={"trace": "x", "tenant": 1},
            target={"kind": "user", "id": "7"},
            project_id="shop",
            idempotency_key="k",
        )
        assert assert_enqueued("mail") == [job]
        assert assert_enqueued() == [job]
        assert_enqueued(payload={"to": "a@example.com"}, count=1)
        assert_enqueued("mail", {"parts": [1, 2]}, owner_id="acme", queue="mail", priority=3)
        assert_enqueued(run_at=START.astimezone(timezone.get_fixed_timezone(120)))
        assert_enqueued(meta={"tenant": 1}, target={"kind": "user"}, project_id="shop")
        assert_enqueued(idempotency_key="k")
        assert_enqueued("other", count=0)
        for other in (
            {"type": "post"},
            {"payload": {"to": "b@example.com"}},
            {"payload": {"parts": [1]}},
            {"payload": {"cc": None}},
            {"meta": {"tenant": True}},
            {"owner_id": ""},
            {"run_at": START + timedelta(seconds=1)},
            {"count": 2},
            {"namespace": "other"},
        ):
            with self.subTest(other), pytest.raises(AssertionError):
                assert_enqueued(**other)

    def test_payloads_are_compared_as_the_handler_takes_them(self) -> None:
        def due(on: datetime, id: Any) -> None: ...

        register_handler("due", due)
        enqueue("due", {"on": START, "id": 1})
        assert_enqueued("due", {"on": START})
        with pytest.raises(InvalidJob, match=r"payload.id: UUID is not JSON"):
            assert_enqueued("due", {"id": uuid4()})

    def test_a_failure_lists_what_was_enqueued(self) -> None:
        enqueue("mail", {"to": "a"}, owner_id="acme", run_at=START)
        enqueue("post", owner_id="b", run_at=START)
        with pytest.raises(AssertionError) as raised:
            assert_enqueued("mail", {"to": "b"}, owner_id="acme")
        assert (
            str(raised.value)
            == "No job was enqueued with type='mail', payload={'to': 'b'}, owner_id='acme'.\n"
            "Enqueued were:\n"
            "   mail  payload={'to': 'a'}  owner_id='acme'  run_at=2026-03-01T12:00:00+00:00"
            "  queued\n"
            "   post  payload=None  owner_id='b'  run_at=2026-03-01T12:00:00+00:00  queued"
        )

    def test_a_wrong_count_marks_those_that_fit(self) -> None:
        enqueue("mail", run_at=START)
        enqueue("post", run_at=START)
        with pytest.raises(AssertionError) as raised:
            assert_enqueued("mail", count=2)
        assert (
            str(raised.value) == "Not 2 but 1 of the jobs enqueued have type='mail'.\n"
            "Enqueued were (= those that fit):\n"
            "=  mail  payload=None  run_at=2026-03-01T12:00:00+00:00  queued\n"
            "   post  payload=None  run_at=2026-03-01T12:00:00+00:00  queued"
        )

    def test_nothing_at_all_is_said_so(self) -> None:
        with pytest.raises(AssertionError, match="No job at all was enqueued in the namespace"):
            assert_enqueued("mail")
        assert_not_enqueued()
        enqueue("mail")
        assert_not_enqueued("mail", owner_id="acme")
        with pytest.raises(AssertionError, match="A job was enqueued with type='mail'"):
            assert_not_enqueued("mail")
        with pytest.raises(AssertionError, match="A job was enqueued at all"):
            assert_not_enqueued()

    def test_a_long_list_is_cut(self) -> None:
        for _ in range(25):
            enqueue("mail", {"text": "x" * 1_000})
        with pytest.raises(AssertionError) as raised:
            assert_not_enqueued("mail")
        assert "… and 5 more" in str(raised.value)
        assert len(str(raised.value)) < 7000

    def test_jobs_enqueued_in_a_block_are_captured_with_what_became_of_them(self) -> None:
        enqueue("write", {"text": "before"}, idempotency_key="k")
        with captured_jobs() as jobs:
            first = enqueue("write", {"text": "in it"})
            enqueue("write", {"text": "before"}, idempotency_key="k")
            with transaction.atomic():
                enqueue("write", {"text": "rolled back"})
                transaction.set_rollback(True)
            second = enqueue("write", {"text": "elsewhere"}, namespace="other")
            run_due()
        enqueue("write", {"text": "after"})
        assert jobs == [first, second]
        assert [job.state for job in jobs] == ["completed", "queued"]


class RunningWithoutATransaction(Helpers, TransactionTestCase):
    available_apps: ClassVar = None

    def test_a_transaction_that_the_handler_leaves_open_is_rolled_back_and_told_of(self) -> None:
        self.check_a_transaction_that_is_left_open()

    def test_everything_is_committed_on_the_tests_connection(self) -> None:
        def both(context: JobContext) -> int:
            context.record_receipt({"sent": True})
            with transaction.atomic():
                transaction.on_commit(lambda: write("hook"))
                write("block")
            return connection.connection is mine  # type: ignore[return-value]

        connection.ensure_connection()
        mine = connection.connection
        register_handler("both", both, takes_context=True)
        job = enqueue("both")
        [attempt] = run_due(raise_errors=True)
        assert (attempt.state, attempt.result) == ("completed", True)
        assert (texts(), get_receipt(job)) == (["block", "hook"], {"sent": True})
        assert not connection.in_atomic_block

    def test_atomic_jobs_failures_and_limits_are_the_same(self) -> None:
        def maybe(fails: bool) -> None:
            write("x")
            if fails:
                fail_in_the_database()

        register_handler("maybe", maybe, atomic=True)
        register_handler("again", lambda: enqueue("again") and None)
        enqueue("maybe", {"fails": False})
        enqueue("maybe", {"fails": True})
        assert [attempt.state for attempt in run_due()] == ["completed", "failed"]
        assert texts() == ["x"]
        enqueue("again")
        with pytest.raises(DurableJobsError, match="limit of 3 attempts is spent"):
            run_due(limit=3)
        assert Execution.objects.filter(state="running").count() == 0
        assert list_jobs(state="queued").count() == 1

    def test_inside_a_block_of_the_tests_own_all_is_rolled_back_with_it(self) -> None:
        with transaction.atomic():
            enqueue("write", {"text": "x"})
            assert len(run_due()) == 1
            transaction.set_rollback(True)
        assert (texts(), Job.objects.count()) == ([], 0)

    def test_a_handler_may_go_on_after_a_statement_that_failed(self) -> None:
        def careless() -> None:
            try:
                fail_in_the_database()
            except IntegrityError:
                write("went on")

        register_handler("careless", careless)
        enqueue("careless")
        [attempt] = run_due()
        assert (attempt.state, texts()) == ("completed", ["went on"])
