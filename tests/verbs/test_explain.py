"""What `explain` says of a job in every situation that there is."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone, translation

from django_durable_jobs import aexplain, cancel, explain, pause, request_stop, resolve, resume
from django_durable_jobs.claims import NEVER
from django_durable_jobs.db import ManualClock, use_clock
from django_durable_jobs.errors import InvalidJob, JobDoesNotExist
from django_durable_jobs.explaining import CODES, taken
from django_durable_jobs.loops import rules
from django_durable_jobs.models import Execution, Job, Namespace, QueueEntry, Schedule, Worker
from django_durable_jobs.states import HeldReason, InterruptionReason, State
from django_durable_jobs.worker.watchdog import STOPPED_WITHIN
from tests.claiming import digest
from tests.factories import make_execution, make_job, make_worker, now

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def clock() -> Iterator[ManualClock]:
    clock = ManualClock(now())
    with use_clock(clock):
        yield clock


def codes(job: Job) -> list[str]:
    told = explain(job)
    return [told.code, *(reason.code for reason in told.also)]


def waiting(seconds: float, reason: str = "", **values: Any) -> Job:
    """Make a job that becomes claimable after so many seconds."""
    moment = now() + timedelta(seconds=seconds)
    return make_job(run_at=moment, held_reason=reason, **values)


def ago(seconds: float) -> Any:
    return now() - timedelta(seconds=seconds)


# What waits for its time


def test_a_job_of_the_future_waits_for_its_time(clock: ManualClock) -> None:
    make_worker()
    job = make_job(run_at=clock.value + timedelta(hours=3, minutes=20))
    told = explain(job.pk)
    assert (told.code, told.also, told.state) == ("scheduled", (), "queued")
    assert told.facts == {"due_at": job.run_at.isoformat(), "in_seconds": 12_000.0}
    assert "due in 3 hours 20 minutes (" in told.sentence


def test_a_job_that_failed_waits_for_its_retry() -> None:
    make_worker()
    told = explain(waiting(90, HeldReason.RETRY, held_since=now(), attempts=2))
    assert told.code == "retry"
    assert told.sentence.startswith("Its attempt 2 failed: it is tried again in 1 minute")


def test_a_job_whose_can_run_says_no_is_asked_again() -> None:
    make_worker()
    told = explain(waiting(4, HeldReason.NOT_ELIGIBLE, held_since=ago(600)))
    assert told.code == "not_eligible"
    assert told.facts["for_seconds"] == pytest.approx(600, abs=2)
    assert "has said no for 10 minutes" in told.sentence


def test_a_job_that_is_about_to_be_asked_again_is_not_held_up() -> None:
    make_worker()
    job = make_job(held_reason=HeldReason.NOT_ELIGIBLE, held_since=ago(60))
    assert codes(job) == ["asked_again"]
    make_job(owner_id="", priority=5)
    Worker.objects.update(concurrency=1)
    assert codes(job) == ["asked_again", "turn"]


def test_what_lasts_beyond_its_time_is_told_too() -> None:
    job = waiting(3_600)
    pause("default")
    assert codes(job) == ["scheduled", "namespace_paused", "no_worker"]


# The namespace and its workers


def test_a_pause_is_told_with_who_and_why() -> None:
    make_worker()
    job = make_job()
    pause("default", by="ann", reason="the disk is 100% full")
    told = explain(job)
    assert told.code == "namespace_paused"
    assert "was paused by ann at " in told.sentence
    assert "The reason given: the disk is 100% full." in told.sentence
    resume("default")
    assert codes(job) == ["claimable"]


def test_without_a_live_worker_nobody_takes_it(clock: ManualClock) -> None:
    job = make_job()
    make_worker(state="stopped")
    make_worker(namespace="other")
    assert codes(job) == ["no_worker"]
    assert "No worker serves the namespace default." in explain(job).sentence
    make_worker(heartbeat_at=clock.value - timedelta(seconds=90))
    assert "no sign of life for 1 minute 30 seconds" in explain(job).sentence
    make_worker(state="draining")
    assert "is about to stop" in explain(job).sentence
    assert codes(job) == ["no_worker"]


@pytest.mark.parametrize("values", [{"queues": ["mail"]}, {"excluded_queues": ["default"]}])
def test_a_queue_that_nobody_serves_is_told(values: dict[str, Any]) -> None:
    make_worker(**values)
    job = make_job()
    told = explain(job)
    assert (told.code, told.facts) == ("queue_not_served", {"queue": "default", "workers": 1})
    make_worker()
    assert codes(job) == ["claimable"]


def test_a_type_that_nobody_knows_is_told() -> None:
    make_worker(types=["a"])
    job = make_job()
    assert codes(job) == ["no_handler"]
    assert "No live worker has a handler for its type test.job" in explain(job).sentence
    make_worker(queues=["mail"])
    assert codes(job) == ["no_handler"]
    assert "one that serves other queues has" in explain(job).sentence


def test_a_job_put_off_for_want_of_a_handler_is_freed_by_one_that_has_it() -> None:
    job = make_job(claimable_at=NEVER, held_reason=HeldReason.NO_HANDLER, held_since=now())
    make_worker(types=["a"])
    assert codes(job) == ["no_handler"]
    make_worker()
    told = explain(job)
    assert (told.code, told.facts["known"]) == ("no_handler", True)


def schedule_of(job: Job, **values: Any) -> Schedule:
    Job.objects.filter(pk=job.pk).update(idempotency_key="tick:a:b:2026-12-01T02:00:00+00:00")
    return Schedule.objects.create(
        namespace="default", name="a:b", declared_at=now(), kind="cron", **values
    )


def test_a_job_whose_schedule_is_gone_says_so() -> None:
    make_worker(types=["a"])
    job = make_job(type="schedule:a:b")
    schedule_of(job, retired_at=now())
    told = explain(job)
    assert (told.code, told.facts["schedule"]) == ("schedule_gone", "a:b")


def test_a_paused_schedule_does_not_hold_up_its_job() -> None:
    make_worker()
    job = make_job()
    schedule_of(job, paused_at=now())
    assert codes(job) == ["claimable", "schedule_paused"]


# The caps


def test_an_owner_at_its_cap_is_told_with_the_jobs_that_use_it_up(settings: Any) -> None:
    make_worker()
    first = make_job(State.RUNNING, owner_id="acme")
    job = make_job(owner_id="acme")
    told = explain(job)
    assert told.code == "owner_cap"
    assert told.facts["jobs"] == [{"id": str(first.pk), "state": "running"}]
    assert f"may have 1 job at a time (OWNER_CONCURRENCY) and has 1: {first.pk}." in told.sentence
    settings.DURABLE_JOBS = {"OWNER_CONCURRENCY": 2}
    assert codes(job) == ["claimable"]
    settings.DURABLE_JOBS = {"UNCAPPED_OWNERS": ["acme"]}
    assert codes(job) == ["claimable"]


def test_a_full_namespace_is_told(settings: Any) -> None:
    settings.DURABLE_JOBS = {"GLOBAL_CONCURRENCY": 2}
    make_worker()
    make_job(State.CLAIMED)
    job = make_job()
    assert codes(job) == ["claimable"]
    make_job(State.RUNNING)
    told = explain(job)
    assert (told.code, told.facts["held"], told.facts["cap"]) == ("namespace_full", 2, 2)


def test_workers_without_a_free_slot_are_told() -> None:
    worker = make_worker(concurrency=1)
    make_job(State.RUNNING, worker=worker)
    job = make_job()
    assert codes(job) == ["no_free_slot"]
    assert explain(job).sentence == "The only slot that it could run in is busy."
    make_worker(types=["a"])
    assert codes(job) == ["no_free_slot"]
    make_worker()
    assert codes(job) == ["claimable"]


# Its turn


def test_a_job_waits_behind_those_of_its_owner() -> None:
    make_worker()
    for _ in range(3):
        make_job(owner_id="acme", priority=1)
    make_job(owner_id="acme", priority=1, type="unknown")
    job = make_job(owner_id="acme")
    told = explain(job)
    assert (told.code, told.facts) == ("turn", {"jobs": 3, "or_more": False, "owner": "acme"})
    assert told.sentence == "It waits its turn behind 3 jobs of its owner."


def test_counting_ends_at_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_durable_jobs.explaining.reading.COUNTED", 3)
    monkeypatch.setattr("django_durable_jobs.explaining.waiting.COUNTED", 3)
    make_worker()
    for _ in range(6):
        make_job(owner_id="acme", priority=1)
    told = explain(make_job(owner_id="acme"))
    assert told.sentence == "It waits its turn behind 3 or more jobs of its owner."


def test_a_job_waits_behind_other_owners() -> None:
    make_worker(concurrency=2)
    for owner in "abc":
        make_job(owner_id=owner)
    job = make_job(owner_id="d")
    told = explain(job)
    assert (told.code, told.facts) == ("turn_owners", {"owners": 3, "or_more": False})
    make_job(State.RUNNING, owner_id="a")
    make_job(State.RUNNING, owner_id="b")
    assert codes(job) == ["claimable"]


def test_turns_go_round_from_where_the_last_one_ended() -> None:
    make_worker(concurrency=1)
    Namespace.objects.create(name="default", turn_after="b")
    jobs = {owner: make_job(owner_id=owner) for owner in "abcd"}
    before = {owner: explain(job).facts.get("owners", 0) for owner, job in jobs.items()}
    assert before == {"c": 0, "d": 1, "a": 2, "b": 3}


def test_a_look_for_owners_ends_at_a_number_and_goes_on_behind_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("django_durable_jobs.explaining.reading.COUNTED", 2)
    make_worker(concurrency=1)
    for owner in "aaaabc":
        make_job(owner_id=owner)
    told = explain(make_job(owner_id="b2"))
    assert told.facts == {"owners": 2, "or_more": False}
    told = explain(make_job(owner_id="d"))
    assert told.facts == {"owners": 3, "or_more": True}
    assert told.sentence.endswith("go to other owners, 3 or more of them.")


def test_some_jobs_of_its_owner_do_not_hold_it_up_where_there_is_room_for_all() -> None:
    make_worker(concurrency=4)
    for _ in range(3):
        make_job(priority=1)
    job = make_job()
    assert codes(job) == ["claimable"]
    make_job(State.RUNNING, worker=Worker.objects.get())
    assert codes(job) == ["turn"]


def test_a_job_that_nothing_holds_up_is_about_to_be_taken(clock: ManualClock) -> None:
    make_worker(host="web-1", pid=7)
    job = make_job()
    assert explain(job).sentence == (
        "It can run now: worker web-1:7 has a free slot and should take it in a moment."
    )
    assert not explain(job).facts["late"]
    clock.advance(720)
    Worker.objects.update(heartbeat_at=clock.value)
    assert "Yet it has been due for 13 minutes" in explain(job).sentence


def test_a_queued_job_without_an_entry_is_told() -> None:
    make_worker()
    job = make_job()
    QueueEntry.objects.all().delete()
    assert codes(job) == ["entry_missing"]


# What a worker holds


def held(state: str = State.RUNNING, **values: Any) -> tuple[Job, Worker]:
    worker = make_worker(host="web-1", pid=7)
    job = make_job(state, execution=False)
    make_execution(job, worker=worker, **values)
    return job, worker


def test_a_running_job_is_told_with_where_and_since_when() -> None:
    job, _ = held()
    told = explain(job)
    assert told.code == "running"
    assert told.sentence.startswith("It has been running for 1 minute")
    assert told.sentence.endswith("on worker web-1:7, attempt 1.")
    assert codes(held(State.CLAIMED)[0]) == ["claimed"]


def test_a_stop_that_is_not_heeded_is_told(clock: ManualClock) -> None:
    job, _ = held()
    request_stop(job)
    assert codes(job) == ["stop_requested", "running"]
    assert not explain(job).facts["late"]
    assert "asked to stop less than a second ago" in explain(job).sentence
    clock.advance(20)
    Worker.objects.update(heartbeat_at=clock.value)
    assert "still runs on worker web-1:7" in explain(job).sentence


def test_the_time_to_stop_is_the_watchdogs() -> None:
    assert taken._STOPPED_WITHIN == STOPPED_WITHIN


def test_a_worker_that_seems_dead_is_told(clock: ManualClock) -> None:
    job, worker = held()
    clock.advance(20)
    assert codes(job) == ["worker_silent"]
    text = explain(job).sentence
    assert "its last sign of life was 20 seconds ago" in text
    assert "If none follows, it becomes interrupted in 10 seconds." in text
    clock.advance(20)
    assert "when a worker is started" in explain(job).sentence
    make_worker(heartbeat_at=clock.value)
    assert "A live worker makes it interrupted within seconds." in explain(job).sentence
    Execution.objects.update(requeue_on_interrupt=True)
    assert "A live worker puts it back into the queue" in explain(job).sentence
    Worker.objects.filter(pk=worker.pk).delete()
    assert f"Worker {worker.pk}, which holds it, is gone." in explain(job).sentence


def test_merely_claimed_jobs_of_the_dead_go_back_where_the_project_says_so(settings: Any) -> None:
    settings.DURABLE_JOBS = {"RECOVER_UNSTARTED": "requeue"}
    job, _ = held(State.CLAIMED, lease_expires_at=ago(5))
    assert explain(job).facts["requeued"]
    assert not explain(held(lease_expires_at=ago(5))[0]).facts["requeued"]


def test_a_claim_that_no_execution_holds_is_told() -> None:
    job = make_job(State.RUNNING, execution=False)
    assert codes(job) == ["claim_lost"]


# What has ended


def test_a_completed_job_is_told_with_when() -> None:
    told = explain(make_job(State.COMPLETED))
    assert told.code == "completed"
    assert told.sentence.startswith("It was completed at ")


def test_a_failed_job_is_told_with_its_code_and_not_with_its_error() -> None:
    job = make_job(State.FAILED, execution=False)
    make_execution(job, error="ValueError: s3cr3t", error_code="discarded")
    told = explain(job)
    assert (told.code, told.facts["error_code"]) == ("failed", "discarded")
    assert "s3cr3t" not in json.dumps(told.as_dict())
    assert "requeue it" in told.sentence


def test_an_interrupted_job_is_told_with_why_until_it_is_resolved() -> None:
    job = make_job(State.INTERRUPTED)
    told = explain(job)
    assert (told.code, told.facts["reason"]) == ("interrupted", "worker_lost")
    assert "its worker's lease ran out. Nobody knows how far it came" in told.sentence
    resolve(job, "the mail was sent", by="ann")
    told = explain(job)
    assert (told.code, told.facts["note"]) == ("resolved", "the mail was sent")
    assert "marked as completed by ann" in told.sentence


def test_an_interrupted_job_that_had_not_begun_says_so() -> None:
    job = make_job(State.INTERRUPTED, execution=False)
    make_execution(job, started_at=None)
    assert "Its handler was not called" in explain(job).sentence


def test_a_handler_that_may_still_be_at_work_is_told() -> None:
    worker = make_worker(stuck=2)
    job = make_job(State.INTERRUPTED, execution=False)
    why = InterruptionReason.TIMED_OUT
    make_execution(job, worker=worker, interruption_reason=why)
    assert codes(job) == ["interrupted", "stuck"]
    Worker.objects.update(state="stopped", stopped_at=now())
    assert codes(job) == ["interrupted"]


def test_a_cancelled_job_is_told_with_why() -> None:
    job = make_job()
    cancel(job, "no more 50% of it")
    told = explain(job)
    assert told.code == "cancelled"
    assert "The reason given: no more 50% of it. Requeue it" in told.sentence


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (rules.CHANGED, "replaced"),
        (rules.DELETED, "withdrawn"),
        (rules.DISABLED, "withdrawn"),
        (rules.OWNERLESS, "withdrawn"),
    ],
)
def test_what_was_withdrawn_with_its_loop_is_told_so(reason: str, code: str) -> None:
    job = make_job(type="loop-occurrence:shop.report")
    cancel(job, reason)
    told = explain(job)
    assert told.code == code
    assert reason not in told.sentence
    other = make_job()
    cancel(other, reason)
    assert explain(other).code == "cancelled"


# The call


@pytest.mark.parametrize("id", [uuid.uuid4(), "nonsense"])
def test_an_id_without_a_job_is_refused(id: Any) -> None:
    with pytest.raises(JobDoesNotExist):
        explain(id)


def test_an_alias_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidJob):
        explain(uuid.uuid4(), using="nosuch")


def test_the_async_twin_says_the_same(clock: ManualClock) -> None:
    job = make_job()
    assert async_to_sync(aexplain)(job.pk) == explain(str(job.pk))


def test_the_payload_is_never_read(clock: ManualClock) -> None:
    make_worker()
    for state in State:
        job = make_job(state, payload={"n": "s3cr3t"}, meta={"n": "s3cr3t"})
        with CaptureQueriesContext(connection) as sent:
            told = explain(job)
        assert "s3cr3t" not in json.dumps(told.as_dict()) + str(told)
        assert not any("payload" in query["sql"] for query in sent)


SITUATIONS = ["scheduled", "due", "running", "interrupted", "cancelled"]


@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_number_of_queries_does_not_grow(
    situation: str, django_assert_num_queries: Any
) -> None:
    # PostgreSQL fixes its plans, in a transaction, and puts its own settings back.
    postgresql = connection.vendor == "postgresql"
    expected = {"scheduled": 3, "due": 8 + 4 * postgresql, "running": 4, "interrupted": 3}
    worker = make_worker()
    job = {
        "scheduled": lambda: waiting(60),
        "due": lambda: make_job(owner_id="m"),
        "running": lambda: make_job(State.RUNNING, worker=worker),
        "interrupted": lambda: make_job(State.INTERRUPTED),
        "cancelled": lambda: make_job(State.CANCELLED),
    }[situation]()
    with django_assert_num_queries(expected.get(situation, 1)):
        explain(job)
    for number in range(20):
        make_job(owner_id=f"o{number}", queue=f"q{number % 3}")
        make_job(owner_id="m", priority=1)
        make_job(State.RUNNING, owner_id=f"p{number}")
        make_worker(queues=["default"])
        make_execution(job, "failed") if situation == "interrupted" else None
    with django_assert_num_queries(expected.get(situation, 1)):
        explain(job)


def test_reading_changes_nothing() -> None:
    make_worker()
    jobs = [make_job(state) for state in State]
    before = digest()
    for job in jobs:
        explain(job)
    assert digest() == before


def test_it_is_said_in_the_language_and_on_the_clock_of_the_reader(clock: ManualClock) -> None:
    make_worker()
    told = explain(make_job(run_at=datetime(2099, 1, 1, 12, tzinfo=UTC)))
    with timezone.override("UTC"):
        assert "(2099-01-01 12:00 UTC)" in told.sentence
    with timezone.override("Europe/Vienna"):
        assert "(2099-01-01 13:00 CET)" in told.sentence
    catalogue = translation.trans_real.translation("de")
    text = "It waits for its time: due in %(in_seconds)s (%(due_at)s)."
    catalogue._catalog._catalogs.insert(0, {text: "Wartet bis %(due_at)s."})
    try:
        with translation.override("de"), timezone.override("UTC"):
            assert told.sentence == "Wartet bis 2099-01-01 12:00 UTC."
    finally:
        catalogue._catalog._catalogs.pop(0)
    assert told.sentence.startswith("It waits for its time")


def test_every_code_has_a_test() -> None:
    source = Path(__file__).read_text()
    assert [code for code in CODES if f'"{code}"' not in source] == []
