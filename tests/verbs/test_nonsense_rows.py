"""Rows that somebody edited by hand into nonsense can still be steered."""

from __future__ import annotations

import pytest

from django_durable_jobs import cancel, enqueue, replace_queued, requeue, resolve
from django_durable_jobs.errors import InvalidJob
from tests.factories import make_job, spoil

pytestmark = pytest.mark.django_db(transaction=True)


def test_an_unreadable_job_can_be_cancelled_and_requeued() -> None:
    job = enqueue("any")
    spoil(job.pk)

    cancelled = cancel(job.pk, "unreadable")
    assert cancelled is not None
    assert cancelled.state == "cancelled"
    assert requeue(job.pk).state == "queued"


def test_an_unreadable_interrupted_job_can_be_resolved() -> None:
    job = make_job(state="interrupted")
    spoil(job.pk)

    assert resolve(job.pk, "looked it up").state == "completed"


def test_replacing_an_unreadable_job_says_so() -> None:
    job = enqueue("any")
    spoil(job.pk)

    with pytest.raises(InvalidJob, match="cannot be read, its row was edited by hand"):
        replace_queued(job.pk, priority=3)
