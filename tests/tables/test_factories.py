"""The factories build rows that the tables accept, in every state."""

from __future__ import annotations

import pytest

from django_durable_jobs.models import Execution, QueueEntry
from django_durable_jobs.states import ACTIVE, UNCLAIMED, ExecutionState, State
from tests.factories import assert_queue_is_sound, make_execution, make_job, make_worker

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("state", State.values)
def test_a_job_can_be_made_in_every_state(state: str) -> None:
    job = make_job(state)
    job.refresh_from_db()
    assert job.state == state
    assert QueueEntry.objects.filter(pk=job.pk).exists() is (state == State.QUEUED)
    executions = Execution.objects.filter(job=job, claim_id=job.claim_id)
    assert executions.count() == (0 if state in UNCLAIMED else 1)
    assert_queue_is_sound()


@pytest.mark.parametrize("state", ExecutionState.values)
def test_an_execution_can_be_made_in_every_state(state: str) -> None:
    worker = make_worker()
    job = make_job(state if state in ACTIVE else State.QUEUED, execution=False)
    execution = make_execution(job, state, worker=worker)
    execution.refresh_from_db()
    assert execution.state == state
    assert execution.worker == worker
    assert_queue_is_sound()
