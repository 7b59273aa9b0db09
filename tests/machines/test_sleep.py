"""How a worker sleeps: what wakes it is heard once, by whoever acts on it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from django.db import connection, connections

from django_durable_jobs import enqueue
from django_durable_jobs.conf import settings
from django_durable_jobs.db import own_connections
from django_durable_jobs.db.connections import _own_settings
from django_durable_jobs.db.limits import limits_for
from django_durable_jobs.worker.sleep import Sleep, Wake

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("keys")]


def test_what_is_enqueued_while_a_worker_takes_breath_wakes_it_from_its_sleep(
    keys: Callable[..., None],
) -> None:
    polls = connection.vendor == "mysql"  # which has nothing else
    keys(LISTEN=True, MAX_SLEEP=300, POLL_INTERVAL=0.05 if polls else 300)
    made, enqueued, woken = threading.Event(), threading.Event(), threading.Event()
    wake = Wake()

    def sleep() -> None:
        with own_connections("default", lease=settings.LEASE):
            bed = Sleep("default", settings.NAMESPACE, wake, heard=lambda message: wake.set())
            made.set()
            assert enqueued.wait(30)
            bed.breathe()
            bed.until(300)
            woken.set()

    thread = threading.Thread(target=sleep, daemon=True)
    thread.start()
    assert made.wait(30)
    enqueue("elsewhere")
    enqueued.set()
    try:
        assert woken.wait(20)
    finally:
        wake.set()
        thread.join(30)


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_where_the_driver_is_psycopg_2_a_worker_does_without_what_that_lacks(
    keys: Callable[..., None], monkeypatch: pytest.MonkeyPatch, driver: str
) -> None:
    keys(LISTEN=True)
    is_new = connection.vendor == "postgresql" and driver == "psycopg"
    with monkeypatch.context() as patch:
        patch.setattr(connections["default"], "Database", SimpleNamespace(__name__=driver))
        bed = Sleep("default", settings.NAMESPACE, Wake(), heard=lambda message: None)
        told = _own_settings(connections["default"], limits_for(settings.LEASE))["OPTIONS"]
    assert (bed._listening is not None) is is_new
    assert ("server_side_binding" in told, "prepare_threshold" in told) == (is_new, is_new)
