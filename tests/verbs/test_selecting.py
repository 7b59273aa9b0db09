"""Choosing jobs by how they stand, and steering them only while they do."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest

from django_durable_jobs import requeue, resolve
from django_durable_jobs.errors import JobDoesNotExist, WrongState
from django_durable_jobs.models import Execution, Job
from django_durable_jobs.selecting import Chosen, Selection, if_unmoved, jobs_named, select_jobs
from django_durable_jobs.states import State
from tests.factories import assert_queue_is_sound, make_execution, make_job, now

pytestmark = pytest.mark.django_db(transaction=True)


def select(*states: State, limit: int = 100, **asked: Any) -> list[Chosen]:
    selection = Selection(namespace="default", states=states, **asked)
    return select_jobs(selection, limit=limit, using="default")


@pytest.mark.parametrize("state", list(State))
def test_a_job_is_found_by_its_state_as_it_stands(state: State) -> None:
    job = make_job(state, type="a", owner_id="acme")
    for other in State:
        if other != state:
            make_job(other)
    make_job(state, namespace="other")
    (found,) = select(state)
    assert (found.id, found.type, found.owner_id, found.state) == (job.pk, "a", "acme", state)
    assert found.claim_id == job.claim_id
    assert found.at == {
        State.QUEUED: job.created_at,
        State.CLAIMED: job.created_at,
        State.RUNNING: job.created_at,
    }.get(state, job.finished_at)


def test_the_oldest_of_several_states_come_first() -> None:
    states = [State.FAILED, State.QUEUED, State.INTERRUPTED, State.FAILED]
    jobs = [make_job(state).pk for state in states]
    found = select(State.INTERRUPTED, State.FAILED, State.QUEUED, limit=3)
    assert [each.id for each in found] == jobs[:3]


def test_attempts_that_were_followed_by_others_do_not_count() -> None:
    """A job that failed once and waits for its retry is queued, not failed."""
    job = make_job()
    make_execution(job, "failed")
    done = make_job(State.COMPLETED)
    make_execution(done, "interrupted", claim_id=uuid.uuid4())
    assert select(State.FAILED, State.INTERRUPTED) == []


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING, State.FAILED, State.CANCELLED])
def test_a_selection_is_bounded_in_time_the_start_counts_in(state: State) -> None:
    moment = now() - timedelta(hours=1)
    ended = {"finished_at": moment} if state in (State.FAILED, State.CANCELLED) else {}
    make_job(state, created_at=moment, **ended)
    instant = timedelta(microseconds=1)
    assert len(select(state, since=moment, before=moment + instant)) == 1
    assert select(state, since=moment + instant) == []
    assert select(state, before=moment) == []


def test_the_owner_of_nobody_is_an_owner_too() -> None:
    job = make_job()
    make_job(owner_id="acme")
    assert [each.id for each in select(State.QUEUED, owner_id="")] == [job.pk]


def test_it_is_one_query_a_state_however_many_there_are(django_assert_num_queries: Any) -> None:
    for _ in range(20):
        make_job(State.FAILED)
        make_job()
    with django_assert_num_queries(2):
        assert len(select(State.FAILED, State.QUEUED)) == 40


def test_named_jobs_are_found_without_those_that_there_are_not() -> None:
    job = make_job(State.FAILED)
    (found,) = jobs_named([job.pk, uuid.uuid4()], using="default")
    assert (found.id, found.state, found.at) == (job.pk, "failed", None)


# The fence


def test_what_stands_as_it_was_chosen_is_steered() -> None:
    make_job(State.INTERRUPTED)
    make_job(State.CANCELLED)
    for chosen in select(State.INTERRUPTED, State.CANCELLED):
        if_unmoved(chosen, lambda id=chosen.id: requeue(id), using="default")
    assert set(Job.objects.values_list("state", flat=True)) == {"queued"}
    assert_queue_is_sound()


@pytest.mark.parametrize("column", ["claim_id", "finished_at"])
def test_another_end_in_the_same_state_is_left_alone(column: str) -> None:
    job = make_job(State.INTERRUPTED)
    (chosen,) = select(State.INTERRUPTED)
    other = {"claim_id": uuid.uuid4(), "finished_at": now()}[column]
    Job.objects.filter(pk=job.pk).update(**{column: other})
    with pytest.raises(WrongState, match="it is interrupted again"):
        if_unmoved(chosen, lambda: resolve(job.pk, "done"), using="default")
    assert Job.objects.get().state == "interrupted"
    assert not Execution.objects.exclude(resolved_note="").exists()


def test_a_job_that_was_deleted_meanwhile_is_missing() -> None:
    make_job(State.FAILED)
    (chosen,) = select(State.FAILED)
    Job.objects.all().delete()
    with pytest.raises(JobDoesNotExist):
        if_unmoved(chosen, lambda: requeue(chosen.id), using="default")
