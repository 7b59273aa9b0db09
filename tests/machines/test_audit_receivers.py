"""What receivers of the audit trail may do to a worker: nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from django.db import connection, connections, transaction

from django_durable_jobs import enqueue, register_handler
from django_durable_jobs.audit import AuditEvent, audit, event
from django_durable_jobs.ids import uuid7
from django_durable_jobs.models import Execution, Job
from django_durable_jobs.states import State
from django_durable_jobs.worker import Scheduler, herald
from django_durable_jobs.worker.herald import Herald
from tests.app.models import Note
from tests.factories import make_execution, make_job, make_worker, now
from tests.hearing import Ear, connected
from tests.processes.harness import until
from tests.working import ended, run

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("keys")]

Make = Callable[..., Scheduler]
Keys = Callable[..., None]
Connect = Callable[[Callable[..., Any]], None]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Return what connects a receiver until the end of the test."""
    with ExitStack() as stack:
        yield lambda receiver: stack.enter_context(connected(receiver))


@pytest.fixture
def hanging(connect: Connect) -> Iterator[threading.Event]:
    """A receiver that hangs at the first event of a worker's; it goes on when this is set."""
    go_on = threading.Event()

    def hang(event: AuditEvent, **kwargs: Any) -> None:
        if threading.current_thread().name == "herald":
            go_on.wait(60)

    connect(hang)
    yield go_on
    go_on.set()


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_a_receiver_that_raises_stops_no_work_and_no_later_event(
    make: Make, connect: Connect, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []

    def receiver(event: AuditEvent, **kwargs: Any) -> None:
        if threading.current_thread().name == "herald":
            heard.append(event.action)
            raise error

    connect(receiver)
    scheduler = make()
    scheduler.start()
    assert run(lambda: None).state == "completed"
    scheduler.shutdown()
    assert scheduler.fault == ""
    assert {"scheduler.start", "job.completed", "scheduler.stop"} <= set(heard)
    assert "audit receiver failed" in caplog.text or "audit event not told" in caplog.text


def test_a_receiver_that_hangs_holds_up_no_claim_no_outcome_and_no_lease(
    make: Make, hanging: threading.Event, keys: Keys
) -> None:
    keys(HEARTBEAT=0.1, LEASE=1)
    make().start()
    register_handler("quick", lambda: None)

    def enqueue_and_wait() -> None:
        """Put a job in on the handler's thread, then outlast a lease that nobody renews."""
        ended(*[enqueue("quick") for _ in range(5)])
        own = Execution.objects.get(job__type="it")
        held_until = own.lease_expires_at

        def renewed() -> bool:
            own.refresh_from_db()
            return bool(own.lease_expires_at > held_until)

        until(renewed, "a renewal")

    assert run(enqueue_and_wait).state == "completed"
    assert Job.objects.filter(type="quick", state="completed").count() == 5


def test_a_receiver_that_hangs_holds_up_a_shutdown_for_a_moment_only(
    make: Make,
    hanging: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(herald, "CLOSED_WITHIN", 0.2)
    scheduler = make()
    scheduler.start()
    run(lambda: None)
    begun = time.monotonic()
    scheduler.shutdown()
    assert time.monotonic() - begun < 10
    assert f"audit events not told worker={scheduler.id} count=" in caplog.text


def test_a_shutdown_tells_of_all_that_waits(make: Make, connect: Connect) -> None:
    heard: list[str] = []

    def slow(event: AuditEvent, **kwargs: Any) -> None:
        if threading.current_thread().name == "herald":
            time.sleep(0.01)
            heard.append(event.action)

    connect(slow)
    register_handler("it", lambda: None)
    scheduler = make(concurrency=4)
    scheduler.start()
    ended(*[enqueue("it") for _ in range(20)])
    scheduler.shutdown()
    assert heard.count("job.completed") == 20
    assert heard[-1] == "scheduler.stop"


def test_receivers_are_called_outside_of_every_thread_and_transaction_that_works(
    make: Make, connect: Connect
) -> None:
    seen: set[tuple[str, bool]] = set()

    def receiver(event: AuditEvent, **kwargs: Any) -> None:
        seen.add((threading.current_thread().name, connection.in_atomic_block))

    make().start()
    connect(receiver)
    register_handler("next", lambda: None)
    run(lambda: enqueue("next") and None, can_run=lambda job: True)
    ended(*Job.objects.all())
    until(lambda: len(seen) > 1, "the herald")
    assert seen <= {("herald", False), ("MainThread", False)}


def test_what_a_receiver_leaves_open_harms_nobody(make: Make, connect: Connect) -> None:
    texts: list[str] = []
    left: list[Any] = []

    def receiver(event: AuditEvent, **kwargs: Any) -> None:
        if threading.current_thread().name == "herald":
            left.append(transaction.atomic())
            left[-1].__enter__()
            if connection.vendor != "sqlite":  # its one write lock would wait for the test's end
                Note.objects.create(text=event.action)
            texts.append(event.action)

    connect(receiver)
    scheduler = make()
    scheduler.start()
    run(lambda: None)
    scheduler.shutdown()
    assert "scheduler.stop" in texts
    assert Note.objects.count() == 0


def test_what_a_receiver_leaves_open_is_closed_before_the_next_event(connect: Connect) -> None:
    found: list[bool] = []
    left: list[Any] = []

    def receiver(event: AuditEvent, **kwargs: Any) -> None:
        found.append(connection.in_atomic_block)
        left.append(transaction.atomic())
        left[-1].__enter__()

    connect(receiver)
    one = Herald(uuid7())
    one.put([event("e1"), event("e2"), event("e3")])
    one.start()
    one.close()
    assert found == [False] * 3


def test_what_the_keeper_finds_is_told_of_by_the_herald_too(
    make: Make, connect: Connect, keys: Keys
) -> None:
    keys(HEARTBEAT=0.1, LEASE=1)
    seen: dict[str, str] = {}

    def receiver(event: AuditEvent, **kwargs: Any) -> None:
        seen[event.action] = threading.current_thread().name

    connect(receiver)
    long_ago = now().replace(year=2020)
    elsewhere = make_worker(host="elsewhere.example", heartbeat_at=long_ago)
    job = make_job(State.RUNNING, execution=False)
    make_execution(job, worker=elsewhere, lease_expires_at=long_ago)
    make().start()
    until(lambda: {"job.interrupted", "worker.lost"} <= set(seen), "the keeper's judgement")
    assert set(seen.values()) == {"herald"}


def test_a_receiver_may_put_jobs_in_which_are_told_of_in_their_turn(
    make: Make, connect: Connect
) -> None:
    register_handler("follow", lambda: None)

    def follow_up(event: AuditEvent, **kwargs: Any) -> None:
        if event.action == "job.completed" and event.metadata["type"] == "it":
            enqueue("follow")

    connect(follow_up)
    with Ear() as ear:
        make().start()
        run(lambda: None)
        followed = [
            "job.enqueued",
            "job.claimed",
            "job.started",
            "job.completed",
        ]
        until(
            lambda: (
                followed
                == [each.action for each in ear.events if each.metadata.get("type") == "follow"]
            ),
            "the follow-up",
        )


def test_the_connections_of_receivers_are_closed_in_the_end(make: Make, connect: Connect) -> None:
    opened: list[Any] = []

    def receiver(event: AuditEvent, **kwargs: Any) -> None:
        if threading.current_thread().name == "herald":
            Note.objects.exists()
            opened.append(connections["default"])

    connect(receiver)
    scheduler = make()
    scheduler.start()
    run(lambda: None)
    scheduler.shutdown()
    assert len({id(each) for each in opened}) == 1
    assert opened[0].connection is None


def test_turned_off_while_a_worker_runs_nothing_more_is_told(make: Make, keys: Keys) -> None:
    with Ear() as ear:
        scheduler = make()
        scheduler.start()
        until(lambda: "scheduler.start" in ear.actions, "the start")
        keys(AUDIT=False)
        run(lambda: None)
        scheduler.shutdown()
        assert not {"job.enqueued", "job.completed", "scheduler.stop"} & set(ear.actions)


# The queue


def test_what_finds_no_room_is_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    go_on, begun = threading.Event(), threading.Event()
    heard: list[str] = []

    def hang(event: AuditEvent, **kwargs: Any) -> None:
        begun.set()
        go_on.wait(30)
        heard.append(event.action)

    with connected(hang):
        one = Herald(uuid7(), room=3)
        one.start()
        one.put([event("e0")])
        assert begun.wait(30)
        one.put([event(f"e{n}") for n in range(1, 6)])
        one.put([event("e6")])
        assert caplog.text.count("audit events dropped, receivers are too slow") == 1
        go_on.set()
        until(lambda: "audit events were dropped" in caplog.text, "the count")
        one.put([event("e7")])
        one.close()
    assert heard == ["e0", "e1", "e2", "e3", "e7"]
    assert "count=3" in caplog.text


def test_after_its_end_whoever_has_something_to_tell_tells_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = Herald(uuid7())
    one.start()
    one.close()
    with Ear() as ear:
        one.put([event("late")])
        audit("later")
        assert ear.actions == ["late", "later"]
    assert "not told" not in caplog.text


def test_one_that_was_never_started_can_be_closed(caplog: pytest.LogCaptureFixture) -> None:
    Herald(uuid7()).close()
    assert caplog.text == ""
