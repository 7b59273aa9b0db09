"""A process that stands still in the middle of a transaction does not hold up the others."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from django.db import DatabaseError, connection

from django_durable_jobs import pause
from django_durable_jobs.db import own_connections, statements_for, transaction

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.skipif("connection.vendor == 'sqlite'", reason="the lock is the process's own")
def test_a_claim_that_stands_still_loses_its_locks(settings: Any) -> None:
    settings.DURABLE_JOBS = {"LEASE": 1, "HEARTBEAT": 0.5}
    pause("default")  # makes the namespace's row
    locked, done = threading.Event(), threading.Event()
    errors: list[Exception] = []

    def stand_still() -> None:
        with own_connections("default", lease=1.0) as own:
            try:
                with transaction("default"):
                    statements_for(own).lock_namespace("default")
                    locked.set()
                    done.wait(30)
                    statements_for(own).lock_namespace("default")
            except DatabaseError as error:
                errors.append(error)

    thread = threading.Thread(target=stand_still)
    thread.start()
    assert locked.wait(10)
    began = time.monotonic()
    with transaction("default"):
        statements_for(connection).lock_namespace("default")
    assert time.monotonic() - began < 15
    done.set()
    thread.join()
    assert errors
