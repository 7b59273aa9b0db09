"""A job that changes between the look at it and the lock on it is claimed as what it has become."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection

from django_durable_jobs import replace_queued
from django_durable_jobs.models import Execution, Job
from django_durable_jobs.states import State
from tests import claiming
from tests.factories import assert_queue_is_sound, make_job, now
from tests.racing import meanwhile

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.races]


@pytest.fixture
def replaced() -> Iterator[dict[uuid.UUID, dict[str, Any]]]:
    """Have these changes made, job by job, just before a claim locks what it has found."""
    if connection.vendor != "mysql":
        pytest.skip("the others find and lock in one statement, or lock everything")
    # The look for what has become due locks the one row that its index has behind these.
    make_job(queue="elsewhere", created_at=now() - timedelta(hours=1))
    wanted: dict[uuid.UUID, dict[str, Any]] = {}

    def replace_first(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        while wanted and "WHERE job_id IN" in sql and "SKIP LOCKED" in sql:
            id, changes = wanted.popitem()
            done = meanwhile(partial(replace_queued, id, **changes))()
            assert isinstance(done, Job), done
        return execute(sql, params, many, context)

    with connection.execute_wrapper(replace_first):
        yield wanted
    assert not wanted


def claim(**values: Any) -> list[uuid.UUID]:
    """Claim in the default queue, and return the jobs."""
    result = claiming.claim(**({"queues": ("default",)} | values))
    return [taking.job_id for taking in result.takings]


def held_by_owner(owner: str) -> int:
    return Execution.objects.filter(owner_id=owner, state__in=["claimed", "running"]).count()


def test_a_job_given_to_an_owner_who_has_enough_is_not_claimed(
    replaced: dict[uuid.UUID, dict[str, Any]],
) -> None:
    make_job(State.RUNNING, owner_id="full")
    job = make_job(owner_id="free")
    replaced[job.pk] = {"owner_id": "full"}
    assert claim(owner_cap=1) == []
    assert held_by_owner("full") == 1
    job.refresh_from_db()
    assert (job.state, job.owner_id) == ("queued", "full")
    assert_queue_is_sound()
    assert claim(owner_cap=2) == [job.pk]
    assert held_by_owner("full") == 2


def test_a_job_made_one_of_an_unknown_type_is_not_claimed(
    replaced: dict[uuid.UUID, dict[str, Any]],
) -> None:
    job = make_job()
    replaced[job.pk] = {"type": "nobody.knows"}
    assert claim() == []
    job.refresh_from_db()
    assert (job.state, job.type) == ("queued", "nobody.knows")
    assert_queue_is_sound()


def test_a_job_moved_to_a_queue_that_is_not_served_is_not_claimed(
    replaced: dict[uuid.UUID, dict[str, Any]],
) -> None:
    job = make_job()
    replaced[job.pk] = {"queue": "others"}
    assert claim() == []
    assert_queue_is_sound()
    assert claim(queues=("others",)) == [job.pk]


def test_its_neighbours_are_claimed_all_the_same(
    replaced: dict[uuid.UUID, dict[str, Any]],
) -> None:
    make_job(State.RUNNING, owner_id="full")
    job, neighbour = make_job(owner_id="free"), make_job(owner_id="free")
    replaced[job.pk] = {"owner_id": "full"}
    assert claim(owner_cap=1) == [neighbour.pk]
