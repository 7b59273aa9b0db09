"""Cancel, requeue, resolve, pause, resume, wake and the look-ups."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.transaction import atomic
from django.test import override_settings
from django.utils.translation import gettext_lazy

from django_durable_jobs import (
    cancel,
    enqueue,
    get_job,
    get_receipt,
    jobs,
    list_jobs,
    pause,
    requeue,
    resolve,
    resume,
    signals,
    wake,
)
from django_durable_jobs.errors import (
    IdempotencyConflict,
    InvalidJob,
    JobDoesNotExist,
    NotQueued,
    WrongState,
)
from django_durable_jobs.models import Execution, Job, Namespace, QueueEntry
from django_durable_jobs.states import ExecutionState, HeldReason, State
from tests.factories import assert_queue_is_sound, make_execution, make_job, now

pytestmark = pytest.mark.django_db
committed = pytest.mark.django_db(transaction=True)

NOBODY = [uuid.UUID(int=1), str(uuid.UUID(int=2)), "7", "", "x" * 100, None, 7, b"x"]
LATER = datetime(2031, 5, 1, 12, tzinfo=UTC)


# Cancel


def test_a_cancelled_job_leaves_the_queue_and_says_why() -> None:
    queued = enqueue("x")
    found = cancel(queued.pk, "no longer wanted")
    assert found is not None
    found.refresh_from_db()
    assert (found.state, found.cancelled_reason) == (State.CANCELLED, "no longer wanted")
    assert found.finished_at == found.updated_at
    assert found.finished_at >= found.created_at
    assert_queue_is_sound()


def test_a_job_that_waits_for_its_retry_is_queued() -> None:
    queued = make_job(
        claimable_at=LATER, held_reason=HeldReason.RETRY, held_since=now(), attempts=2
    )
    found = cancel(str(queued.pk))
    assert found is not None
    assert (found.state, found.held_reason, found.held_since) == (State.CANCELLED, "", None)
    assert found.attempts == 2
    assert_queue_is_sound()


@pytest.mark.parametrize(
    ("reason", "stored"),
    [
        (None, None),
        ("", ""),
        (7, None),
        (b"bytes", None),
        (["x"], None),
        ("x" * 1_024, "x" * 1_024),
        ("a\x00b\ud800", "a\\x00b\\ud800"),
        ("é😀\n", "é😀\n"),
    ],
)
def test_a_reason_is_stored_if_it_is_text(reason: Any, stored: str | None) -> None:
    found = cancel(enqueue("x").pk, reason)
    assert found is not None
    found.refresh_from_db()
    assert found.cancelled_reason == stored


def test_a_long_reason_is_cut_and_says_so() -> None:
    found = cancel(enqueue("x").pk, "x" * 1_025)
    assert found is not None
    assert found.cancelled_reason is not None
    assert len(found.cancelled_reason) == 1_024
    assert found.cancelled_reason.endswith("[cut: 1,025 characters]")


@pytest.mark.parametrize("state", sorted(set(State) - {State.QUEUED}))
def test_only_queued_jobs_are_cancelled(state: State) -> None:
    other = make_job(state)
    before = Job.objects.values().get()
    with pytest.raises(NotQueued) as caught:
        cancel(other.pk, "too late")
    assert (caught.value.state, caught.value.job_id) == (state, other.pk)
    assert Job.objects.values().get() == before
    assert_queue_is_sound()


@pytest.mark.parametrize("id", NOBODY)
def test_cancelling_nobody_is_none(id: Any) -> None:
    assert cancel(id) is None


def test_a_refused_cancel_leaves_the_callers_transaction_usable() -> None:
    running, queued = make_job(State.RUNNING), enqueue("x")
    with atomic():
        with pytest.raises(NotQueued):
            cancel(running)
        assert cancel(queued) is not None
    assert Job.objects.get(pk=queued.pk).state == State.CANCELLED


# Requeue


@pytest.mark.parametrize("state", [State.FAILED, State.INTERRUPTED])
def test_requeue_grants_one_more_attempt(state: State) -> None:
    other = make_job(state, attempts=3, stop_requested_at=now(), run_at=now() - timedelta(hours=1))
    found = requeue(other.pk)
    found.refresh_from_db()
    assert found.state == State.QUEUED
    assert (found.attempts, found.max_attempts) == (3, 4)
    assert found.claim_id is found.finished_at is found.stop_requested_at is None
    assert found.run_at == other.run_at
    assert found.claimable_at == found.updated_at
    assert QueueEntry.objects.get().due
    assert QueueEntry.objects.get().max_attempts == 4
    assert Execution.objects.get().state == state  # what happened stays as it was
    assert_queue_is_sound()


@pytest.mark.parametrize("granted", [None, 2])
def test_a_cancelled_job_still_has_the_attempts_it_had(granted: int | None) -> None:
    """It was cancelled while an attempt was due to it; to grant just one could take some away."""
    other = make_job(State.CANCELLED, attempts=1, max_attempts=granted, cancelled_reason="oops")
    found = requeue(other.pk)
    assert (found.attempts, found.max_attempts) == (1, granted)
    assert found.cancelled_reason is None
    assert QueueEntry.objects.get().due
    assert_queue_is_sound()


def test_a_requeued_job_does_not_run_before_its_time() -> None:
    other = make_job(State.CANCELLED, run_at=LATER)
    found = requeue(other.pk)
    assert found.run_at == found.claimable_at == LATER
    assert not QueueEntry.objects.get().due
    assert_queue_is_sound()


@pytest.mark.parametrize(
    "state", sorted(set(State) - {State.FAILED, State.INTERRUPTED, State.CANCELLED})
)
def test_requeue_is_refused_from_every_other_state(state: State) -> None:
    other = make_job(state)
    before = Job.objects.values().get()
    with pytest.raises(WrongState) as caught:
        requeue(other.pk)
    assert not isinstance(caught.value, NotQueued)
    assert (caught.value.state, caught.value.job_id) == (state, other.pk)
    assert Job.objects.values().get() == before
    assert_queue_is_sound()


@pytest.mark.parametrize("id", NOBODY)
def test_requeueing_or_resolving_nobody_raises(id: Any) -> None:
    with pytest.raises(JobDoesNotExist):
        requeue(id)
    with pytest.raises(LookupError):
        resolve(id, "done")


def test_requeue_takes_a_live_key_again() -> None:
    other = make_job(State.FAILED, type="x", idempotency_key="k", key_scope="live")
    assert other.key_hash is None
    requeue(other.pk)
    again = enqueue("x", idempotency_key="k", key_scope="live")
    assert again == other
    assert not again.created


def test_requeue_is_refused_while_another_job_has_its_key() -> None:
    other = make_job(State.FAILED, type="x", idempotency_key="k", key_scope="live")
    taken = enqueue("x", {"new": 1}, idempotency_key="k", key_scope="live")
    enqueue("x", idempotency_key="k", namespace="elsewhere")
    before = Job.objects.values().get(pk=other.pk)
    with atomic():
        with pytest.raises(IdempotencyConflict) as caught:
            requeue(other.pk)
        assert caught.value.job_id == taken.pk
        assert Job.objects.values().get(pk=other.pk) == before
    cancel(taken.pk)
    assert requeue(other.pk).state == State.QUEUED
    assert_queue_is_sound()


def test_a_row_that_was_edited_into_nonsense_can_be_requeued_once_it_is_mended() -> None:
    other = make_job(State.FAILED, target={"kind": "k", "id": "i"})
    Job.objects.update(target=[])
    assert requeue(other.pk).state == State.QUEUED
    assert_queue_is_sound()


# Resolve


def test_resolve_says_that_an_interrupted_job_was_done_after_all() -> None:
    other = make_job(State.INTERRUPTED)
    found = resolve(other.pk, "the bank says it was paid", by="ann")
    found.refresh_from_db()
    assert found.state == State.COMPLETED
    assert found.claim_id == other.claim_id
    execution = Execution.objects.get()
    assert execution.state == ExecutionState.INTERRUPTED
    assert execution.interrupted_at is not None
    assert execution.resolved_note == "the bank says it was paid"
    assert execution.resolved_by == "ann"
    assert execution.resolved_at is not None
    assert execution.resolved_at <= found.finished_at
    assert_queue_is_sound()


def test_resolve_marks_the_attempt_that_was_interrupted_alone() -> None:
    other = make_job(State.INTERRUPTED, attempts=2)
    earlier = make_execution(other, ExecutionState.FAILED, claim_id=uuid.uuid4(), attempt=1)
    resolve(other.pk, "done")
    earlier.refresh_from_db()
    assert (earlier.resolved_at, earlier.resolved_note) == (None, "")


@pytest.mark.parametrize("state", sorted(set(State) - {State.INTERRUPTED}))
def test_only_interrupted_jobs_are_resolved(state: State) -> None:
    other = make_job(state)
    before = (list(Job.objects.values()), list(Execution.objects.values()))
    with pytest.raises(WrongState) as caught:
        resolve(other.pk, "done")
    assert caught.value.state == state
    assert (list(Job.objects.values()), list(Execution.objects.values())) == before


def test_a_job_that_is_pruned_while_it_is_resolved_does_not_exist(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = make_job(State.INTERRUPTED)
    now_expression = jobs.now_expression

    def prune_first(connection: Any) -> Any:
        Job.objects.all().delete()
        return now_expression(connection)

    monkeypatch.setattr(jobs, "now_expression", prune_first)
    with pytest.raises(JobDoesNotExist, match=str(other.pk)):
        resolve(other.pk, "done")


def test_a_note_is_made_storable() -> None:
    other = make_job(State.INTERRUPTED)
    resolve(other.pk, "a\x00" + "x" * 5_000, by="b" * 200)
    execution = Execution.objects.get()
    assert execution.resolved_note.startswith("a\\x00x")
    assert len(execution.resolved_note) <= 4_096
    assert len(execution.resolved_by) <= 150


@pytest.mark.parametrize("value", [None, 7, b"x", ["x"], gettext_lazy("done")])
def test_what_is_no_text_is_refused_by_name(value: Any) -> None:
    other = make_job(State.INTERRUPTED)
    with pytest.raises(InvalidJob, match="note: must be text") as caught:
        resolve(other.pk, value)
    assert (caught.value.field, caught.value.path) == ("note", "note")
    with pytest.raises(InvalidJob, match="by: must be text"):
        resolve(other.pk, "done", by=value)
    with pytest.raises(InvalidJob, match="by: must be text"):
        pause("default", by=value)
    with pytest.raises(InvalidJob, match="reason: must be text"):
        pause("default", reason=value)
    assert Job.objects.get().state == State.INTERRUPTED
    assert not Namespace.objects.exists()
    assert resolve(other.pk, "").state == State.COMPLETED


# Looking up


@pytest.mark.parametrize("id", NOBODY)
def test_looking_up_nobody_is_none(id: Any) -> None:
    assert get_job(id) is None
    assert get_receipt(id) is None


def test_a_job_is_found_by_its_id_in_any_form_and_namespace() -> None:
    queued = enqueue("x", namespace="elsewhere")
    for form in (queued.pk, str(queued.pk), queued.pk.hex, str(queued.pk).upper(), queued):
        assert get_job(form) == queued


def test_jobs_are_listed_by_namespace() -> None:
    here, there = enqueue("x", owner_id="a"), enqueue("x", namespace="elsewhere")
    running = make_job(State.RUNNING, owner_id="a")
    assert set(list_jobs()) == {here, running}
    assert list(list_jobs(namespace="elsewhere")) == [there]
    assert list(list_jobs(state="queued", owner_id="a")) == [here]
    with override_settings(DURABLE_JOBS={"NAMESPACE": "elsewhere"}):
        assert list(list_jobs()) == [there]


def test_the_receipt_is_that_of_the_latest_execution() -> None:
    other = make_job(execution=False)
    assert get_receipt(other.pk) is None
    make_execution(other, ExecutionState.FAILED, attempt=2, receipt={"n": 1})
    assert get_receipt(other.pk) == {"n": 1}
    # The attempt number was given back by a release, so that creation decides what is latest.
    make_execution(other, ExecutionState.RELEASED, attempt=1, receipt={"n": 2})
    assert get_receipt(str(other.pk)) == {"n": 2}
    make_execution(other, ExecutionState.FAILED, attempt=1)
    assert get_receipt(other) is None


# Pause, resume, wake


def test_pause_and_resume_say_who_and_why() -> None:
    pause("default", by="ann", reason="the bank is down")
    row = Namespace.objects.get()
    assert (row.name, row.paused_by, row.paused_reason) == ("default", "ann", "the bank is down")
    assert row.paused_at is not None
    pause("default", by="bob", reason="again")
    assert Namespace.objects.values().get() == Namespace.objects.filter(paused_by="ann").values()[0]
    resume("default")
    row.refresh_from_db()
    assert (row.paused_at, row.paused_by, row.paused_reason) == (None, "", "")
    resume("default")
    resume("never heard of")
    assert Namespace.objects.count() == 1


def test_pausing_one_namespace_leaves_another_alone() -> None:
    Namespace.objects.create(name="elsewhere", turn_after="acme")
    pause("Default")
    pause("default ")
    assert sorted(Namespace.objects.values_list("name", flat=True)) == [
        *("Default", "default ", "elsewhere"),
    ]
    assert Namespace.objects.get(name="elsewhere").paused_at is None
    pause("elsewhere")
    assert Namespace.objects.get(name="elsewhere").turn_after == "acme"


@pytest.mark.parametrize("name", ["", " ", "x" * 65, "a\nb", None, 7])
def test_a_namespace_that_cannot_be_is_not_paused(name: Any) -> None:
    for verb in (pause, resume):
        with pytest.raises(InvalidJob) as caught:
            verb(name)
        assert caught.value.field == "namespace"
    assert not Namespace.objects.exists()


@pytest.fixture
def woken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    monkeypatch.setattr(signals, "wake_listeners", [names.append])
    return names


def test_wake_asks_again_whose_can_run_said_no(woken: list[str]) -> None:
    held = {"claimable_at": LATER, "held_since": now()}
    refused = make_job(held_reason=HeldReason.NOT_ELIGIBLE, **held)
    retry = make_job(held_reason=HeldReason.RETRY, **held)
    other = make_job(held_reason=HeldReason.NOT_ELIGIBLE, namespace="elsewhere", **held)
    wake()
    due = dict(QueueEntry.objects.values_list("job_id", "due"))
    assert due == {refused.pk: True, retry.pk: False, other.pk: False}
    assert_queue_is_sound()


@committed
def test_workers_of_this_process_are_woken_by_the_commit(woken: list[str]) -> None:
    with atomic():
        first = enqueue("x", idempotency_key="k")
        enqueue("x", namespace="elsewhere")
        assert woken == []
    assert woken == ["default", "elsewhere"]
    woken.clear()
    with pytest.raises(ZeroDivisionError):
        _rolled_back()
    enqueue("x", idempotency_key="k")  # there already
    assert woken == []
    for call in (wake, lambda: resume("default"), lambda: requeue(_cancelled(first))):
        call()
        assert woken == ["default"]
        woken.clear()


def _rolled_back() -> None:
    with atomic():
        enqueue("x")
        wake()
        raise ZeroDivisionError


def _cancelled(queued: Job) -> uuid.UUID:
    cancel(queued.pk)
    return queued.pk


@committed
def test_wake_never_raises(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    wake(using="nowhere")
    wake(7)  # type: ignore[arg-type]
    wake("x" * 10_000)

    def broken(name: str) -> None:
        raise RuntimeError("a listener broke")

    monkeypatch.setattr(signals, "wake_listeners", [broken])
    wake()
    monkeypatch.setattr(connection, "ensure_connection", lambda: 1 / 0)
    connection.close()
    wake()
    assert "wake failed" in caplog.text
