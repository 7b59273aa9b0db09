"""The audit trail of jobs that tests run in their own thread, mostly inside a transaction."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.test import TestCase, TransactionTestCase

from django_durable_jobs import Retry, enqueue, register_handler
from django_durable_jobs.errors import DurableJobsError
from django_durable_jobs.registry import handlers
from django_durable_jobs.testing import run_due
from tests.app.models import Note
from tests.hearing import Ear

RUN = ["job.claimed", "job.started", "job.completed"]


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    with handlers.preserved():
        yield


class _Told:
    """The same inside and outside of a transaction."""

    def test_a_run_is_told_of_in_its_thread_before_it_returns(self) -> None:
        register_handler("it", lambda: None)
        job = enqueue("it")
        with Ear() as ear:
            run_due()
        assert [event.action for event in ear.of(job)] == RUN
        assert ear.actions == RUN

    def test_every_kind_of_handler_is_told_of(self) -> None:
        async def wait() -> None:
            pass

        register_handler("async", wait)
        register_handler("gated", lambda: None, can_run=lambda job: True)
        register_handler("atomic", lambda: Note.objects.create(text="x").text, atomic=True)
        jobs = [enqueue(type) for type in ("async", "gated", "atomic")]
        with Ear() as ear:
            run_due()
        for job in jobs:
            assert [event.action for event in ear.of(job)] == RUN

    def test_a_failure_and_a_release_are_told_of(self) -> None:
        def fail() -> None:
            raise Retry(3600)

        answers = [True, False]
        register_handler("fail", fail, max_attempts=2)
        register_handler("no", lambda: None, can_run=lambda job: answers.pop(0))
        failing, refused = enqueue("fail"), enqueue("no")
        with Ear() as ear:
            run_due()
        assert [event.action for event in ear.of(failing)] == [*RUN[:2], "job.failed"]
        assert [event.action for event in ear.of(refused)] == ["job.claimed", "job.released"]

    def test_what_a_handler_puts_in_is_told_of(self) -> None:
        register_handler("next", lambda: None)
        register_handler("it", lambda: enqueue("next") and None)
        enqueue("it")
        with Ear() as ear:
            run_due()
        assert ear.actions == [*RUN[:2], "job.enqueued", RUN[2], *RUN]

    def test_the_claim_past_the_limit_is_taken_back_and_not_told_of(self) -> None:
        register_handler("again", lambda: enqueue("again") and None)
        enqueue("again")
        with Ear() as ear, pytest.raises(DurableJobsError, match="limit"):
            run_due(limit=2)
        assert ear.actions.count("job.claimed") == 2


class InATransaction(_Told, TestCase):
    pass


class OutsideOfTransactions(_Told, TransactionTestCase):
    pass
