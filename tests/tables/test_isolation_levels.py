"""Transactions of ours see what others commit meanwhile, whatever isolation the project chose."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections
from django.db.transaction import atomic

from django_durable_jobs import enqueue
from django_durable_jobs.db import transaction
from django_durable_jobs.models import Job

pytestmark = pytest.mark.django_db(transaction=True)


more_than_one_level = pytest.mark.skipif(
    "connections['default'].vendor == 'sqlite'", reason="SQLite has one isolation level"
)


@pytest.fixture
def strict() -> Iterator[None]:
    """Have this thread's connection be one of a project that chose REPEATABLE READ."""
    previous = connections["default"]
    settings: dict[str, Any] = copy.deepcopy(previous.settings_dict)
    level: object = 3 if previous.vendor == "postgresql" else "repeatable read"
    settings["OPTIONS"]["isolation_level"] = level
    connections["default"] = type(previous)(settings, "default")
    yield
    connections["default"].close()
    connections["default"] = previous


def enqueue_elsewhere() -> None:
    def put_in() -> None:
        enqueue("any")
        connections.close_all()

    thread = threading.Thread(target=put_in)
    thread.start()
    thread.join()


@more_than_one_level
def test_a_transaction_of_ours_sees_what_is_committed_while_it_is_open(strict: None) -> None:
    with transaction("default"):
        before = Job.objects.count()
        enqueue_elsewhere()
        assert Job.objects.count() == before + 1


@more_than_one_level
def test_the_projects_own_transactions_stay_as_they_are(strict: None) -> None:
    with transaction("default"):
        Job.objects.count()
    with atomic():
        before = Job.objects.count()
        enqueue_elsewhere()
        assert Job.objects.count() == before
