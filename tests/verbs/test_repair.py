"""A job is queued if and only if it has a queue entry: what was edited by hand is mended."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_durable_jobs import claims
from django_durable_jobs.models import Job, QueueEntry
from django_durable_jobs.states import State
from tests.claiming import digest, take
from tests.factories import assert_queue_is_sound, make_entry, make_job, make_worker

pytestmark = pytest.mark.django_db(transaction=True)


def repair(**values: Any) -> claims.Repair:
    return claims.repair(connection, "default", **values)


def without_entry(**values: Any) -> Job:
    job = make_job(**values)
    QueueEntry.objects.filter(pk=job.pk).delete()
    return job


def test_a_sound_queue_is_only_read() -> None:
    for state in State:
        make_job(state)
    before = digest()
    with CaptureQueriesContext(connection) as queries:
        assert repair() == claims.Repair()
    assert digest() == before
    assert len(queries) <= 4
    assert all(query["sql"].startswith("SELECT") for query in queries)


def test_a_queued_job_without_an_entry_gets_one_and_is_claimed() -> None:
    lost, later = without_entry(owner_id="a", priority=3), without_entry(owner_id="b")
    Job.objects.filter(pk=later.pk).update(claimable_at=claims.NEVER)
    elsewhere = without_entry(namespace="other")
    assert repair().made == 2
    assert take() == [lost]
    assert not QueueEntry.objects.get(pk=later.pk).due
    assert not QueueEntry.objects.filter(pk=elsewhere.pk)


def test_an_entry_without_a_queued_job_goes() -> None:
    for state in (State.RUNNING, State.COMPLETED, State.CANCELLED):
        make_entry(make_job(state))
    gone = make_job()
    Job.objects.filter(pk=gone.pk)._raw_delete("default")
    kept = make_job()
    make_entry(make_job(State.COMPLETED, namespace="other"))
    assert repair().dropped == 4
    assert set(QueueEntry.objects.filter(namespace="default")) == {kept.queue_entry}
    assert QueueEntry.objects.count() == 2


def test_a_large_table_is_mended_a_stretch_at_a_time() -> None:
    for number in range(23):
        job = without_entry() if number % 3 == 0 else make_job()
        if number % 3 == 1:
            Job.objects.filter(pk=job.pk).delete() if number % 2 else make_entry(
                make_job(State.COMPLETED)
            )
    looks, last = 0, None
    while last is None or not last.through:
        last = repair(last=last, stretch=4)
        looks += 1
        assert looks < 20
    assert looks > 3
    assert_queue_is_sound()
    assert repair(last=last).through


def test_it_looks_along_ids_of_any_kind() -> None:
    import uuid

    ids = [uuid.uuid4() for _ in range(40)]
    for id in ids:
        without_entry(id=id)
    made, last = 0, None
    while last is None or not last.through:
        last = repair(last=last, stretch=7)
        made += last.made
    assert made == 40
    assert_queue_is_sound()


def test_jobs_put_off_for_a_handler_that_a_worker_has_by_now_are_freed() -> None:
    job = make_job(type="new")
    take()
    assert repair().freed == 0
    make_worker(types=["new"])
    assert repair().freed == 1
    assert take(types=frozenset({"new"})) == [job]
    assert repair().freed == 0


@pytest.mark.parametrize("state", [State.CLAIMED, State.RUNNING])
def test_a_job_that_no_execution_holds_is_interrupted(state: State) -> None:
    held, nobodys = make_job(state), make_job(state)
    nobodys.executions.all().delete()
    assert repair().ended == 1
    for job, expected in ((held, state), (nobodys, State.INTERRUPTED)):
        job.refresh_from_db()
        assert job.state == expected
    assert repair().ended == 0
