"""The tables refuse nonsense, whoever writes it: a hand in psql as well as our own code."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, connection
from django.db.transaction import atomic

from django_durable_jobs.models import Execution, Job, Namespace, QueueEntry, Schedule, TickClaim
from django_durable_jobs.states import ACTIVE, ENDED_AT, SETTLED, UNCLAIMED, ExecutionState, State
from tests.factories import make_entry, make_execution, make_job, now

pytestmark = pytest.mark.django_db

JOB = "django_durable_jobs_job"
EXECUTION = "django_durable_jobs_execution"


def write(table: str, assignments: str, params: list[Any] | None = None) -> None:
    """Update all rows of ``table`` by hand."""
    with atomic(), connection.cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET {assignments}", params or [])


def refused(name: str, table: str, assignments: str, params: list[Any] | None = None) -> None:
    """Assert that the constraint called ``name`` refuses the update."""
    with pytest.raises(IntegrityError) as caught:
        write(table, assignments, params)
    assert name in str(caught.value)


def stored(moment: Any) -> Any:
    return Job._meta.get_field("finished_at").get_db_prep_value(moment, connection)


@pytest.mark.parametrize("state", ["", "done", "QUEUED", "queued ", "released"])
def test_a_job_is_in_one_of_the_seven_states(state: str) -> None:
    make_job()
    refused("ddj_job_", JOB, "state = %s", [state])


@pytest.mark.parametrize("state", sorted(set(State) - set(UNCLAIMED)))
def test_a_job_that_was_claimed_keeps_its_claim_id(state: State) -> None:
    make_job(state)
    refused("ddj_job_claim", JOB, "claim_id = NULL")


@pytest.mark.parametrize("state", UNCLAIMED)
def test_a_job_that_was_not_claimed_has_no_claim_id(state: State) -> None:
    job = make_job(state)
    refused("ddj_job_claim", JOB, "claim_id = id")
    job.refresh_from_db()
    assert job.claim_id is None


@pytest.mark.parametrize("state", SETTLED)
def test_a_settled_job_has_the_time_at_which_it_was(state: State) -> None:
    make_job(state)
    refused("ddj_job_finished", JOB, "finished_at = NULL")


@pytest.mark.parametrize("state", sorted(set(State) - set(SETTLED)))
def test_a_live_job_has_no_time_at_which_it_was_settled(state: State) -> None:
    make_job(state)
    refused("ddj_job_finished", JOB, "finished_at = %s", [stored(now())])


@pytest.mark.parametrize("state", SETTLED)
def test_a_settled_job_cannot_be_put_back_by_its_state_alone(state: State) -> None:
    make_job(state)
    refused("ddj_job_", JOB, "state = 'queued'")


@pytest.mark.parametrize("state", ["", "queued", "cancelled", "done"])
def test_an_execution_is_in_one_of_its_six_states(state: str) -> None:
    make_job(State.RUNNING)
    refused("ddj_execution_", EXECUTION, "state = %s", [state])


@pytest.mark.parametrize("state", ENDED_AT)
def test_an_ended_execution_has_an_end_time(state: ExecutionState) -> None:
    make_execution(make_job(), state)
    refused("ddj_execution_end", EXECUTION, f"{ENDED_AT[state]} = NULL")


@pytest.mark.parametrize("state", ENDED_AT)
def test_an_ended_execution_has_no_second_end_time(state: ExecutionState) -> None:
    make_execution(make_job(), state)
    for column in set(ENDED_AT.values()) - {ENDED_AT[state]}:
        refused("ddj_execution_end", EXECUTION, f"{column} = %s", [stored(now())])


@pytest.mark.parametrize("state", ENDED_AT)
def test_an_ended_execution_has_the_end_time_of_its_own_state(state: ExecutionState) -> None:
    make_execution(make_job(), state)
    for column in set(ENDED_AT.values()) - {ENDED_AT[state]}:
        assignments = f"{ENDED_AT[state]} = NULL, {column} = %s"
        refused("ddj_execution_end", EXECUTION, assignments, [stored(now())])


@pytest.mark.parametrize("state", ACTIVE)
@pytest.mark.parametrize("column", ENDED_AT.values())
def test_an_active_execution_has_no_end_time(state: State, column: str) -> None:
    make_job(state)
    refused("ddj_execution_end", EXECUTION, f"{column} = %s", [stored(now())])


def test_a_key_is_unique_within_its_namespace() -> None:
    make_job(idempotency_key="once")
    make_job(idempotency_key="once", namespace="elsewhere")
    with pytest.raises(IntegrityError) as caught, atomic():
        make_job(State.COMPLETED, idempotency_key="once")
    assert "ddj_job_key" in str(caught.value) or "key_hash" in str(caught.value)


def test_a_freed_key_is_unique_no_more() -> None:
    for _ in range(2):
        make_job(State.COMPLETED, idempotency_key="again", key_scope="live")
    make_job(idempotency_key="again", key_scope="live")
    assert Job.objects.filter(idempotency_key="again").count() == 3


def test_a_job_stands_in_the_queue_once() -> None:
    job = make_job()
    with pytest.raises(IntegrityError), atomic():
        make_entry(job)
    assert QueueEntry.objects.count() == 1


def test_a_tick_is_claimed_once() -> None:
    values = {"name": "nightly", "scheduled_at": now(), "claimed_at": now(), "outcome": "fired"}
    TickClaim.objects.create(namespace="default", **values)
    TickClaim.objects.create(namespace="elsewhere", **values)
    with pytest.raises(IntegrityError), atomic():
        TickClaim.objects.create(namespace="default", **values)


def test_a_schedule_has_its_name_to_itself_within_its_namespace() -> None:
    values = {"name": "nightly", "kind": "cron", "when": "0 3 * * *", "declared_at": now()}
    Schedule.objects.create(namespace="default", **values)
    Schedule.objects.create(namespace="elsewhere", **values)
    with pytest.raises(IntegrityError), atomic():
        Schedule.objects.create(namespace="default", **values)


def test_deleting_a_job_takes_its_entry_and_executions_along() -> None:
    job = make_job()
    make_execution(job)
    kept = make_job(State.RUNNING)
    job.delete()
    assert not QueueEntry.objects.exists()
    assert Execution.objects.get().job == kept


def test_the_state_is_written_along_the_edges_only() -> None:
    job = make_job(State.COMPLETED)
    with pytest.raises(KeyError):
        Job.objects.filter(pk=job.pk).move("reopen")
    assert Job.objects.filter(pk=job.pk).move("cancel", finished_at=now()) == 0
    job.refresh_from_db()
    assert job.state == State.COMPLETED


# Identifiers


# Each of these is equal to the first under some default collation (MariaDB's takes all of them
# for one, but for the last); none is the same string.
TWINS = {
    "case": ("owner", "OWNER"),
    "accent": ("resume", "résumé"),
    "trailing blank": ("owner", "owner "),
    "emoji": ("😀", "😁"),
    "ligature": ("strasse", "straße"),
    "composed and decomposed": ("\u00e9", "e\u0301"),
    "zero width": ("owner", "own\u200ber"),
}
twins = pytest.mark.parametrize(("one", "other"), TWINS.values(), ids=TWINS)
JOB_IDENTIFIERS = (
    *("namespace", "queue", "type", "owner_id", "project_id", "idempotency_key"),
    *("target_kind", "target_id"),
)


@twins
@pytest.mark.parametrize("field", JOB_IDENTIFIERS)
def test_identifiers_of_jobs_compare_byte_for_byte(field: str, one: str, other: str) -> None:
    first, second = make_job(**{field: one}), make_job(**{field: other})
    assert Job.objects.get(**{field: one}) == first
    assert Job.objects.get(**{field: other}) == second
    assert Job.objects.values(field).distinct().count() == 2
    assert [getattr(job, field) for job in Job.objects.order_by(field)] == sorted([one, other])


@twins
@pytest.mark.parametrize("field", ["namespace", "queue", "type", "owner_id"])
def test_identifiers_of_queue_entries_compare_byte_for_byte(
    field: str, one: str, other: str
) -> None:
    first, second = make_job(**{field: one}), make_job(**{field: other})
    assert QueueEntry.objects.get(**{field: one}).job == first
    assert QueueEntry.objects.get(**{field: other}).job == second


@twins
def test_executions_of_two_owners_are_counted_apart(one: str, other: str) -> None:
    for owner in (one, other):
        make_job(State.RUNNING, owner_id=owner)
    assert Execution.objects.filter(owner_id=one).count() == 1


@twins
def test_namespaces_are_told_apart_byte_for_byte(one: str, other: str) -> None:
    for name in (one, other):
        Namespace.objects.create(name=name)
    assert Namespace.objects.get(name=one).name == one
    assert Namespace.objects.get(pk=other).name == other


@twins
def test_the_same_key_in_two_spellings_is_two_keys(one: str, other: str) -> None:
    make_job(idempotency_key=one)
    make_job(idempotency_key=other)
    assert Job.objects.count() == 2


@twins
def test_schedules_and_ticks_are_told_apart_byte_for_byte(one: str, other: str) -> None:
    moment = now()
    for name in (one, other):
        Schedule.objects.create(namespace="default", name=name, declared_at=moment)
        TickClaim.objects.create(
            namespace="default", name=name, scheduled_at=moment, claimed_at=moment
        )
    assert Schedule.objects.get(name=one).name == one
    assert TickClaim.objects.get(name=other).name == other


def test_identifiers_hold_the_longest_text_of_the_widest_characters() -> None:
    job = make_job(
        namespace="😀" * 64,
        queue="😁" * 64,
        type="😂" * 256,
        owner_id="😃" * 256,
        project_id="😄" * 256,
        idempotency_key="😅" * 256,
        target={"kind": "😆" * 256, "id": "😇" * 256},
    )
    found = Job.objects.get(pk=job.pk)
    for field in JOB_IDENTIFIERS:
        assert getattr(found, field) == getattr(job, field)
    assert found.queue_entry.owner_id == job.owner_id
